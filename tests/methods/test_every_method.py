"""What holds for every method: it learns; without its own term it is the base; bad combinations are refused."""

import json

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.random import Placement
from etag.data.scenario import build_scenario
from etag.evaluation.metrics import accuracy_after_each_task
from etag.experiments.config import resolve
from etag.learner.config import create_method
from etag.learner.learner import Learner, LearnOptions
from etag.methods.registry import METHODS

PAPER = [
    *["fine", "joint", "ewc", "mas", "lwf", "lwm", "il2m", "lucir", "gfr", "podnet", "pass", "etag"],
    *["eewc", "emas", "elwf", "elwm", "eil2m", "elucir", "egfr", "epass", "b0", "b1", "b2", "b3", "b4"],
]

# small enough for seconds, long enough to learn; cosines begin with a scale that lets few steps count
TRAINING = {
    "split": "b4-3x2",
    "model.width": 8,
    "method.head.scale": 8.0,
    "train.epochs": 4,
    "train.base": {"epochs": 8},
    "train.batch_size": 16,
    "train.schedule": "onecycle",
    "train.lr": 3e-3,
}
OWN = {
    "fetril": {"method.head_train": {"epochs": 50, "batch_size": 16, "lr": 1e-2, "schedule": "cosine"}},
    "dgr": {
        "train.epochs": 48,
        "method.generator.train": {"epochs": 12, "batch_size": 16, "lr": 1e-3},
        "method.generator.hidden": 64,
    },
    "gc": {"method.features.passes": 2, "method.generator.train": {"steps": 120, "batch_size": 32, "lr": 3e-3}},
    "bir": {
        "method.features.passes": 2,
        "method.generator": {"hidden": 64, "latent": 16, "train": {"steps": 120, "batch_size": 32, "lr": 3e-3}},
    },
    "abd": {"train.epochs": 8, "method.generator": {"latent": 32, "train": {"steps": 60, "batch_size": 16}}},
    "fine": {"train.epochs": 8},  # it forgets all but two digits of ten: those it must know well
    "ewc": {"method.weight": 100.0},
    "mas": {"method.weight": 1.0},
    "pass": {
        "train.epochs": 10,
        "method.l2_reduction": "mean_norm",
        "method.l2_weight": 1.0,
        "method.replay_weight": 1.0,
    },
    "etag": {
        "train.epochs": 10,  # its weights favor old classes: it takes more steps to learn new ones
        "method.generator": {"latent": 16, "hidden": 64, "train": {"epochs": 10, "batch_size": 16, "lr": 1e-3}},
    },
    **{name: {"method.exemplars.per_class": 6} for name in ("il2m", "lucir", "podnet")},
}
DIGITS = {"data": "digits", "data.train_per_class": 36, "data.test_per_class": 20}


def own(name):
    """The settings of a method and of those it derives from."""
    kinds = [cls.name for cls in METHODS[name].__mro__ if "name" in cls.__dict__]
    found = {}
    for kind in reversed(kinds):
        found |= OWN.get(kind, {})
    return {key: value for key, value in found.items() if name != "b4" or "generator" not in key}


def prepare(given):
    """All that happens before the first step is trained."""
    config = resolve(given=given)
    scenario, preprocess = build_scenario(config.data, config.split, config.seed)
    about = {"channels": scenario.channels, "classes": len(scenario.classes)}
    method = create_method(config, Placement(), preprocess, **about)
    method.check(scenario.new_classes_per_task)
    return scenario, preprocess, method


def tensors(method):
    """Everything that a method stores from task to task, by role and name."""
    named = ((role, part.state_dict()) for role, part in method.parts.items())
    return {f"{role}.{name}": value for role, state in named for name, value in state.items()}


class Course:
    """A method that learns a scenario in this process, with the accuracies after each task."""

    def __init__(self, runtime, name, settings, tasks=None):
        given = {"method": name, **TRAINING, **own(name), **settings}
        self.scenario, self.preprocess, self.method = prepare(given)
        learner, self.matrix = Learner(self.method, runtime), []
        for task in self.scenario.tasks[:tasks]:
            names = tuple(self.scenario.classes[task.num_old : task.num_seen])
            known = tuple(self.scenario.tasks[: task.index + 1])
            given = self.scenario.training_task(task, self.method.info.all_data)
            self.matrix.append(learner.learn(given, LearnOptions(names, evaluated=known)).accuracies)

    @property
    def steps(self):
        return accuracy_after_each_task(
            self.matrix, self.scenario.new_classes_per_task[: len(self.matrix)], weighted=True
        )


def test_the_papers_methods_are_there():
    assert set(PAPER) <= set(METHODS)


def test_it_learns_digits(runtime, one_of_each_kind):
    course = Course(runtime, one_of_each_kind, DIGITS)
    assert course.matrix[0][0] > 0.5, "four digits, chance is 0.25"
    newest = [row[-1] for row in course.matrix[1:]]
    assert course.steps[-1] > 0.15, "ten digits, chance is 0.1"
    assert max(newest) > 0.3, "some new task is learned"


