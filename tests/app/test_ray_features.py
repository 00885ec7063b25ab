"""Features computed by Ray workers: equal to those of a local pass, also if a worker is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image
from tests.app.conftest import etag, refused, settings

from etag.app import ray_features
from etag.app.lessons import LessonOptions, learn_folder
from etag.app.ray_features import RayFeatures
from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.data.images import FileImages
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.learner.learner import Learner
from etag.learner.model_directory import ModelDirectory
from etag.models.backbone import BACKBONES

pytest.importorskip("ray")

# -- without a cluster: a stand-in for Ray that computes in this process, when a result is read ------------------------


class Lost(Exception):
    pass


class InProcess:
    exceptions = SimpleNamespace(RayError=Lost)

    def __init__(self):
        self.submitted = self.most_submitted = self.cancelled = 0
        self.ended = False
        self.lose = False  # whether all workers are lost

    def cluster_resources(self):
        return {"CPU": 3.0}

    def put(self, value):
        return SimpleReference(lambda: value)

    def remote(self, **options):
        return lambda function: SimpleNamespace(remote=lambda *words: self._submit(lambda: function(*words)))

    def _submit(self, call):
        self.submitted += 1
        self.most_submitted = max(self.submitted, self.most_submitted)
        return SimpleReference(call, self)

    def get(self, reference):
        if self.lose and reference.ray is self:
            raise Lost("a traceback\nthe worker died")
        self.submitted -= reference.ray is self
        return reference.call()

    def cancel(self, reference):
        self.cancelled += 1

    def wait(self, references, num_returns, timeout):
        pass

    def shutdown(self):
        self.ended = True


class SimpleReference:
    def __init__(self, call, ray=None):
        self.call, self.ray = call, ray


@pytest.fixture
def ray(monkeypatch):
    found, threads = InProcess(), torch.get_num_threads()
    monkeypatch.setattr(ray_features, "connect", lambda address, processors: found)
    monkeypatch.setattr(ray_features, "find_ray", lambda address=None: found)
    yield found
    torch.set_num_threads(threads)


@pytest.fixture
def files(tmp_path):
    """70 small images in files."""
    pixels = np.random.default_rng(0).integers(0, 256, (70, 8, 8), dtype=np.uint8)
    paths = [str(tmp_path / f"{place}.png") for place in range(len(pixels))]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    labels = torch.arange(len(paths)) % 3
    return FileImages(np.array(paths), labels, Resize(8), workers=2, channels=1)


def in_batches(images, size):
    return torch.cat(list(images.read(torch.split(torch.arange(len(images)), size))))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_worker_computes_what_the_local_pass_computes(lab, ray, files, precision):
    made = lab("etag", batch_size=3)
    made.engine = Engine(Runtime(Fabric(accelerator="cpu", devices=1, precision=precision)))
    local = made.engine.run_pass(made.method.features_pass("features", files))["features"]
    size = made.method.pass_size(files)
    assert size < len(files)
    with RayFeatures().connected(precision) as distribute:
        remote = distribute(made.method.solver.backbone, made.preprocess, files)
        assert torch.equal(in_batches(remote, size), local)
        assert ray.most_submitted == 2 * 3, "two batches per processor"
        assert torch.equal(remote.labels, files.labels)
        rows = torch.tensor([7, 3, 50])
        joined = remote.select(rows).join([remote.select(rows + 1)])
        torch.testing.assert_close(in_batches(joined, 4), local[torch.cat([rows, rows + 1])], atol=1e-2, rtol=0)
        learner = Learner(made.method, made.engine.runtime, engine=made.engine, distribute=distribute)
        features = learner.features("features", files)
    assert torch.equal(features.matrix[features.places], local)


def test_paths_are_absolute_and_nothing_else_decodes_files(lab, ray, files, monkeypatch):
    folder = os.path.dirname(files.files[0])
    monkeypatch.chdir(folder)
    relative = replace(files, files=np.array([os.path.basename(file) for file in files.files]))
    made = lab("etag")
    with RayFeatures().connected("32-true") as distribute:
        remote = distribute(made.method.solver.backbone, made.preprocess, relative)
    assert (remote.images.files == files.files).all()
    assert remote.images.workers == 0


def test_what_a_worker_cannot_do_is_one_sentence(lab, ray, files):
    made = lab("etag")
    open(files.files[8], "w").close()
    with pytest.raises(EtagError) as local:
        in_batches(files, 10)
    with RayFeatures().connected("32-true") as distribute:
        remote = distribute(made.method.solver.backbone, made.preprocess, files)
        with pytest.raises(EtagError) as found:
            in_batches(remote, 10)
        assert str(found.value) == str(local.value)
        ray.lose = True
        with pytest.raises(EtagError, match=r"^a Ray worker could not compute features: the worker died$"):
            in_batches(remote, 10)


def test_what_is_not_read_is_cancelled(lab, ray, files):
    made = lab("etag")
    with RayFeatures().connected("32-true") as distribute:
        remote = distribute(made.method.solver.backbone, made.preprocess, files)
        next(remote.read(torch.split(torch.arange(70), 5)))
    assert ray.cancelled == 2 * 3 - 1
    assert ray.ended


# -- the command -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_distributed_is_refused(digits_folder, tmp_path, monkeypatch):
    words = ["learn", tmp_path / "model", digits_folder("first", (0, 1, 2)), *settings()]
    found = refused(etag(*words, "--on", "ray"))
    assert "etag does not learn from such features in this lesson" in found
    assert "--address is for `--on ray`" in refused(etag(*words, "--address", "auto"))
    assert "nothing answers at '127.0.0.1:1'" in refused(etag(*words, "--on", "ray", "--address", "127.0.0.1:1"))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'etag-cil[ray]'" in refused(etag(*words, "--on", "ray"))
    assert not (tmp_path / "model").exists()


PLUGIN = '''
"""A frozen backbone that takes its time, and leaves a file for each process that computes with it."""

import os
import time
from pathlib import Path

from torch import nn

from etag.models.backbone import BACKBONES, Backbone
from etag.models.modules import Modules


class Wait(nn.Module):
    def forward(self, images):
        Path(__file__).with_name(f"{os.getpid()}.process").touch()
        time.sleep(0.2)
        return images


class Waiting(Backbone):
    min_side, feature_size = 2, 16

    def __init__(self, channels):
        super().__init__()
        self.stages = Modules([nn.Sequential(Wait(), nn.Conv2d(channels, 16, 3), nn.ReLU())])

    def new_stage(self, number, short=False):
        return nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU())


@BACKBONES.add("waiting")
def waiting(options, channels, size):
    return Waiting(channels)
'''
RAY = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}
SETTINGS = ["model.backbone=waiting", "model.train=head", "data.size=8", "train.batch_size=4"]


@pytest.fixture(scope="module")
def lesson(tmp_path_factory, digits_folder):
    """A plug-in, a folder, and the model that a local lesson makes of them."""
    home = tmp_path_factory.mktemp("ray")
    (home / "waiting_backbone.py").write_text(PLUGIN)
    words = ["--method", "ridge", "--plugin", home / "waiting_backbone.py"]
    words += [part for setting in SETTINGS for part in ("--set", setting)]
    folder = digits_folder("for ray", (0, 1, 2), count=120)
    done = etag("learn", home / "local", folder, *words)
    assert done.returncode == 0, done.stderr
    yield SimpleNamespace(home=home, plugin=home / "waiting_backbone.py", folder=folder, words=words)
    del BACKBONES._items["waiting"]  # other tests look at every backbone


def check_equal(first, second):
    """Two models with equal tensors, which predict the same."""
    states = [ModelDirectory(path).load_classifier()[0].state_dict() for path in (first, second)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-6, rtol=0)


def test_a_dry_run_starts_no_cluster(lesson, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_features, "connect", lambda *_: pytest.fail("Ray was started"))
    done = etag("learn", tmp_path / "model", lesson.folder, *lesson.words, "--on", "ray", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "without Ray this would take " in done.stdout


def workers(home):
    """Process numbers of those that have computed features, except of this process."""
    return {int(file.stem) for file in home.glob("*.process")} - {os.getpid()}


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def rows(model):
    """Bytes of the features that a lesson has stored so far."""
    return sum(file.stat().st_size for file in (model / "unfinished" / "features").glob("*.rows"))


@pytest.mark.slow
def test_a_lesson_whose_worker_is_killed_ends_with_the_same_model(lesson, monkeypatch):
    for name, value in RAY.items():
        monkeypatch.setenv(name, value)
    model, before, killed = lesson.home / "remote", workers(lesson.home), []

    def kill_one():
        deadline = time.monotonic() + 120
        while not rows(model) and time.monotonic() < deadline:
            time.sleep(0.02)
        killed.append(max(workers(lesson.home) - before))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    learn_folder(
        model,
        lesson.folder,
        LessonOptions({"method": "ridge"}, SETTINGS, ray=RayFeatures(plugin_files=[str(lesson.plugin)], processors=2)),
    )
    thread.join()
    assert killed
    assert workers(lesson.home) - before - {*killed}, "others have computed the rest"
    check_equal(lesson.home / "local", model)


@pytest.mark.slow
def test_control_c_stops_the_workers_and_the_same_command_continues(lesson):
    model = lesson.home / "stopped"
    words = [sys.executable, "-m", "etag.cli", "learn", model, lesson.folder, *lesson.words, "--on", "ray"]
    options = {"env": os.environ | RAY, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, start_new_session=True, **options)
    while not rows(model) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == f"interrupted: '{model}' is unchanged; the same command continues.\n"
    assert rows(model)
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers(lesson.home))):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = subprocess.run(words, timeout=240, **options)
    assert done.returncode == 0, done.stderr
    check_equal(lesson.home / "local", model)
