"""The worked examples of docs/adding-a-method.md, as a reader runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.test_near import etag

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["train.epochs=6", "train.batch_size=32", "model.width=8", "data.train_per_class=40"]
METHODS = [("class_means.py", "means"), ("head_only.py", "head")]

# in a process of its own, which does not know the plug-in before it is loaded
USE_SAVED_MODEL = """
import json, sys
from sklearn.datasets import load_digits
from etag import IncrementalClassifier
from etag.core.errors import EtagError
from etag.experiments import plugins
from etag.learner.model_directory import ModelDirectory

model, plugin = sys.argv[1:]
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8) / 16
try:
    ModelDirectory(model).load_method()
    refused = ""
except EtagError as error:
    refused = str(error)
plugins.load([plugin])
loaded = IncrementalClassifier.load(model)
before = loaded.score(images, labels.astype(str))
upside_down = images[labels == 7][:40, ::-1]
loaded.partial_fit(upside_down, ["seven, upside down"] * 40)
found = (loaded.predict(upside_down) == "seven, upside down").mean()
after = loaded.score(images, labels.astype(str))
print(json.dumps({"refused": refused, "before": before, "new": found, "after": after}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), METHODS)
def test_an_example_learns_and_its_model_predicts_and_learns_on(tmp_path, file, name):
    words = [word for setting in SMALL for word in ("--set", setting)]
    done = etag(
        "run", "--plugin", EXAMPLES / file, "--method", name, "--split", "b4-3x2", *words, "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["last_accuracy"] > 0.3, "ten digits, chance is 0.1"
    used = subprocess.run(
        [sys.executable, "-c", USE_SAVED_MODEL, "run", EXAMPLES / file], cwd=tmp_path, capture_output=True, text=True
    )
    assert used.returncode == 0, used.stderr
    found = json.loads(used.stdout)
    assert name in found["refused"], "without the plug-in nobody knows the method"
    assert found["before"] == pytest.approx(metrics["last_accuracy"], abs=0.1), "the same classifier, on more images"
    assert found["new"] > 0.25, "the class that was learned on top; chance is 0.09"
    assert found["after"] > 0.2, "the old classes are still known"
