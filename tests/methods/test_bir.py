"""BI-R: replayed features are the old network's, with its soft predictions; the optimizer state is stored."""

import pytest
import torch
from torch.nn import functional


@pytest.fixture
def begun(lab, disturb):
    """A laboratory whose second (or first) task has begun, old and new networks differing."""

    def make(tasks=2, **options):
        laboratory = lab("bir", options)
        for index in range(tasks):
            laboratory.begin(index)
            disturb(laboratory.method.network.encoder, f"network {index}", 0.5)
            disturb(laboratory.method.network.decoder_out, f"network {index}", 0.5)
        return laboratory

    return make


def first_batch(laboratory, index):
    phase = laboratory.works(index)["generator"]
    return phase.module, next(phase.batches.epoch(0))


def test_the_backbone_is_trained_at_the_base_task_only(lab):
    laboratory = lab("bir")
    laboratory.begin(0)
    assert list(laboratory.works(0)) == ["solver", "features", "generator"]
    laboratory.begin(1)
    assert list(laboratory.works(1)) == ["features", "generator"]


def test_replayed_features_are_those_of_the_old_network_and_so_are_their_predictions(begun):
    laboratory = begun()
    objective, batch = first_batch(laboratory, 1)
    old, classes = laboratory.method.old.network, laboratory.task(1).num_old
    features, predictions = objective.replayed(batch)
    labels = batch.draws.integers("replay labels", 0, classes, batch.total)
    noise = batch.draws.normal("replay codes", batch.total, old.latent)
    codes = old.prior.means[labels] + noise * (0.5 * old.prior.log_variances[labels]).exp()
    assert torch.equal(features, old.decode(codes, functional.one_hot(labels, classes).float()))
    assert torch.equal(predictions, old.classify(features)[:, :classes])
    assert set(labels.tolist()) <= set(range(classes))
    assert not torch.equal(predictions, laboratory.method.network.classify(features)[:, :classes])
    assert not features.requires_grad


def test_terms_are_those_of_the_paper(begun, naive):
    laboratory = begun()
    objective, batch = first_batch(laboratory, 1)
    network, task = laboratory.method.network, laboratory.task(1)
    size = network.features

    def expected(name, features, shares):
        hidden = network.encoder(features)
        mean, log_variance = network.mean(hidden), network.log_variance(hidden)
        noise = batch.draws.normal(f"{name} posterior", batch.total, network.latent)
        posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        codes = mean + noise * (0.5 * log_variance).exp()
        prior = torch.distributions.Normal(network.prior.means, (0.5 * network.prior.log_variances).exp())
        each = prior.log_prob(codes[:, None]).sum(2).exp()
        divergence = posterior.log_prob(codes).sum(1) - (each * shares).sum(1).log()
        squares = naive.squares(network.decode(codes, shares), features)
        return sum(squares) / len(squares) / 2 / size, divergence.mean().item() / size

    terms = objective(batch)
    recon, divergence = expected("new", batch.inputs, functional.one_hot(batch.labels, task.num_seen).float())
    cross_entropy = naive.cross_entropy(network.classify(batch.inputs), batch.labels, range(task.num_seen))
    assert terms["ce"].item() == pytest.approx(cross_entropy / 2, rel=1e-4)
    assert terms["recon"].item() == pytest.approx(recon / 2, rel=1e-4)
    assert terms["kl"].item() == pytest.approx(divergence / 2, rel=1e-4)

    features, predictions = objective.replayed(batch)
    wanted = torch.cat([(predictions / 2).softmax(1), torch.zeros(len(predictions), task.num_new)], dim=1)
    recon, divergence = expected("replayed", features, wanted)
    kd = -4 * (wanted * (network.classify(features) / 2).log_softmax(1)).sum(1).mean()
    assert terms["kd_replayed"].item() == pytest.approx(kd.item() / 2, rel=1e-4)
    assert terms["recon_replayed"].item() == pytest.approx(recon / 2, rel=1e-4)
    assert terms["kl_replayed"].item() == pytest.approx(divergence / 2, rel=1e-4)


def test_new_and_replayed_count_by_the_number_of_tasks(begun):
    shares = []
    for tasks in (2, 3):
        objective, batch = first_batch(begun(tasks), tasks - 1)
        weighted = objective(batch)["ce"]
        logits = objective.network.classify(batch.inputs)
        shares.append((weighted / functional.cross_entropy(logits, batch.labels)).item())
    assert shares == pytest.approx([1 / 2, 1 / 3], rel=1e-5)


def test_the_base_task_replays_nothing(begun):
    objective, batch = first_batch(begun(tasks=1), 0)
    assert set(objective(batch)) == {"ce", "recon", "kl"}


def test_the_divergence_may_be_divided_as_in_the_release(begun):
    laboratory, other = begun(tasks=1), begun(tasks=1, kl_divisor=3072)
    (one, batch), (two, _) = first_batch(laboratory, 0), first_batch(other, 0)
    size = laboratory.method.network.features
    torch.testing.assert_close(one(batch)["kl"] * size, two(batch)["kl"] * 3072)


def test_adam_continues_where_the_last_task_ended(lab):
    laboratory = lab("bir")
    laboratory.learn(0)
    optimizer_state = laboratory.method.optimizer_state.state_dict()
    steps = {value.item() for name, value in optimizer_state.items() if name.endswith(":step")}
    assert steps == {3.0}
    mean = laboratory.method.optimizer_state.state_of("network.prior.means", laboratory.method.network.prior.means)[
        "exp_avg"
    ]
    assert mean.shape == (3, 3)
    laboratory.begin(1)
    grown = laboratory.method.optimizer_state.state_of("network.prior.means", laboratory.method.network.prior.means)[
        "exp_avg"
    ]
    assert torch.equal(grown[:3], mean)
    assert grown[3:].abs().sum() == 0
    laboratory.engine.execute(laboratory.method.phases(laboratory.task(1)))
    steps = {
        name: value.item()
        for name, value in laboratory.method.optimizer_state.state_dict().items()
        if name.endswith(":step")
    }
    assert steps["network/encoder/0/weight:step"] == 6
    assert steps["network/head/blocks/1/weight:step"] == 3, "new parameters begin anew"
