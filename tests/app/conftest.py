"""Models of seconds: digits as folders of small images."""

import io
import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from etag.cli import main
from etag.engine.training import Training

QUICK = ["data.size=8", "model.width=4", "train.batch_size=16", "train.steps=40", "train.base={steps: 120}"]
QUICK_GENERATOR = ["method.generator.train.steps=60", "method.generator.feature_passes=1", "method.refit.steps=60"]


def settings(*more, generator=True):
    words = [*QUICK, *(QUICK_GENERATOR if generator else []), *more]
    return [part for word in words for part in ("--set", word)]


@dataclass
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def etag(*words, stdin="", cwd=None, **environment):
    """Run the command line in this process: importing torch each time would take longest of all."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        if cwd is not None:
            patch.chdir(cwd)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["etag", *map(str, words)])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """digits_folder(name, digits, first, count): a folder of so many images of each of these digits."""
    images, labels = load_digits(return_X_y=True)
    home = tmp_path_factory.mktemp("images")

    def write(name, digits, first=0, count=25):
        for digit in digits:
            rows = images[labels == digit][first : first + count]
            folder = home / name / f"digit {digit}"
            if not folder.is_dir():
                folder.mkdir(parents=True)
                for place, row in enumerate(rows):
                    Image.fromarray((row.reshape(8, 8) * 15.9).astype("uint8")).save(folder / f"{place:03}.png")
        return home / name

    return write


@pytest.fixture(scope="session")
def learned(tmp_path_factory, digits_folder):
    """A model that learned 0 to 2, then 3 and 4; tests must not change it."""
    home = tmp_path_factory.mktemp("models")
    for name, digits in (("first", (0, 1, 2)), ("second", (3, 4))):
        words = settings() if name == "first" else ["--set", "train.steps=40"]
        done = etag("learn", home / "model", digits_folder(name, digits), *words)
        assert done.returncode == 0, done.stderr
    return home / "model"


@pytest.fixture(scope="session")
def with_statistics(tmp_path_factory, digits_folder):
    """A model that stores class statistics (ridge): it learned 0 and 1, then 2; tests must not change it."""
    home = tmp_path_factory.mktemp("models")
    for name, digits in (("zero and one", (0, 1)), ("two", (2,))):
        words = ["--method", "ridge", "--from-scratch", *settings(generator=False)] if 0 in digits else []
        done = etag("learn", home / "model", digits_folder(name, digits, count=120), *words)
        assert done.returncode == 0, done.stderr
    return home / "model"


@pytest.fixture
def copied(learned, tmp_path):
    """A copy of `learned` that a test may change."""
    shutil.copytree(learned, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def interrupt(monkeypatch):
    """interrupt(*words): a command of which Ctrl-C stops the training after some steps."""

    def run(*words, steps=45):
        plain, made = Training._step, []

        def step(*given):
            made.append(1)
            if len(made) == steps:
                os.kill(os.getpid(), signal.SIGINT)
            return plain(*given)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "_step", step)
            return etag(*words)

    return run


@pytest.fixture
def interrupted_lesson(copied, digits_folder, interrupt):
    """A model with a lesson of digits 5 and 6 that was interrupted."""
    done = interrupt("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=100")
    assert done.returncode == 130, done.stderr
    return copied


def refused(done):
    """The one sentence with which a command ended in exit code 2."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def printed(done):
    """What a command printed as JSON."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
