"""Real processes are killed, and every command, given again, must end as its uninterrupted twin. `make crash-test` runs
it: harness.py [KILLS].

A process is killed just before a change of a file (an audit hook of Python reports every one, whoever makes it: a new
write cannot be forgotten), or before a training step or a batch of a data pass.
"""

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import torch

from etag.cli import main as etag
from etag.engine import training
from etag.engine.engine import Engine
from etag.experiments.run_directory import RunDirectory
from etag.learner.model_directory import ModelDirectory

METHODS = (
    "etag",
    "elucir",
    "lwm",
    "podnet",
    "abd",
    "dgr",
    "gc",
    "bir",
    "eewc",
    "ridge",
    "fecam",
    "fetril",
    "ldc",
    "efc",
)
RUN = {
    "split": "b4-3x2",
    "data.train_per_class": 30,
    "data.test_per_class": 10,
    "model.width": 4,
    "train.epochs": 4,
    "train.batch_size": 8,
    "runtime.checkpoint_seconds": 0,
}
FEATURE_GENERATOR = {"method.generator.train.epochs": 2, "method.generator.feature_passes": 2}
OWN = {
    "etag": FEATURE_GENERATOR | {"evaluation.features": "every"},
    "podnet": {"method.balanced.batch_size": 8},
    "abd": {"method.generator": {"latent": 8, "train": {"steps": 12, "batch_size": 8}}},
    "dgr": {"method.generator.train.epochs": 2},
    "gc": {"method.features.passes": 1, "method.generator.train.steps": 12},
    "bir": {"method.features.passes": 1, "method.generator": {"hidden": 16, "train": {"steps": 12, "batch_size": 8}}},
    "fetril": {"method.head_train": {"epochs": 2, "batch_size": 8}},
    # checkpoints at the ends of phases only: results of passes wait for them
    "ldc": {"method.drift": {"passes": 2, "train": {"steps": 12, "batch_size": 8}}, "runtime.checkpoint_seconds": 300},
    "fecam": {"runtime.checkpoint_seconds": 300},
    "efc": {"method.rebalance": {"feature_passes": 2, "train": {"epochs": 2, "batch_size": 8}}},
}
LESSON = {
    "data.size": 8,
    "model.width": 4,
    "train.batch_size": 16,
    "train.steps": 12,
    "train.base": {"steps": 12},
    "method.generator.train.steps": 12,
    "method.generator.feature_passes": 1,
    "method.refit.steps": 12,
    "runtime.checkpoint_seconds": 0,
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")


def words(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]


# -- one process -----------------------------------------------------------------------------------------------------


class Failpoints:
    """Counts the places that a process reaches, writes their names to a file, and kills the process at one of them."""

    def __init__(self, root, log, kill_at):
        self.root, self.kill_at, self.count = f"{root}{os.sep}", kill_at, 0
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.owner = os.getpid()  # decoding workers are not killed
        sys.addaudithook(self.on_event)

    def reach(self, place):
        if os.getpid() != self.owner:
            return
        self.count += 1
        os.write(self.log, f"{place}\n".encode())
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_event(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(flags, int) and flags & WRITING):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(self.root):
            name = os.path.relpath(os.fspath(path), self.root)
            if not name.endswith(".lock"):
                self.reach(f"before {event} of {shortened(name)}")


def shortened(name):
    """A path without numbers and checksums, to count what is the same place."""
    name = re.sub(r"[0-9a-f]{32}", "TENSORS", name)
    return re.sub(r"\d+", "N", name)


def before(owner, name, points, place):
    call = getattr(owner, name)

    def wrapped(*arguments, **more):
        points.reach(place)
        return call(*arguments, **more)

    setattr(owner, name, wrapped)


def execute(root, command, kill_at=None):
    """Run a command in a process of its own; returns (whether it ended, the places that it reached). Any end but a good
    one or our kill is an error."""
    log, output = Path(f"{root}.places"), Path(f"{root}.output")
    child = os.fork()  # torch is imported already: a process starts at once
    if child == 0:
        try:
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.setpgid(0, 0)
            torch.set_num_threads(1)
            points = Failpoints(root, log, kill_at)
            before(training.Training, "_step", points, "before a training step")
            before(Engine, "run_pass", points, "before a data pass")
            sys.argv = ["etag", *map(str, command)]
            etag()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code or 0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(99)
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # decoding workers that the killed process left
    code, places = os.waitstatus_to_exitcode(status), log.read_text().splitlines()
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"etag {' '.join(map(str, command))} ended with {code}:\n{output.read_text()}")
    return code == 0, places


# -- what must be equal ----------------------------------------------------------------------------------------------


