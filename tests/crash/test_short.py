"""The crash test in short; `make crash-test` is the whole."""

import pytest
from tests.crash import harness


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        pytest.param("etag", 3, marks=pytest.mark.slow),
        ("forget", 4),
        pytest.param("learn", 2, marks=pytest.mark.slow),
        pytest.param("restart", 3, marks=pytest.mark.slow),
    ],
)
def test_a_killed_command_given_again_ends_as_its_twin(name, kills, tmp_path):
    assert len(harness.crash(name, tmp_path, kills, seed=0)) >= kills
