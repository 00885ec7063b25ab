"""What holds for every method: it learns; without its own term it is the base; bad combinations are refused."""

import json

import pytest
import torch
from etag.experiments.store import create_method, tensors

from etag.core.errors import EtagError
from etag.core.random import Placement
from etag.data.scenario import build_scenario
from etag.engine.engine import Engine
from etag.evaluation.evaluate import judge, predictions_pass
from etag.evaluation.metrics import step_accuracies
from etag.experiments.config import resolve
from etag.methods.registry import METHODS

PAPER = [
    *["fine", "joint", "ewc", "mas", "lwf", "lwm", "il2m", "lucir", "gfr", "podnet", "pass", "etag"],
    *["eewc", "emas", "elwf", "elwm", "eil2m", "elucir", "egfr", "epass", "b0", "b1", "b2", "b3", "b4"],
]

# small enough for seconds, long enough to learn; cosines begin with a scale that lets few steps count
TRAINING = {
    "split": "b4-3x2",
    "model.width": 8,
    "model.head_scale": 8.0,
    "train.epochs": 4,
    "train.base": {"epochs": 8},
    "train.batch_size": 16,
    "train.schedule": "onecycle",
    "train.lr": 3e-3,
}
OWN = {
    "dgr": {
        "train.epochs": 8,
        "method.generator.train": {"epochs": 12, "batch_size": 16, "lr": 1e-3},
        "method.generator.hidden": 64,
    },
    "gc": {"method.feature_passes": 2, "method.generator.train": {"steps": 120, "batch_size": 32, "lr": 3e-3}},
    "bir": {
        "method.feature_passes": 2,
        "method.generator": {"hidden": 64, "latent": 16, "train": {"steps": 120, "batch_size": 32, "lr": 3e-3}},
    },
    "abd": {"train.epochs": 8, "method.generator": {"latent": 32, "train": {"steps": 60, "batch_size": 16}}},
    "fine": {"train.epochs": 8},  # it forgets all but two digits of ten: those it must know well
    "ewc": {"method.weight": 100.0},
    "mas": {"method.weight": 1.0},
    "pass": {"method.l2_reduction": "mean_norm", "method.l2_weight": 1.0, "method.replay_weight": 1.0},
    "gfr": {
        "train.epochs": 10,  # its weights favor old classes: it takes more steps to learn new ones
        "method.generator": {"latent": 16, "hidden": 64, "train": {"epochs": 10, "batch_size": 16, "lr": 1e-3}},
    },
    **{name: {"method.exemplars.per_class": 6} for name in ("il2m", "lucir", "podnet")},
}
DIGITS = {"data": "digits", "data.train_per_class": 36, "data.test_per_class": 20}


def own(name):
    """The settings of what a method is a composition of."""
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
    method.check(scenario.classes_per_task)
    return scenario, preprocess, method


class Course:
    """A method that learns a scenario in this process."""

    def __init__(self, runtime, name, settings, tasks=None):
        given = {"method": name, **TRAINING, **own(name), **settings}
        self.scenario, self.preprocess, self.method = prepare(given)
        self.engine, self.matrix = Engine(runtime), []
        for task in self.scenario.tasks[:tasks]:
            given = self.scenario.given(task, self.method.info.all_data)
            self.method.begin_task(given)
            self.engine.execute(self.method.phases(given))
            self.method.end_task(given)
            known = self.scenario.tasks[: task.index + 1]
            data_pass = predictions_pass(
                known, self.method.solver, self.method.predictor(), self.preprocess, Placement()
            )
            self.matrix.append(judge(self.engine.run_pass(data_pass), known).accuracies)

    @property
    def steps(self):
        return step_accuracies(self.matrix, self.scenario.classes_per_task[: len(self.matrix)], weighted=True)


def test_the_papers_methods_are_there():
    assert set(PAPER) <= set(METHODS)


def test_it_learns_digits(runtime, every_method):
    course = Course(runtime, every_method, DIGITS)
    assert course.matrix[0][0] > 0.5, "four digits, chance is 0.25"
    newest = [row[-1] for row in course.matrix[1:]]
    assert course.steps[-1] > 0.15, "ten digits, chance is 0.1"
    assert max(newest) > 0.3, "some new task is learned"


@pytest.mark.parametrize("name", PAPER)
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
    "gfr": (
        {"method.kd_weight": 0, "method.lambda_ce": 0, "method.batch_norm": "train"},
        "fine",
        {},
    ),
    **{name: ({"method.embedding.weight": 0}, name[1:], {}) for name in PAPER if METHODS[name].is_embedded},
    "etag": ({"method.embedding.weight": 0, "method.guidance": False}, "gfr", {}),
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
    kept, of_base = tensors(one.method), tensors(other.method)
    solver = [key for key in of_base if key.startswith(("solver.backbone", "solver.head"))]
    assert solver
    for key in solver:
        assert torch.equal(kept[key], of_base[key]), key
    assert one.matrix == other.matrix