def model_state(path):
    """Every tensor and every fact of the model; checks that nothing is left that no version uses."""
    directory = ModelDirectory(path)
    method, about = directory.load_method()
    directory.load_classifier()
    assert not directory.unfinished.exists(), "checkpoints are left"
    used = set()
    for number in directory.versions:
        content = json.loads((Path(path) / "versions" / str(number) / "about.json").read_text())
        used |= {name for part in content["tensors"].values() for name in part.values()}
    assert {file.stem for file in (Path(path) / "tensors").iterdir()} == used, "tensor files are left"
    leftover = [str(file) for file in Path(path).rglob("*") if file.name.endswith(".part")]
    assert not leftover, f"{leftover} is left"
    tensors = {
        f"{role}.{key}": value for role, part in method.parts.items() for key, value in part.state_dict().items()
    }
    facts = about.to_json()
    for lesson in facts["history"]:
        lesson.pop("seconds"), lesson.pop("test_seconds"), lesson.pop("date")
    facts.pop("parent")  # a number that depends on versions that were never used
    return tensors, facts, len(directory.versions)


def run_state(path):
    """The model of a run, its metrics, and every logged step."""
    directory = RunDirectory(Path(path))
    metrics = json.loads(directory.metrics.read_text())
    lines = [json.loads(line) for line in directory.steps.read_text().splitlines()]
    logged = [(line["task"], line["phase"], line["step"], line["terms"]) for line in lines]
    features = sorted(file.name for file in directory.features.iterdir())
    return *model_state(path), metrics["accuracy_matrix"], metrics["confusion"], logged, features


def assert_same(state, twin):
    (tensors, *facts), (twin_tensors, *twin_facts) = state, twin
    assert facts == twin_facts, "facts differ"
    assert tensors.keys() == twin_tensors.keys()
    different = [name for name, value in tensors.items() if not torch.equal(value, twin_tensors[name])]
    assert not different, f"{different} differ"


# -- commands --------------------------------------------------------------------------------------------------------


