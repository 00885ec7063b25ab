"""Every reader, given damaged files: harness.py SECONDS [SEED]. Anything but a clear error or none is a finding.

A case is named by (seed, target, number); the same name makes the same bytes again.
"""

import gzip
import io
import json
import pickle
import random
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from etag.core.errors import EtagError
from etag.core.options import RuntimeOptions
from etag.core.scenario import Task
from etag.data.decode import UnreadableImage, decode
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions
from etag.engine.progress import StepLog
from etag.engine.training import Training
from etag.experiments.config import resolve
from etag.experiments.run import run
from etag.experiments.run_directory import RunDirectory
from etag.learner.checkpoints import TaskCheckpointer
from etag.learner.model_directory import ModelDirectory
from etag.learner.stopping import Stop

LIMIT = 20  # seconds a case may take
SMALL = {
    "data.train_per_class": 6,
    "data.test_per_class": 2,
    "model.width": 4,
    "train.epochs": 4,
    "train.batch_size": 4,
}


def mutated(data, chance):
    """A damaged copy: bits flipped, bytes replaced, pieces cut out, repeated or swapped, numbers blown up."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not made:
            break
        at = chance.randrange(len(made))
        match chance.randrange(7):
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                made[at] = chance.randrange(256)
            case 2:
                del made[at:]
            case 3:
                del made[at : at + chance.randrange(1, 64)]
            case 4:
                made[at:at] = made[at : at + chance.randrange(1, 64)]
            case 5:
                made[at : at + 8] = chance.choice(
                    (b"\xff" * 8, b"\x00" * 8, b"99999999", b"-1", b"null", b"[[[[", b'"')
                )
            case 6:
                other = chance.randrange(len(made))
                made[at : at + 16], made[other : other + 16] = made[other : other + 16], made[at : at + 16]
    return bytes(made)


class Target:
    """Files in a folder, and what reads them."""

    allowed = (EtagError,)

    def __init__(self, folder):
        self.folder = folder
        self.files = {}

    def keep(self, *patterns):
        paths = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        self.files = {path: path.read_bytes() for path in paths}
        assert self.files

    def try_one(self, chance):
        path = chance.choice(list(self.files))
        path.write_bytes(mutated(self.files[path], chance))
        try:
            self.read()
        except self.allowed:
            pass
        finally:
            for kept, data in self.files.items():
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(data)


class Config(Target):
    """A recipe."""

    def __init__(self, folder):
        super().__init__(folder)
        (folder / "recipe.yaml").write_text(
            "summary: x\ndata: {name: digits, size: 8}\nsplit: b4-3x2\n"
            "method: {name: etag, lambda_l2: 0.5, head: {growth: growing}}\n"
            "train: {epochs: 3, base: {lr: 3e-3}}\nmethods: {gfr: {method: {generator: {kind: cvae, latent: 5}}}}\n"
        )
        self.keep("*.yaml")

    def read(self):
        resolve(str(self.folder / "recipe.yaml"))


class Model(Target):
    """A finished run, as somebody else may have sent it."""

    def __init__(self, folder):
        super().__init__(folder)
        run(resolve(given={"method": "podnet", "split": "b2-1x2", **SMALL}), folder / "run")
        self.keep("run/current", "run/versions/*/about.json", "run/tensors/*")

    def read(self):
        model = ModelDirectory(self.folder / "run")
        for load in (model.about, model.load_classifier, model.load_method, model.sizes):
            with suppress(EtagError):  # each reader must cope on its own
                load()


class Checkpoint(Target):
    """A run that was cut."""

    allowed = (EtagError,)

    def __init__(self, folder):
        super().__init__(folder)
        config = resolve(given={"method": "eewc", "split": "b2-1x2", "runtime.checkpoint_seconds": 0, **SMALL})
        step, left = Training._step, [14]

        def cut(*arguments):
            left[0] -= 1
            if left[0] == 0:
                raise InterruptedError
            return step(*arguments)

        Training._step = cut
        with suppress(InterruptedError):
            run(config, folder / "run")
        Training._step = step
        self.keep("run/unfinished/checkpoints/*", "run/versions/*/about.json", "run/tensors/*", "run/steps.jsonl")

    def read(self):
        directory = RunDirectory(self.folder / "run")
        method, about = directory.model.load_method()
        checkpoints = directory.model.unfinished / "checkpoints"
        checkpointer = TaskCheckpointer(
            checkpoints, method, len(about.history), RuntimeOptions(), False, Stop(), lambda _: None
        )
        log = StepLog(directory.steps)
        try:
            log.on_task_begin(Task(1, 2, 2, None, None, num_base=2), checkpointer.saved_steps)
        finally:
            log.close()


class Data(Target):
    """A data source in a folder."""

    def read(self):
        build_scenario(DataOptions(name=self.name, path=str(self.folder), **self.options), "b2-1x2", 0)


class Parquet(Data):
    name, options = "cifar100", {}

    def __init__(self, folder):
        super().__init__(folder)
        for part in ("train", "test"):
            pixels = np.random.default_rng(0).integers(0, 255, (100, 32, 32, 3), dtype=np.uint8)
            images = [{"bytes": png(image), "path": None} for image in pixels]
            labels = list(range(100))
            table = {"img": images, "fine_label": labels, "coarse_label": [label // 5 for label in labels]}
            pyarrow.parquet.write_table(pyarrow.table(table), folder / f"{part}.parquet")
        self.keep("*.parquet")
        self.read()


class Archive(Data):
    name, options = "cifar100", {}

    def __init__(self, folder):
        super().__init__(folder)
        with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz", compresslevel=1) as tar:
            for part in ("train", "test"):
                pixels = np.random.default_rng(0).integers(0, 255, (100, 3072), dtype=np.uint8)
                add(tar, part, {b"data": pixels, b"fine_labels": list(range(100)), b"coarse_labels": [0] * 100})
            names = [b"class%d" % number for number in range(100)]
            add(tar, "meta", {b"fine_label_names": names, b"coarse_label_names": names[:20]})
        plain = gzip.decompress((folder / "cifar-100-python.tar.gz").read_bytes())
        self.plain = plain
        self.keep("*.tar.gz")
        self.read()

    def try_one(self, chance):
        """Damage beneath the compression reaches the pickles; damage of the compression itself is soon found out."""
        (path,) = self.files
        if chance.random() < 0.2:
            super().try_one(chance)
            return
        path.write_bytes(gzip.compress(mutated(self.plain, chance), 1))
        try:
            self.read()
        except self.allowed:
            pass
        finally:
            path.write_bytes(self.files[path])


class Idx(Data):
    name, options = "mnist", {}

    def __init__(self, folder):
        super().__init__(folder)
        for part, count in (("train", 60), ("t10k", 20)):
            pixels = np.random.default_rng(0).integers(0, 255, (count, 28, 28), dtype=np.uint8)
            head = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in pixels.shape)
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels.tobytes()))
            labels = bytes(number % 10 for number in range(count))
            head = b"\x00\x00\x08\x01" + count.to_bytes(4, "big")
            (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels))
        self.keep("*.gz")
        self.read()


class Picture(Target):
    """One image file."""

    allowed = (UnreadableImage,)

    def __init__(self, folder):
        super().__init__(folder)
        image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8))
        for kind in ("png", "jpg", "bmp", "gif", "webp", "tif"):
            image.save(folder / f"image.{kind}")
        self.keep("image.*")

    def read(self):
        for path in self.files:
            decode(str(path), 16)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def add(tar, name, content):
    data = pickle.dumps(content, protocol=2)
    entry = tarfile.TarInfo(f"cifar-100-python/{name}")
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


TARGETS = (Config, Model, Checkpoint, Parquet, Archive, Idx, Picture)


def fuzz(seconds, seed, folder, targets=TARGETS):
    """Cases in turn until the time is over; how many of each, and what was found."""
    ready = []
    for kind in targets:
        place = Path(folder) / kind.__name__
        place.mkdir()
        ready.append(kind(place))
    signal.signal(signal.SIGALRM, hang)
    counts, findings, end, number = {kind.__name__: 0 for kind in targets}, [], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        for target in ready:
            name = type(target).__name__
            signal.alarm(LIMIT)
            try:
                target.try_one(random.Random(f"{seed} {name} {number}"))
            except BaseException as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                findings.append(
                    {"case": [seed, name, number], "error": f"{type(error).__name__}: {error}"[:200], "at": where}
                )
            finally:
                signal.alarm(0)
            counts[name] += 1
    return counts, findings


def hang(*_):
    raise TimeoutError("a hang")


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    folder = tempfile.mkdtemp()
    counts, findings = fuzz(seconds, seed, folder)
    shutil.rmtree(folder, ignore_errors=True)
    for finding in findings:
        print(json.dumps(finding))
    print(json.dumps({"seconds": seconds, "seed": seed, "cases": counts, "findings": len(findings)}))
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
