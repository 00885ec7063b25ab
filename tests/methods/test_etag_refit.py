"""The head, trained once more on features alone (`refit`)."""

import pytest
import torch

REFIT = {"refit": {"steps": 4, "batch_size": 8, "lr": 1e-2}}


@pytest.fixture
def begun(lab, disturb):
    """A laboratory whose second task has begun, with networks that are no longer as they were built."""

    def make(name="gfr", tasks=2, **options):
        laboratory = lab(name, REFIT | options)
        if name == "b4":
            laboratory.learn(*range(tasks - 1))  # prototypes exist only after training
            laboratory.begin(tasks - 1)
            return laboratory
        for index in range(tasks):
            laboratory.begin(index)
            for part in laboratory.method.parts.values():
                disturb(part, key=index)
        return laboratory

    return make


def naive_terms(naive, laboratory, batch, weight):
    """Eq. (5) on features: cross-entropies over all seen classes."""
    method, task = laboratory.method, laboratory.task(1)
    labels, generated = method.generator.replay(batch, task, batch.total)
    assert set(labels.tolist()) <= set(range(task.num_old))
    head, seen = method.solver.head, range(task.num_seen)
    new = naive.cross_entropy(naive.head(head, batch.inputs), batch.labels.tolist(), seen)
    old = naive.cross_entropy(naive.head(head, generated), labels.tolist(), seen)
    return {"ce": new, "replay": weight * old}


def computed(laboratory):
    phase = laboratory.works(1)["head"]
    batch = next(phase.batches.epoch(0))
    with torch.no_grad():
        return batch, {name: value.item() for name, value in phase.module(batch).items()}


def test_it_comes_after_the_solver_of_later_tasks_and_before_the_generator(begun):
    assert list(begun().works(1)) == ["solver", "features", "head", "generator"]
    assert "head" not in begun(tasks=1).works(0)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 3 / 2),  # three old classes, two new ones
        ({"lambda_ce": 4.0}, 4.0),
        ({"lambda_ce": 0.5}, 0.5),
        ({"fidelity": {"ratio": "integer"}}, 1.0),  # 3 // 2 + 1 - 1
    ],
    ids=str,
)
def test_its_losses_are_those_of_equation_5_on_the_features_of_the_task(naive, begun, options, weight):
    laboratory = begun(**options)
    batch, terms = computed(laboratory)
    assert terms == pytest.approx(naive_terms(naive, laboratory, batch, weight), rel=1e-5)
    assert min(terms.values()) > 1e-3


def test_only_the_head_is_trained(begun):
    laboratory = begun()
    phase, solver = laboratory.works(1)["head"], laboratory.method.solver
    before = {name: value.clone() for name, value in solver.state_dict().items()}
    laboratory.engine.train(phase)
    changed = {name for name, value in solver.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)


def test_it_works_with_prototypes(naive, begun):
    laboratory = begun("b4")
    assert list(laboratory.works(1)) == ["solver", "features", "head"]
    batch, terms = computed(laboratory)
    assert terms == pytest.approx(naive_terms(naive, laboratory, batch, 3 / 2), rel=1e-5)


def test_it_works_with_prototypes_through_the_engine(lab):
    laboratory = lab("b4", REFIT)
    laboratory.learn(0, 1, 2)
    assert laboratory.method.generator.network.means.shape[0] == 7


@pytest.mark.parametrize("kind", ["cvae", "wgan"])
def test_it_follows_the_last_task_though_the_generator_does_not(lab, snapshot, kind):
    generator = {"kind": kind, "last_task": False, "train": {"steps": 2, "batch_size": 8}}
    refitted, plain = (lab("gfr", {"generator": generator} | refit) for refit in (REFIT, {}))
    for laboratory in (refitted, plain):
        laboratory.learn(0, 1)
        laboratory.begin(2)
    assert list(refitted.works(2)) == ["solver", "features", "head"]
    assert list(plain.works(2)) == ["solver"]
    before = snapshot(refitted.method.generator.network)
    refitted.engine.execute(refitted.method.phases(refitted.task(2)))
    after = refitted.method.generator.network.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_a_task_with_it_ends_with_another_head_and_the_same_backbone(lab, snapshot):
    def learned(options):
        laboratory = lab("gfr", options)
        laboratory.learn(0)
        laboratory.begin(1)
        for name in ("solver", "head") if options else ("solver",):
            laboratory.engine.train(laboratory.works(1)[name])
        return snapshot(laboratory.method.solver)

    refitted, plain = learned(REFIT), learned({})
    different = {name for name, value in plain.items() if not torch.equal(value, refitted[name])}
    assert different == {name for name in plain if name.startswith("head.")}
