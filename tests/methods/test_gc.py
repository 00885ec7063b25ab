"""GC: a frozen backbone, classes that share no parameters, and predictions by likelihood."""

from dataclasses import replace

import pytest
import torch

from etag.core.errors import EtagError
from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.work import ParameterGroup, Phase
from etag.data.batches import ClassBatches
from etag.engine.engine import Engine
from etag.methods.gc import ClassVAEObjective
from etag.models.class_vaes import ClassVAEs
from etag.models.feature_scale import FeatureScale
from etag.models.initial import build
from etag.models.modules import Modules
from etag.models.prediction import LikelihoodRule


def test_the_backbone_is_trained_once_and_classes_share_nothing(lab, snapshot):
    laboratory = lab("gc")
    laboratory.learn(0)
    method = laboratory.method
    solver, scale, first = snapshot(method.solver), snapshot(method.scale), snapshot(method.class_vaes[0])
    laboratory.learn(1, 2)
    for part, before in ((method.solver, solver), (method.scale, scale), (method.class_vaes[0], first)):
        after = part.state_dict()
        assert after.keys() == before.keys(), "not even a row is added"
        assert all(torch.equal(after[name], before[name]) for name in before)


def test_each_class_learns_as_if_it_were_alone(lab):
    """Leaving one class out of a task changes nothing for another."""
    laboratory = lab("gc")
    laboratory.begin(0)
    works = laboratory.works(0)
    assert list(works) == ["solver", "features", "generator"]
    objective, batch = works["generator"].module, next(works["generator"].batches.epoch(0))
    together = sum(objective(batch).values())
    together.backward()
    gradient = objective.classes.encoder.weight.grad.clone()
    objective.zero_grad()
    changed = batch.inputs.clone()
    changed[:, 1] = 7.0
    batch.inputs = changed
    sum(objective(batch).values()).backward()
    others = objective.classes.encoder.weight.grad
    assert torch.equal(others[[0, 2]], gradient[[0, 2]])
    assert not torch.equal(others[1], gradient[1])


def test_its_loss_is_the_elbo_of_each_class_by_the_number_of_features(lab, naive):
    laboratory = lab("gc")
    laboratory.begin(0)
    phase = laboratory.works(0)["generator"]
    vaes, batch = phase.module.classes, next(phase.batches.epoch(0))
    rows, classes, size = batch.inputs.shape
    noise = batch.draws.normal("posterior", batch.total, classes, vaes.latent)
    recon = divergence = 0.0
    for c in range(classes):
        single = build(lambda: ClassVAEs(1, size, vaes.latent, 8), Stream.root(0).torch_generator("single"))
        single.load_state_dict({name: value[c : c + 1] for name, value in vaes.state_dict().items()})
        mean, log_variance = (value[0] for value in single.encode(batch.inputs[:, c]))
        codes = mean + (0.5 * log_variance).exp() * noise[:, c]
        recon += 0.5 * sum(naive.squares(single.decode(codes)[0], batch.inputs[:, c])) / rows / size
        divergence += naive.prior_divergence(mean, log_variance) / size
    terms = phase.module(batch)
    assert terms["recon"].item() == pytest.approx(recon, rel=1e-4)
    assert terms["kl"].item() == pytest.approx(divergence, rel=1e-4)


def test_a_row_has_a_feature_of_every_class_and_an_epoch_all_of_them():
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 5)
    features = torch.stack([labels.float(), torch.arange(13.0)], dim=1)
    batches = ClassBatches(features, labels, 2, Stream.root(0), Placement())
    seen = [batch.inputs for batch in batches.epoch(0)]
    assert len(seen) == len(batches) == 3
    rows = torch.cat(seen)
    assert torch.equal(rows[..., 0], torch.tensor([0.0, 1.0, 2.0]).expand(5, 3))
    assert sorted(rows[:, 0, 1].tolist()) == [0, 1, 2, 3, 4]
    assert set(rows[:, 1, 1].tolist()) == {5, 6, 7}, "a small class is repeated"
    again = [batch.inputs for batch in batches.epoch(0, start=1)]
    assert torch.equal(torch.cat(again), torch.cat(seen[1:]))
    assert not torch.equal(rows, torch.cat([batch.inputs for batch in batches.epoch(1)]))


