"""Small runs on real digits."""

import pytest
from tests.runs import small_config


@pytest.fixture(scope="session")
def small():
    """small(method, **options): the configuration of a run of seconds: 2 + 1 + 1 classes."""
    return small_config