@pytest.mark.parametrize("name", [name for name in EQUAL if not name.startswith("b")])
def test_with_its_own_term_it_is_not(runtime, name):
    if name in ("il2m",):
        pytest.skip("what it adds is in the predictor")
    _, base, options = EQUAL[name]
    one = Course(runtime, name, DIGITS | SHORT, tasks=2)
    other = Course(runtime, base, DIGITS | SHORT | options, tasks=2)
    kept, of_base = tensors(one.method), tensors(other.method)
    first = "solver.backbone.stages.0.0.0.weight"
    assert not torch.equal(kept[first], of_base[first])


def test_the_ablations_are_the_same_configurations():
    def plain(name, **options):
        return resolve("paper/cifar100-b0-4x25", {"method": name, **options}).plain() | {"method.name": None}

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
    etag = Course(runtime, "etag", DIGITS | SHORT | OWN["gfr"], tasks=2)
    egfr = Course(runtime, "egfr", DIGITS | SHORT | OWN["gfr"] | {"method.guidance": True}, tasks=2)
    kept, other = tensors(etag.method), tensors(egfr.method)
    assert kept.keys() == other.keys()
    assert all(torch.equal(kept[key], other[key]) for key in kept)


# -- bad combinations are refused before training ---------------------------------------------------

BAD = [
    ("lucir", {"method.exemplars.per_class": 0}, "needs exemplars: keep one at least"),
    ("il2m", {"method.exemplars": None}, "exemplars"),
    ("ewc", {"method.exemplars.per_class": 20}, "ewc keeps no exemplars: leave them out, or choose il2m"),
    ("etag", {"method.embedding.views": "jigsaw", "data.size": 15}, "set data.size=16"),
    ("elwf", {"method.embedding.views": "color"}, "need images with 3 channels, but these have 1"),
    ("epass", {"method.embedding.views": "jigsaw"}, "whose own views are rotation"),
    ("ewc", {"split": "b5-5x1"}, "choose a split whose tasks have two classes or more, or method.head=growing"),
    ("etag", {"method.embedding.num_aux": 7}, "3 or 4 are possible here"),
    ("etag", {"method.embedding.views_per_image": 5}, "views_per_image=5 is more than there are: rotation has 4"),
    ("epass", {"method.embedding.views_per_image": 9}, "views_per_image=9 is more than there are: rotation has 4"),
    ("b0", {"method.embedding.views_per_image": 2}, "views_per_image=2 is more than there are: none has 1"),
    ("lwm", {"model.backbone": "mlp"}, "looks at maps, which model.backbone=mlp has not"),
    ("podnet", {"model.backbone": "mlp"}, "looks at maps, which model.backbone=mlp has not"),
    ("lwm", {"method.stage": 4}, "a map of one pixel has no attention"),
    ("fine", {"method.head.per_task": True, "method.exemplars.per_class": 2}, "choose another head than multi"),
    ("il2m", {"method.head.per_task": True}, "method.head"),
    ("lucir", {"method.exemplars.total": 9}, "less than one for each of the 10 classes"),
    ("lwm", {"method.stage": 9}, "this backbone has 4 stages"),
    ("b4", {"method.guidance": True}, "guidance is for the conditional VAE"),
    ("gfr", {"method.generator": "wgn"}, "'cvae', 'wgan', 'prototypes'"),
    ("gfr", {"method.generator.critic": 3}, "unknown option 'method.generator.critic'"),
    ("lucir", {"method.head": "growing"}, "method.head"),
    ("gc", {"method.features": "weights"}, "name it with model.weights, or choose method.features=base"),
    ("bir", {"method.features": "wieghts"}, "'base' or 'weights'"),
    ("egc", {"method.features": "weights", "model.weights": "x"}, "embedding distillation has no place there"),
    ("gc", {"method.samples": 0}, "method.samples"),
    ("abd", {"method.generator.train.steps": None}, "method.generator.train.steps"),
]


@pytest.mark.parametrize(("name", "settings", "said"), BAD)
def test_a_bad_combination_is_refused_with_what_to_change(runtime, name, settings, said):
    with pytest.raises(EtagError) as refused:
        prepare({"method": name, "data": "digits", "split": "b4-3x2", **settings})
    assert said in str(refused.value)