@pytest.fixture(scope="module")
def separated(runtime):
    """Three VAEs trained on three Gaussians that lie well apart."""
    centers = 4 * torch.eye(3, 6)
    labels = torch.arange(3).repeat_interleave(60)
    features = centers[labels] + torch.randn(180, 6, generator=Stream.root(0).torch_generator("features"))
    vaes = build(lambda: ClassVAEs(3, 6, latent=2, hidden=16), Stream.root(0).torch_generator("vaes"))
    batches = ClassBatches(features, labels, 60, Stream.root(0), Placement())
    training = TrainOptions(steps=300, batch_size=60, lr=1e-2, schedule="constant", weight_decay=0)
    phase = Phase("generator", ClassVAEObjective(vaes), batches, (ParameterGroup(list(vaes.parameters())),), training)
    Engine(runtime).train(phase)
    return vaes, features, labels


@torch.no_grad()
@pytest.mark.parametrize("samples", ["mean", 1, 128, 1000])
def test_all_ways_to_sample_rank_classes_alike(separated, samples):
    vaes, features, labels = separated
    scores = LikelihoodRule(FeatureScale(6), Modules([vaes]), samples)(features)
    assert scores.shape == (180, 3)
    assert (scores.argmax(1) == labels).float().mean() > 0.97
    many = LikelihoodRule(FeatureScale(6), Modules([vaes]), 1000)(features)
    alike = (scores.argsort(1) == many.argsort(1)).all(1).float().mean()
    assert alike > (0.5 if samples == 1 else 0.9)


@torch.no_grad()
def test_a_prediction_depends_neither_on_the_batch_nor_on_earlier_ones(separated):
    vaes, features, _ = separated
    rule = LikelihoodRule(FeatureScale(6), Modules([vaes]), 16)
    together = rule(features)
    apart = torch.cat([rule(row) for row in features[:5].split(1)])
    torch.testing.assert_close(apart, together[:5], rtol=1e-4, atol=1e-4)


def test_features_are_of_zero_mean_and_unit_variance_as_those_of_the_base_task():
    features = 3 * torch.randn(50, 4, generator=Stream.root(0).torch_generator("features")) + 5
    features[:, 2] = 1.0 + 1e-6 * features[:, 0]
    scale = FeatureScale(4)
    assert torch.equal(scale(features), features)
    scale.fit(features)
    scaled = scale(features)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0, 1.0]), atol=1e-4, rtol=1e-4)
    later = scale(features + 1.0)
    assert later.abs().max() < 10, "what hardly moved may move later, and is not blown up then"
    still = FeatureScale(4)
    still.fit(torch.ones(5, 4))
    assert torch.equal(still(torch.ones(5, 4)), torch.zeros(5, 4))


def test_embedding_distillation_needs_a_backbone_that_is_trained(lab):
    made = lab("egc", {"features": {"source": "weights", "passes": 2}})
    context = replace(made.context, model=made.context.model.model_copy(update={"weights": "some file"}))
    with pytest.raises(EtagError, match="embedding distillation has nothing to do"):
        type(made.method)(made.method.options, context).check([3, 2, 2])


def test_without_base_training_the_backbone_stays_as_it_is(lab, snapshot):
    laboratory = lab("gc", {"features": {"source": "weights", "passes": 2}})
    before = snapshot(laboratory.method.solver)
    with pytest.raises(EtagError, match=r"set model\.weights, or choose method\.features\.source=base"):
        laboratory.method.check([3, 2, 2])
    laboratory.learn(0, 1)
    after = laboratory.method.solver.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert "not trained" in laboratory.method.remarks()["features"]
    assert "base task" in lab("gc").method.remarks()["features"]
