"""Bundles of seconds: digits as folders of small images."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from sklearn.datasets import load_digits

QUICK = ["data.size=8", "model.width=4", "train.batch_size=16", "train.steps=40", "train.base={steps: 60}"]
QUICK_GENERATOR = ["method.generator.train.steps=60", "method.generator.feature_passes=1"]


def settings(*more, generator=True):
    words = [*QUICK, *(QUICK_GENERATOR if generator else []), *more]
    return [part for word in words for part in ("--set", word)]


def etag(*words, cwd=None, stdin=None, **environment):
    """The command line, as a user has it."""
    return subprocess.run(
        [sys.executable, "-m", "etag.cli", *map(str, words)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """digits_folder(name, digits, first, count): a folder of so many images of each of these digits."""
    images, labels = load_digits(return_X_y=True)
    home = tmp_path_factory.mktemp("images")

    def make(name, digits, first=0, count=25):
        for digit in digits:
            rows = images[labels == digit][first : first + count]
            folder = home / name / f"digit {digit}"
            if not folder.is_dir():
                folder.mkdir(parents=True)
                for place, row in enumerate(rows):
                    Image.fromarray((row.reshape(8, 8) * 15.9).astype("uint8")).save(folder / f"{place:03}.png")
        return home / name

    return make


@pytest.fixture(scope="session")
def learnt(tmp_path_factory, digits_folder):
    """A bundle that learnt 0 to 2, then 3 and 4; nobody may change it."""
    home = tmp_path_factory.mktemp("bundles")
    for name, digits in (("first", (0, 1, 2)), ("second", (3, 4))):
        words = settings() if name == "first" else ["--set", "train.steps=40"]
        done = etag("learn", home / "model", digits_folder(name, digits), *words)
        assert done.returncode == 0, done.stderr
    return home / "model"


def said(done):
    """What a command printed as JSON."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
