"""The head, trained once more on features alone."""

import pytest
import torch

REFIT = {"refit": {"steps": 4, "batch_size": 8, "lr": 1e-2}}


@pytest.fixture
def begun(lab, disturb):
    laboratory = lab("gfr", REFIT)
    for index in (0, 1):
        laboratory.begin(index)
        for part in laboratory.method.parts().values():
            disturb(part, key=index)
    return laboratory


def test_it_comes_after_the_solver_of_later_tasks_and_before_the_generator(lab, begun):
    assert list(begun.works(1)) == ["solver", "features", "head", "generator"]
    first = lab("gfr", REFIT)
    first.begin(0)
    assert "head" not in first.works(0)


def test_its_losses_are_those_of_equation_5_on_the_task_features(naive, begun):
    method, task = begun.method, begun.task(1)
    batch = next(begun.works(1)["head"].batches.epoch(0))
    with torch.no_grad():
        terms = begun.works(1)["head"].module(batch)
        labels, made = method.replay.made(batch, task, batch.total)
    head, seen = method.solver.head, range(task.seen)
    new = naive.cross_entropy(naive.head(head, batch.inputs), batch.labels.tolist(), seen)
    old = naive.cross_entropy(naive.head(head, made), labels.tolist(), seen)
    assert terms["ce"].item() == pytest.approx(new, rel=1e-5)
    assert terms["replay"].item() == pytest.approx(task.old / task.new * old, rel=1e-5)
    assert set(labels.tolist()) <= set(range(task.old))


def test_only_the_head_is_trained(begun):
    phase = begun.works(1)["head"]
    solver = begun.method.solver
    before = {name: value.clone() for name, value in solver.state_dict().items()}
    begun.engine.train(phase)
    changed = {name for name, value in solver.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)