def digits(folder, numbers, first, count=15):
    """Images of handwritten digits, one sub-folder per class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    for digit in numbers:
        home = folder / f"digit {digit}"
        home.mkdir(parents=True)
        for place, row in enumerate(images[labels == digit][first : first + count]):
            Image.fromarray((row.reshape(8, 8) * 15.9).astype("uint8")).save(home / f"{place:03}.png")
    return folder


class Case:
    """A command on a directory that is prepared by other commands; `again` is what is given after a kill."""

    def __init__(self, name, folder, command, state, prepared=(), again=None, settled=None):
        self.name, self.folder, self.command, self.state = name, folder, command, state
        self.prepared, self.again, self.settled = prepared, again or command, settled

    def start(self, name):
        """A fresh directory, as it is before the command."""
        root = self.folder / f"{self.name}-{name}" / "model"
        source = self.folder / f"{self.name}-prepared" / "model"
        if self.prepared and not source.exists():
            source.parent.mkdir(parents=True)
            for command in self.prepared:
                assert execute(source, command(source))[0]
        root.parent.mkdir(parents=True)
        if self.prepared:
            shutil.copytree(source, root)
        return root

    def whole(self):
        """The state after an uninterrupted command, and the places that it reached."""
        root = self.start("twin")
        ended, places = execute(root, self.command(root))
        assert ended
        return self.state(root), places

    def one_kill_at_each(self, points, twin):
        """A fresh directory for each kill. Returns the places."""
        reached = []
        for point in points:
            root = self.start(f"at-{point}")
            ended, places = execute(root, self.command(root), point)
            if not ended:
                reached.append(places[-1])
                if self.settled and self.settled(root):
                    with ModelDirectory(root).locked():
                        pass  # the next command that changes the model completes what was left undone
                else:
                    assert execute(root, self.again(root))[0]
            assert_same(self.state(root), twin)
            shutil.rmtree(root.parent)
        return reached

    def many_kills(self, kills, chance, twin, length):
        """Kills again and again in one directory until there were so many. Returns the places."""
        reached, number = [], 0
        while len(reached) < kills:
            number += 1
            root, ended = self.start(f"run-{number}"), False
            while not ended:
                point = chance.randrange(1, max(2, length // 3)) if len(reached) < kills else None
                ended, places = execute(root, self.again(root), point)
                reached += [] if ended else [places[-1]]
            assert_same(self.state(root), twin)
            shutil.rmtree(root.parent)
        return reached


def cases(folder):
    """Every command that changes a model, by name."""
    images = folder / "images"
    first, second = digits(images / "first", (0, 1, 2), 0), digits(images / "second", (3, 4), 0)
    more = digits(images / "more", (1,), 30)

    def learn(source, *options):
        return lambda root: ["learn", root, source, *options]

    def run(method, *options):
        return lambda root: [
            "run",
            "digits",
            "--method",
            method,
            "--out",
            root,
            *words(RUN | OWN.get(method, {})),
            *options,
        ]

    grid, settings = folder / "grid.yaml", {key: value for key, value in RUN.items() if key != "split"}
    content = {"recipe": "digits", "methods": ["fine", "lwf"], "splits": ["b4-1x2"], "seeds": [0], "settings": settings}
    grid.write_text(json.dumps(content))

    def bench(root):
        return ["bench", grid, "--jobs", "1", "--store", root / "store", "--results", root / "results"]

    base, later = (
        learn(first, *words(LESSON)),
        learn(second, *words({"train.steps": 12, "runtime.checkpoint_seconds": 0})),
    )
    frozen = {"data.size": 8, "model.width": 4, "train.batch_size": 16, "train.steps": 12, "train.base": {"steps": 12}}
    ridge = ("--method", "ridge", "--from-scratch", *words(frozen | {"runtime.checkpoint_seconds": 0}))
    update = ("--update", *words({"runtime.checkpoint_seconds": 0}))
    known = [base, later]
    return {
        **{method: Case(method, folder, run(method), run_state) for method in METHODS},
        "learn": Case("learn", folder, later, model_state, [base], settled=lesson_count(2)),
        # features of a frozen backbone are stored during the lesson, and deleted with it
        "learn-ridge": Case("learn-ridge", folder, later, model_state, [learn(first, *ridge)], settled=lesson_count(2)),
        "first-learn": Case("first-learn", folder, base, model_state, settled=lesson_count(1)),
        "update": Case("update", folder, learn(more, *update), model_state, known, settled=lesson_count(3)),
        "forget": Case("forget", folder, lambda root: ["forget", root, "digit 1"], model_state, known),
        "rollback": Case(
            "rollback", folder, lambda root: ["models", "rollback", root], model_state, known, settled=lesson_count(1)
        ),
        "rename": Case(
            "rename",
            folder,
            lambda root: ["rename", root, "digit 1", "one"],
            model_state,
            known,
            settled=lesson_count(3),
        ),
        "strip": Case("strip", folder, lambda root: ["models", "strip", root], stripped_state, known),
        "bench": Case("bench", folder, bench, bench_state),
        "restart": Case(
            "restart", folder, run("fine", "--restart"), run_state, [run("lwf")], again=run("fine", "--restart")
        ),
    }


def bench_state(path):
    """The results of a grid's runs."""
    metrics = sorted((Path(path) / "results").rglob("metrics.json"))
    assert len(metrics) == 2
    return {}, [(file.parent.name, json.loads(file.read_text())["accuracy_matrix"]) for file in metrics]


def lesson_count(count):
    """Whether the command had taken effect when it was killed: giving it again would do it twice."""

    def took_effect(root):
        directory = ModelDirectory(root)
        return directory.exists() and len(directory.about().history) == count

    return took_effect


def stripped_state(path):
    directory = ModelDirectory(path)
    classifier, about = directory.load_classifier()
    assert directory.sizes()["learner"] == 0
    assert directory.versions == [directory.version]
    return classifier.state_dict(), about.classes


def crash(name, folder, kills, seed):
    """Kill one kind of command; returns the places of the kills."""
    case = cases(Path(folder))[name]
    twin, places = case.whole()
    chance = random.Random(f"{seed} {name}")
    if name in METHODS:
        reached = case.many_kills(kills, chance, twin, len(places))
    else:
        changes = [number for number, place in enumerate(places, start=1) if "training step" not in place]
        reached = case.one_kill_at_each(
            changes if len(changes) <= kills else sorted(chance.sample(changes, kills)), twin
        )
    print(f"{name}: {len(reached)} kills, every result as its uninterrupted twin's", flush=True)
    return reached


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 240
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "names").mkdir()
        names = list(cases(Path(folder) / "names"))
        for name in names:
            (Path(folder) / name).mkdir()
        some = {name: -(-kills // len(names)) for name in METHODS} | {"restart": 16, "bench": 8, "first-learn": 16}
        jobs = [(name, Path(folder) / name, some.get(name, 40), 0) for name in names]
        # not a Pool: its daemons may not have children, and the commands have some
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            results = list(pool.map(crash, *zip(*jobs, strict=True)))
    counts = Counter(place for places in results for place in places)
    for place, count in sorted(counts.items()):
        print(f"{count:5} {place}")
    print(f"{sum(counts.values())} kills at {len(counts)} places: every result as if there had been none")


if __name__ == "__main__":
    main()