def heavy(name):
    """One method learns CIFAR-100 here, the others in `make test-all`."""
    return name if name == "etag" else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [heavy(name) for name in PAPER])
def test_it_learns_three_tasks_of_cifar100(runtime, shared_data, name):
    images = {"data": "cifar100", "data.path": str(shared_data / "cifar100"), "data.size": 16}
    few = {
        "data.train_per_class": 20,
        "data.test_per_class": 10,
        "split": "b4-2x2",
        "train.base": {"epochs": 6},
        "train.epochs": 2,
    }
    course = Course(runtime, name, images | few)
    assert len(course.matrix) == 3
    assert course.matrix[0][0] > 0.3, "four classes, chance is 0.25"
    assert all(torch.isfinite(value).all() for value in tensors(course.method).values() if value.is_floating_point())


# -- its own term at weight 0 is the method without it ---------------------------------------------

EQUAL = {
    "ewc": ({"method.weight": 0}, "fine", {"method.head.per_task": True}),
    "mas": ({"method.weight": 0}, "fine", {"method.head.per_task": True}),
    "lwf": ({"method.weight": 0}, "fine", {"method.head.per_task": True}),
    "lwm": ({"method.gamma": 0, "method.beta": 3}, "lwf", {"method.weight": 3}),
    "il2m": ({"method.rectify": False}, "fine", {"method.exemplars.per_class": 6}),
    "lucir": (
        {"method.weight": 0, "method.ranking_weight": 0, "method.imprint": False},
        "fine",
        {"method.head.kind": "cosine", "method.exemplars.per_class": 6},
    ),
    "gfr": ({"method.lambda_l2": 0, "method.lambda_ce": 0, "method.batch_norm": "train"}, "fine", {}),
    **{name: ({"method.embedding": None}, name[1:], {}) for name in PAPER if METHODS[name].is_e_variant},
    "etag": ({"method.embedding": None, "method.guidance": False}, "gfr", {}),
    "b1": ({}, "gfr", {}),
    "b2": ({}, "gfr", {"method.guidance": True}),
    "b3": ({}, "egfr", {}),
    "b0": ({"method.embedding.views": "rotation"}, "etag", {}),
}
SHORT = {"train.epochs": 1, "train.base": {}, "data.train_per_class": 16}


@pytest.mark.parametrize("name", EQUAL)
def test_without_its_own_term_it_is_the_base(runtime, name):
    without, base, options = EQUAL[name]
    one = Course(runtime, name, DIGITS | SHORT | without, tasks=3)
    other = Course(runtime, base, DIGITS | SHORT | options, tasks=3)
    stored, of_base = tensors(one.method), tensors(other.method)
    solver = [key for key in of_base if key.startswith(("solver.backbone", "solver.head"))]
    assert solver
    for key in solver:
        assert torch.equal(stored[key], of_base[key]), key
    if name in ("etag", "egfr", "b0", "b1", "b2", "b3"):
        assert stored.keys() == of_base.keys()
        assert all(torch.equal(stored[key], of_base[key]) for key in stored), "the generator too"
    assert one.matrix == other.matrix


@pytest.mark.parametrize("name", [name for name in EQUAL if not name.startswith("b")])
def test_with_its_own_term_it_is_not(runtime, name):
    if name in ("il2m",):
        pytest.skip("what it adds is in the prediction rule")
    _, base, options = EQUAL[name]
    one = Course(runtime, name, DIGITS | SHORT, tasks=2)
    other = Course(runtime, base, DIGITS | SHORT | options, tasks=2)
    stored, of_base = tensors(one.method), tensors(other.method)
    first = "solver.backbone.stages.0.0.0.weight"
    assert not torch.equal(stored[first], of_base[first])


def test_the_ablations_are_the_same_configurations():
    def plain(name, **options):
        return resolve("paper/cifar100-b0-4x25", {"method": name, **options}).to_json() | {"method.name": None}

    def without_name(config):
        return json.loads(json.dumps(config)) | {"method": config["method"] | {"name": None}}

    assert without_name(plain("b1")) == without_name(plain("gfr"))
    assert without_name(plain("b3")) == without_name(plain("egfr"))
    assert without_name(plain("b2")) == without_name(plain("gfr", **{"method.guidance": True}))
    assert without_name(plain("etag")) == without_name(plain("egfr", **{"method.guidance": True}))
    assert without_name(plain("b0")) == without_name(plain("etag", **{"method.embedding.views": "none"}))
    assert without_name(plain("b4")) == without_name(
        plain("etag", **{"method.generator": "prototypes", "method.guidance": False})
    )


def test_etag_is_egfr_with_guidance_weight_for_weight(runtime):
    etag = Course(runtime, "etag", DIGITS | SHORT | OWN["etag"], tasks=2)
    egfr = Course(runtime, "egfr", DIGITS | SHORT | OWN["etag"] | {"method.guidance": True}, tasks=2)
    stored, other = tensors(etag.method), tensors(egfr.method)
    assert stored.keys() == other.keys()
    assert all(torch.equal(stored[key], other[key]) for key in stored)


# -- bad combinations are refused before training ---------------------------------------------------

