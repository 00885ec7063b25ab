"""What tests do where the shared data or a browser is missing."""

import pytest
from tests.conftest import skip_unless_required

VARIABLES = ["ETAG_REQUIRE_DATA", "ETAG_REQUIRE_BROWSER"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_test_is_skipped_with_a_reason_even_on_a_hosted_workflow(variable, monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is nothing here"):
        skip_unless_required(variable, "there is nothing here")


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_test_fails_where_its_variable_is_set(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(pytest.fail.Exception, match="there is nothing here"):
        skip_unless_required(variable, "there is nothing here")
