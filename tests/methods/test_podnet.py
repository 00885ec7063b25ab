"""PODNet: the NCA loss on proxies, the two pooled distillations, and the head trained on balanced data."""

import math

import pytest
import torch

from etag.core.outputs import Need
from etag.losses.distillation import pod_spatial
from etag.losses.metric import nca_loss, nca_loss_as_released
from etag.methods.podnet import PodnetOptions
from etag.models.heads import ProxyHead

OPTIONS = {"exemplars": {"per_class": 3}, "head": {"proxies": 2, "scale": 3.0}, "balanced": {"steps": 2}}


@pytest.fixture
def at_second_task(lab, disturb):
    """A laboratory with exemplars whose second task has begun, old and new solvers differing; and its work."""

    def make(**options):
        laboratory = lab("podnet", OPTIONS | options)
        laboratory.learn(0)
        laboratory.begin(1)
        disturb(laboratory.method.solver, scale=0.3)
        return laboratory, laboratory.works(1)

    return make


def test_its_terms_are_those_of_the_paper(at_second_task):
    laboratory, works = at_second_task(spatial=3.0, flat=2.0, margin=0.6)
    phase = works["solver"]
    batch = next(phase.batches.epoch(0))
    terms = {name: value.item() for name, value in phase.module.eval()(batch).items()}
    solver, teacher = laboratory.method.solver, laboratory.method.teacher.network
    need = Need.FEATURE | Need.LOGITS | Need.STAGES
    new, old = solver(batch.inputs, need), teacher(batch.inputs, need)
    factor = math.sqrt(5 / 2)  # seen and new classes
    away = 1 - torch.nn.functional.cosine_similarity(new.feature, old.feature)
    expected = {
        "nca": nca_loss(new.logits, batch.labels, solver.head.scale, 0.6).item(),
        "pod_spatial": 3 * factor * pod_spatial(new.raw_stages, old.raw_stages).item(),
        "pod_flat": 2 * factor * away.mean().item(),
    }
    assert terms == pytest.approx(expected, rel=1e-4)
    assert min(terms.values()) > 0


def test_the_released_loss_is_an_option(at_second_task):
    laboratory, works = at_second_task(released_nca=True)
    phase = works["solver"]
    batch = next(phase.batches.epoch(0))
    logits = laboratory.method.solver.eval()(batch.inputs, Need.LOGITS).logits
    found = phase.module.eval()(batch)["nca"].item()
    assert found == pytest.approx(nca_loss_as_released(logits, batch.labels).item(), rel=1e-5)


def test_a_task_imprints_trains_stores_exemplars_and_balances_the_head(at_second_task, lab):
    _, works = at_second_task()
    assert list(works) == ["imprint", "solver", "exemplars", "balanced"]
    base = lab("podnet", OPTIONS)
    base.begin(0)
    assert list(base.works(0)) == ["solver", "exemplars"]
    _, works = at_second_task(balanced=None)
    assert "balanced" not in works


def test_the_solver_phase_leaves_old_proxies_and_the_balanced_phase_trains_the_head_alone(at_second_task, snapshot):
    laboratory, works = at_second_task()
    before = snapshot(laboratory.method.solver)
    laboratory.engine.train(works["solver"])
    trained = snapshot(laboratory.method.solver)
    assert torch.equal(trained["head.blocks.0.weight"], before["head.blocks.0.weight"])
    labels = torch.cat([batch.labels for batch in works["balanced"].batches.epoch(0)])
    assert set(labels.bincount().tolist()) <= {0, 1, 2, 3}, "exemplars only"
    laboratory.engine.train(works["balanced"])
    after = laboratory.method.solver.state_dict()
    changed = {name for name in after if not torch.equal(after[name], trained[name])}
    assert {name.partition(".")[0] for name in changed} == {"head"}
    assert "head.blocks.0.weight" in changed


def test_its_head_has_ten_proxies_per_class_by_default(lab):
    o = PodnetOptions(name="podnet")
    assert (o.spatial, o.flat, o.margin, o.head.proxies, o.exemplars.per_class) == (3.0, 1.0, 0.6, 10, 20)
    laboratory = lab("podnet")
    laboratory.begin(0)
    assert type(laboratory.method.solver.head) is ProxyHead
    assert laboratory.method.solver.head.weight.shape[0] == 30
