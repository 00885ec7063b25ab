"""Lucir: a cosine head, the less-forget constraint, and the margin between old images and new classes."""

import math

import pytest
import torch

from etag.core.outputs import Need
from etag.methods.lucir import LucirOptions
from etag.models.heads import CosineHead

OPTIONS = {"exemplars": {"per_class": 3}, "head": {"scale": 4.0}}


@pytest.fixture
def at_second_task(lab, disturb):
    """A laboratory with exemplars whose second task has begun, old and new solvers differing; its solver phase."""

    def make(**options):
        laboratory = lab("lucir", OPTIONS | options, batch_size=25, drop_last=False)
        laboratory.learn(0)
        laboratory.begin(1)
        disturb(laboratory.method.solver, scale=0.3)
        return laboratory, laboratory.works(1)["solver"]

    return make


def test_its_terms_are_those_of_the_paper(at_second_task, naive):
    laboratory, phase = at_second_task(weight=5.0, margin=0.5, hardest=1)
    batch = next(phase.batches.epoch(0))
    assert batch.labels.bincount().tolist() == [3, 3, 3, 8, 8], "exemplars and new images"
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    solver, teacher = laboratory.method.solver, laboratory.method.teacher.network
    new, old = solver(batch.inputs, Need.FEATURE | Need.LOGITS), teacher(batch.inputs, Need.FEATURE)
    away = 1 - torch.nn.functional.cosine_similarity(new.feature, old.feature)
    cosines = (new.logits / solver.head.scale).tolist()
    # every old image against the new class whose cosine is highest
    gaps = [
        max(0.0, 0.5 - row[label] + max(row[3:]))
        for row, label in zip(cosines, batch.labels.tolist(), strict=True)
        if label < 3
    ]
    assert terms == pytest.approx(
        {
            "ce": naive.cross_entropy(new.logits, batch.labels),
            "less_forget": 5 * math.sqrt(3 / 2) * away.mean().item(),
            "ranking": sum(gaps) / len(gaps),
        },
        rel=1e-3,
    )


def test_the_base_task_is_cross_entropy_of_scaled_cosines(lab):
    laboratory = lab("lucir", OPTIONS)
    laboratory.begin(0)
    assert type(laboratory.method.solver.head) is CosineHead
    phase = laboratory.works(0)["solver"]
    assert set(phase.module(next(phase.batches.epoch(0)))) == {"ce"}
    assert list(laboratory.works(0)) == ["solver", "exemplars"]


def test_old_rows_of_the_head_are_frozen_and_the_scale_is_trained(at_second_task, snapshot):
    laboratory, phase = at_second_task()
    before = snapshot(laboratory.method.solver.head)
    laboratory.engine.train(phase)
    after = laboratory.method.solver.head.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"blocks.1.weight", "scale"}


def test_a_task_imprints_trains_and_stores_exemplars(at_second_task):
    laboratory, _ = at_second_task()
    assert list(laboratory.works(1)) == ["imprint", "solver", "exemplars"]
    laboratory.learn(2)
    assert laboratory.method.memory.labels.bincount(minlength=7).tolist()[:3] == [3, 3, 3]


def test_features_may_be_negative(lab):
    assert lab("lucir", OPTIONS).method.solver.backbone.signed


def test_its_defaults():
    o = LucirOptions(name="lucir")
    assert (o.weight, o.ranking_weight, o.margin, o.hardest, o.imprint) == (5.0, 1.0, 0.5, 2, True)
    assert (o.exemplars.per_class, o.exemplars.selection) == (20, "herding")