BAD = [
    ("lucir", {"method.exemplars.per_class": 0}, "needs exemplars: store at least one per class"),
    ("il2m", {"method.exemplars": None}, "exemplars"),
    ("ewc", {"method.exemplars.per_class": 20}, "ewc stores no exemplars: leave method.exemplars out"),
    ("etag", {"method.embedding.views": "jigsaw", "data.size": 15}, "set data.size=16"),
    ("elwf", {"method.embedding.views": "color"}, "need images with 3 channels, but these have 1"),
    ("epass", {"method.embedding.views": "jigsaw"}, "whose own views are rotation"),
    ("ewc", {"split": "b5-5x1"}, "choose a split with two or more classes per task, or method.head.per_task=false"),
    ("etag", {"method.embedding.views_per_image": 5}, "views_per_image=5 is too many: rotation has 4 views"),
    ("epass", {"method.embedding.views_per_image": 9}, "views_per_image=9 is too many: rotation has 4 views"),
    ("b0", {"method.embedding.views_per_image": 2}, "views_per_image=2 is too many: none has 1"),
    ("lwm", {"model.backbone": "mlp"}, "lwm needs the feature maps of a convolutional backbone"),
    ("podnet", {"model.backbone": "mlp"}, "podnet needs the feature maps of a convolutional backbone"),
    ("lwm", {"method.stage": 4}, "attention needs a map of more than one pixel"),
    (
        "fine",
        {"method.head.per_task": True, "method.exemplars.per_class": 2},
        "exemplars need a head that old and new classes share: set head.per_task=false",
    ),
    ("il2m", {"method.head.per_task": True}, "does not work with il2m: its tasks share one head"),
    ("lucir", {"method.exemplars.total": 9}, "less than one image for each of the 10 classes"),
    ("lwm", {"method.stage": 9}, "this backbone has 4 stages"),
    ("b4", {"method.guidance": True}, "guidance needs the conditional VAE: set guidance=false with prototypes"),
    ("fetril", {"method.features.original": True}, "leave out method.features.original and method.features.branches"),
    ("fetril", {"method.embedding": {}, "method.features.branches": True}, "the head of fetril is trained with the"),
    ("gfr", {"method.answer": "distances"}, "set generator=gaussians"),
    ("gfr", {"method.generator": "wgn"}, "'cvae', 'wgan', 'gaussians', 'prototypes'"),
    ("b4", {"method.generator.kind": "gaussians", "method.generator.drift.map": "mlp"}, "cannot move covariances"),
    ("b4", {"method.generator.kind": "gaussians", "method.generator.power": 0}, "method.generator.power"),
    ("etag", {"method.generator": "gaussians"}, "set guidance=false with gaussians"),
    ("gfr", {"method.generator.critic": 3}, "unknown option 'method.generator.critic'"),
    ("lucir", {"method.head.kind": "linear"}, "head.kind=linear does not work with lucir: choose cosine"),
    ("gc", {"method.features.source": "weights"}, "set model.weights, or choose method.features.source=base"),
    ("bir", {"method.features.source": "wieghts"}, "'base' or 'weights'"),
    ("gc", {"method.samples": 0}, "method.samples"),
    ("abd", {"method.generator.train.steps": None}, "method.generator.train.steps"),
    ("abd", {"method.head.per_task": True}, "head.per_task=true does not work with abd: its tasks share one head"),
    ("dgr", {"method.head.per_task": True}, "head.per_task=true does not work with dgr: its tasks share one head"),
    ("abd", {"method.head.kind": "proxies"}, "head.kind=proxies does not work with abd: choose linear"),
    ("fine", {"method.head": {"kind": "cosine", "growth": "fixed"}}, "growth=fixed needs one linear head"),
    ("ldc", {"method.drift.map": "matrix"}, "'linear', 'least_squares' or 'mlp'"),
    ("ldc", {"method.drift.ridge": 0}, "method.drift.ridge"),
    ("ldc", {"method.head.kind": "cosine"}, "head.kind=cosine does not work with ldc: choose linear"),
    ("efc", {"method.drift.map": "mlp"}, "drift.map=mlp cannot move covariances: choose linear or least_squares"),
    ("efc", {"method.variant": "efc+"}, "'efc++' or 'efc'"),
    ("efc", {"method.sigma": 0}, "method.sigma"),
    ("efc", {"method.head.growth": "fixed"}, "head.growth=fixed does not work with efc: choose growing"),
    ("efc", {"method.head.per_task": True}, "head.per_task=true does not work with efc: its tasks share one head"),
    ("eefc", {"method.embedding.views": "jigsaw"}, "whose own views are rotation"),
    ("etag", {"method.generator.drift.map": "linear"}, "unknown option 'method.generator.drift'"),
]


@pytest.mark.parametrize(("name", "settings", "message"), BAD)
def test_a_bad_combination_is_refused_with_what_to_change(name, settings, message):
    with pytest.raises(EtagError) as refused:
        prepare({"method": name, "data": "digits", "split": "b4-3x2", **settings})
    assert message in str(refused.value)
