"""Every reader, given damaged and forged files: harness.py SECONDS [SEED], for so many seconds per reader, two readers
at a time. Anything but a clear error or none is a finding.

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
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
import yaml
from PIL import Image

from etag.app.predicting import predict_pixels
from etag.core.errors import EtagError
from etag.core.images import Resize
from etag.core.options import RuntimeOptions
from etag.core.scenario import Task
from etag.data.decode import UnreadableImage, decode, inspect
from etag.data.folders import write_folders
from etag.data.formats import ENDINGS, file_formats
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions
from etag.engine.progress import StepLog
from etag.engine.training import Training
from etag.experiments.config import resolve
from etag.experiments.grid import Grid
from etag.experiments.run import run
from etag.experiments.run_directory import RunDirectory
from etag.learner.checkpoints import TaskCheckpointer
from etag.learner.model_directory import ModelDirectory
from etag.learner.stopping import Stop
from etag.learner.versions import seal
from etag.report.page import write_run_report

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


STRANGE = (
    None, True, -1, 0, 1 << 40, 1e308, float("nan"), float("inf"), "", "x", "../../x", "/x", "\x00", "\x1b[31m",
    "\ud800", [], {}, [[]], ["x"], {"module": "HeadRule"}, {"tuple": [1, {"tuple": []}]}, "9" * 5000, "a" * 300,
)  # fmt: skip


def forged(value, chance):
    """A copy of JSON values with one of them replaced, removed, repeated or moved."""
    made = json.loads(json.dumps(value))
    places = list(containers(made))
    if not places:
        return made
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = chance.choice(places)
        if not place:
            continue
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        match chance.randrange(4):
            case 0 | 1:
                place[key] = chance.choice(STRANGE)
            case 2:
                del place[key]
            case 3:
                other = chance.choice(places)
                place[key] = json.loads(json.dumps(other))
    return made


def containers(value):
    """All non-empty mappings and lists inside a JSON value."""
    if isinstance(value, dict | list) and value:
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from containers(part)


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
        self.attempt()

    def attempt(self):
        """Read the files as they are now, then restore them."""
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

    def try_one(self, chance):
        if chance.random() < 0.5:
            super().try_one(chance)
            return
        (path,) = self.files
        path.write_text(yaml.safe_dump(forged(yaml.safe_load(self.files[path]), chance), allow_unicode=True))
        self.attempt()


class GridFile(Config):
    """A grid."""

    def __init__(self, folder):
        Target.__init__(self, folder)
        (folder / "grid.yaml").write_text(
            "summary: x\nrecipe: digits\nsplits: [b4-3x2]\nmethods: [etag, fine]\nseeds: [0, 1]\n"
            "settings: {train.epochs: 1}\n"
        )
        self.keep("*.yaml")

    def read(self):
        Grid.load(str(self.folder / "grid.yaml")).all_runs()


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


class Description(Model):
    """A model whose about.json was forged by somebody who knows how checksums are computed."""

    def __init__(self, folder):
        super().__init__(folder)
        self.path = folder / "run"
        self.about = next((self.path / "versions").glob("*/about.json"))
        self.content = json.loads(self.about.read_text())

    def try_one(self, chance):
        content = forged(self.content, chance)
        if isinstance(content, dict):
            content = seal(content)
        self.about.write_text(json.dumps(content))
        digest = content.get("checksum", "") if isinstance(content, dict) else ""
        (self.path / "current").write_text(f"{self.about.parent.name} {digest}")
        try:
            self.read()
            if self.classifier is not None:
                classifier, about = self.classifier
                predict_pixels(classifier, about, torch.zeros(1, about.channels, 8, 8, dtype=torch.uint8))
        except self.allowed:
            pass
        finally:
            for kept, data in self.files.items():
                kept.write_bytes(data)

    def read(self):
        self.classifier = None
        super().read()
        with suppress(EtagError):
            self.classifier = ModelDirectory(self.path).load_classifier()
            if self.classifier[1].preprocess.size > 64:
                self.classifier = None  # would only take long


class Report(Target):
    """A finished run, for `etag report`."""

    def __init__(self, folder):
        super().__init__(folder)
        run(resolve(given={"method": "fine", "split": "b2-1x2", **SMALL}), folder / "run")
        self.keep("run/metrics.json", "run/config.yaml", "run/features/*", "run/steps.jsonl")
        self.metrics = json.loads((folder / "run" / "metrics.json").read_text())

    def try_one(self, chance):
        if chance.random() < 0.5:
            super().try_one(chance)
            return
        path = self.folder / "run" / "metrics.json"
        path.write_text(json.dumps(forged(self.metrics, chance)))
        self.attempt()

    def read(self):
        write_run_report(self.folder / "run")


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
        checkpoints = directory.model.unfinished.checkpoints
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


class ClassNames(Parquet):
    """Class names in the metadata of a data file, which become names of folders."""

    def try_one(self, chance):
        table = pyarrow.parquet.read_table(self.folder / "train.parquet")
        names = [chance.choice((*map(str, STRANGE), "..", ".", "a/b", "CON", f"name{number}")) for number in range(100)]
        info = forged({"info": {"features": {"fine_label": {"names": names}}}}, chance)
        names = [name if chance.random() < 0.9 else chance.choice(STRANGE) for name in names]
        plain = {"info": {"features": {"fine_label": {"names": names}}}}
        metadata = {"huggingface": json.dumps(info if chance.random() < 0.3 else plain)}
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), self.folder / "train.parquet")
        outside = sorted(path.name for path in self.folder.iterdir())
        try:
            dataset = SOURCES["cifar100"].open(DataOptions(name="cifar100", path=str(self.folder)))
            write_folders(dataset.train.in_memory(), dict(enumerate(dataset.classes)), self.folder / "out")
        except self.allowed:
            pass
        finally:
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            (self.folder / "train.parquet").write_bytes(self.files[self.folder / "train.parquet"])
        assert sorted(path.name for path in self.folder.iterdir()) == outside, "something was written outside"


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
        self.attempt()


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
        file_formats()  # registers the decoder of HEIC, which can also write it
        for ending in sorted(ENDINGS):
            image.save(folder / f"image{ending}")
        self.keep("image.*")

    def read(self):
        for path in self.files:
            decode(str(path), Resize(16))
            inspect(str(path))


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def add(tar, name, content):
    data = pickle.dumps(content, protocol=2)
    entry = tarfile.TarInfo(f"cifar-100-python/{name}")
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


TARGETS = (Config, GridFile, Model, Description, Checkpoint, Report, Parquet, ClassNames, Archive, Idx, Picture)


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


def fuzz_one(name, seconds, seed):
    """One reader, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        counts, findings = fuzz(seconds, seed, folder, [globals()[name]])
    for finding in findings:
        print(json.dumps(finding), flush=True)
    print(f"{name}: {counts[name]} cases, {len(findings)} findings", flush=True)
    return counts[name], len(findings)


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        results = pool.starmap(fuzz_one, [(kind.__name__, seconds, seed) for kind in TARGETS], chunksize=1)
    cases, findings = map(sum, zip(*results, strict=True))
    print(f"{cases} cases, {seconds:.0f} s per reader, seed {seed}: {findings} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
