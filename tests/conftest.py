"""Fixtures for all tests: the real data, a small method on its engine (`lab`), and the paper's formulas (`naive`)."""

import math
import os
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from lightning_fabric import Fabric

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.learner.learner import Learner
from etag.methods.base import Context
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions

# the same examples in every run, and no time limit for slow machines
settings.register_profile("etag", deadline=None, derandomize=True, database=None)
settings.load_profile("etag")

os.environ["ETAG_PRECISION"] = "32-true"  # results are compared to the last bit; commands inherit it

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def skip_unless_required(variable, reason):
    """Skip the test because something is missing here; fail it where the environment variable is set to 1.

    The variable is ETAG_REQUIRE_DATA or ETAG_REQUIRE_BROWSER; `.ci/run` sets both.
    """
    if os.environ.get(variable) == "1":
        pytest.fail(f"{reason} ({variable}=1)")
    pytest.skip(f"{reason} (set {variable}=1 to make this a failure)")


@pytest.fixture(scope="session")
def shared_data():
    """The folder with the real data sets."""
    if not SHARED_DATA.is_dir():
        skip_unless_required("ETAG_REQUIRE_DATA", f"there are no data sets in {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def runtime():
    """One process on the CPU."""
    return Runtime(Fabric(accelerator="cpu", devices=1))


# variants run the code of another method again: these are marked as slow
VARIANTS = [
    *["efine", "ejoint", "epodnet", "edgr", "ebir", "egc", "eabd", "emas", "eil2m", "eewc", "elwf", "elwm", "epass"],
    *["b0", "b1", "b2", "b3", "tag", "eldc", "eefc", "ncm", "slda", "ranpac"],
]
EVERY_METHOD = [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in METHODS]


# long tests take one of each kind in `make test`: distillation, exemplars, generated features, generated images,
# closed form, statistics that follow the backbone
OF_EACH_KIND = ("lwf", "lucir", "etag", "dgr", "ridge", "efc")


@pytest.fixture(params=EVERY_METHOD)
def every_method(request):
    """The name of each method in turn."""
    return request.param


@pytest.fixture(
    params=[name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def one_of_each_kind(request):
    """The name of each method in turn: in `make test` one of each kind, in `make test-all` every method."""
    return request.param


# -- a small method on its engine ------------------------------------------------------------------


@cache
def digits(split, seed=0, train=8, test=4):
    data = DataOptions(name="digits", train_per_class=train, test_per_class=test)
    return build_scenario(data, split, seed)


SMALL_STEPS = {"steps": 3, "batch_size": 8}
SMALL_OPTIONS = {
    "etag": {"generator": {"latent": 5, "hidden": 16, "feature_passes": 2, "train": {"epochs": 1, "batch_size": 12}}},
    "gc": {"features": {"passes": 2}, "generator": {"latent": 3, "hidden": 8, "train": SMALL_STEPS}},
    "bir": {"features": {"passes": 2}, "generator": {"latent": 3, "hidden": 10, "train": SMALL_STEPS}},
    "abd": {"generator": {"latent": 6, "train": SMALL_STEPS}},
    "ldc": {"drift": {"passes": 2, "train": SMALL_STEPS}},
    "efc": {"rebalance": {"feature_passes": 2, "train": {"epochs": 2, "batch_size": 12}}},
}


class Lab:
    """A method with networks of width 4 on a few digits, and the engine that trains it."""

    def __init__(self, runtime, name, options, split="b3-2x2", seed=0, images=8, **train):
        self.scenario, self.preprocess = digits(split, train=images)
        self.training = TrainOptions.model_validate({"epochs": 1, "batch_size": 12} | train)
        self.context = Context(
            channels=self.scenario.channels,
            size=self.scenario.size,
            classes=len(self.scenario.classes),
            stream=Stream.root(seed),
            placement=Placement(),
            model=ModelOptions(width=4),
            train=self.training,
            preprocess=self.preprocess,
        )
        cls, options = METHODS[name], {"name": name, **options}
        for kind, small in SMALL_OPTIONS.items():
            if issubclass(cls, METHODS[kind]) and name != "b4":
                groups = {key: small[key] | options.get(key, {}) for key in small.keys() & {"generator"}}
                options = small | options | groups
        self.method = cls(cls.Options.model_validate(options), self.context)
        self.engine = Engine(runtime)

    @property
    def learner(self):
        """A learner for the method and the engine as they are now; it saves nothing."""
        return Learner(self.method, self.engine.runtime, engine=self.engine)

    def task(self, index):
        """The task with the images that the method may see."""
        task = self.scenario.tasks[index]
        return self.scenario.training_task(task, self.method.info.all_data)

    def begin(self, *indices):
        """Begin tasks without training."""
        for index in indices:
            self.method.begin_task(self.task(index))

    def learn(self, *indices):
        """Train whole tasks with the engine."""
        for index in indices:
            self.learner.train(self.task(index))

    def works(self, index):
        """All phases and data passes of a task that has begun, by name; only the passes are executed."""
        plan, works, result = self.method.phases(self.task(index)), [], None
        while True:
            try:
                works.append(plan.send(result))
            except StopIteration:
                return {work.name: work for work in works}
            result = self.engine.run_pass(works[-1]) if hasattr(works[-1], "reduce") else None


@pytest.fixture
def lab(runtime):
    """Create a small method and its engine: lab("etag", {options}, split=..., **train_options)."""
    return lambda name="etag", options=None, **rest: Lab(runtime, name, options or {}, **rest)


@pytest.fixture(scope="session")
def tiny_scenario():
    """A few digits, cut into tasks: tiny_scenario(split) -> scenario, preprocess."""
    return digits


@pytest.fixture(scope="session")
def disturb():
    """Change all weights (and BatchNorm statistics) a little, each by noise that depends on its name alone."""

    def change(module, key="disturbed", scale=0.1):
        with torch.no_grad():
            for name, value in module.state_dict().items():
                if value.is_floating_point():
                    noise = torch.randn(value.shape, generator=Stream.root(0).torch_generator(key, name))
                    value.add_(scale * (noise.abs() if name.endswith("running_var") else noise))
        return module

    return change


@pytest.fixture(scope="session")
def snapshot():
    """Copy a module's state, to be compared later: snapshot(module) -> {name: tensor}."""
    return lambda module: deepcopy(module.state_dict())


# -- formulas that use nothing of the code under test: float64, one number at a time --------------


class Naive:
    """The formulas of the paper, in plain Python."""

    @staticmethod
    def rows(values):
        return np.asarray(values.detach() if torch.is_tensor(values) else values, dtype=np.float64).tolist()

    @staticmethod
    def log_softmax(row):
        top = max(row)
        log_sum = top + math.log(sum(math.exp(value - top) for value in row))
        return [value - log_sum for value in row]

    @classmethod
    def cross_entropy(cls, logits, labels, outputs=None):
        """Mean over rows of -log p(label); `outputs` are those that compete."""
        total = 0.0
        for row, label in zip(cls.rows(logits), labels, strict=True):
            competing = list(range(len(row))) if outputs is None else list(outputs)
            scores = cls.log_softmax([row[output] for output in competing])
            total -= scores[competing.index(int(label))]
        return total / len(labels)

    @classmethod
    def divergence(cls, student, teacher, tau):
        """tau^2 * sum of p_old (log p_old - log p_new), over the teacher's outputs, divided by the rows."""
        total = 0.0
        for new, old in zip(cls.rows(student), cls.rows(teacher), strict=True):
            log_new = cls.log_softmax([value / tau for value in new[: len(old)]])
            log_old = cls.log_softmax([value / tau for value in old])
            total += sum(math.exp(p) * (p - q) for p, q in zip(log_old, log_new, strict=True))
        return tau**2 * total / len(teacher)

    @classmethod
    def squares(cls, left, right):
        """Per row: the squared distance."""
        pairs = zip(cls.rows(left), cls.rows(right), strict=True)
        return [sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for x, y in pairs]

    @classmethod
    def prior_divergence(cls, mean, log_variance):
        """Mean over rows of KL(N(mean, variance) || N(0, 1)), summed over the code."""
        total, rows = 0.0, list(zip(cls.rows(mean), cls.rows(log_variance), strict=True))
        for center, spread in rows:
            total += sum((math.exp(s) + m * m - 1 - s) / 2 for m, s in zip(center, spread, strict=True))
        return total / len(rows)

    # networks of plain layers, as matrices

    @staticmethod
    def matrix(*tensors):
        return np.concatenate([tensor.detach().double().numpy() for tensor in tensors])

    @classmethod
    def linear(cls, layer, x):
        return x @ cls.matrix(layer.weight).T + cls.matrix(layer.bias)

    @classmethod
    def head(cls, head, features):
        """Logits of a head in blocks."""
        weight, bias = (cls.matrix(*(getattr(block, part) for block in head.blocks)) for part in ("weight", "bias"))
        return np.asarray(features) @ weight.T + bias

    @classmethod
    def conditional(cls, layer, x, labels):
        """A layer on [x, one-hot(label)]."""
        rows = cls.matrix(layer.rows)
        weight = np.hstack([cls.matrix(layer.linear.weight), rows.T])
        inputs = np.hstack([x, np.eye(len(rows))[np.asarray(labels)]])
        return inputs @ weight.T + cls.matrix(layer.linear.bias)

    @classmethod
    def encode(cls, vae, features, labels):
        hidden = np.maximum(cls.conditional(vae.encoder_in, np.asarray(features, np.float64), labels), 0)
        hidden = np.maximum(cls.linear(vae.encoder, hidden), 0)
        return cls.linear(vae.mean, hidden), cls.linear(vae.log_variance, hidden)

    @classmethod
    def decode(cls, vae, codes, labels):
        hidden = np.maximum(cls.conditional(vae.decoder_in, np.asarray(codes, np.float64), labels), 0)
        return np.maximum(cls.linear(vae.decoder_out, np.maximum(cls.linear(vae.decoder, hidden), 0)), 0)

    @staticmethod
    def outputs_in(scope, task, head):
        """The outputs that compete in a cross-entropy, one by one."""
        ranges = {"seen": (0, task.num_seen), "new": (task.num_old, task.num_seen), "old": (0, task.num_old)}
        return list(range(*ranges.get(scope, (0, sum(len(block.weight) for block in head.blocks)))))


@pytest.fixture(scope="session")
def naive():
    """The paper's formulas in plain Python."""
    return Naive
