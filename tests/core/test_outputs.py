import pytest

from etag.core.outputs import Need, Outputs, require


def test_an_output_nobody_asked_for_is_an_error_of_ours():
    with pytest.raises(RuntimeError, match="must exist here is None"):
        require(Outputs().logits)
    assert require(0) == 0


def test_needs_add_up():
    assert not Need.NOTHING
    assert Need.FEATURE | Need.LOGITS | Need.FEATURE == Need.LOGITS | Need.FEATURE
    parts = list(Need)
    assert all(not one & other for one in parts for other in parts if one is not other)
