"""A small model that attacks may change, and file changes that are cut off."""

import os
import shutil
import signal

import pytest
from tests.learner.conftest import Course, course, small  # noqa: F401 (fixtures)

from etag.learner.model_directory import ModelDirectory

CHANGES = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir")  # the functions of `os` that change folders


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it but the test."""


class FileChanges:
    """Counts the changes that Python code makes to folders; after the `last`-th nothing more is changed."""

    def __init__(self, monkeypatch):
        self.count, self.last = 0, None
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, change):
        def counted(*arguments, **named):
            if self.last is not None and self.count >= self.last:
                raise Killed
            result = change(*arguments, **named)
            self.count += 1
            return result

        return counted

    def cut_after(self, last, work):
        """Do the work, killed after so many changes; returns whether it came to its end."""
        self.count, self.last = 0, last
        try:
            work()
        except Killed:
            return False
        finally:
            self.last = None
        return True


@pytest.fixture
def changes(monkeypatch):
    return FileChanges(monkeypatch)


@pytest.fixture(scope="session")
def saved(runtime, tmp_path_factory):
    """A model that learned 0 and 1, then 2, then 3; nobody may change it."""
    generator = {"latent": 4, "hidden": 8, "feature_passes": 1, "train": {"epochs": 1, "batch_size": 8}}
    made = Course(runtime, tmp_path_factory.mktemp("attacked") / "model", "gfr", **{"method.generator": generator})
    made.learn(0, 1, 2, keep_versions=3)
    return made.directory.path


@pytest.fixture
def model(saved, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(saved, tmp_path / "model")
    return ModelDirectory(tmp_path / "model")


@pytest.fixture
def no_hang():
    """An attack that would block the tests for ever fails instead."""

    def stop(*_):
        raise TimeoutError("a hang")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
