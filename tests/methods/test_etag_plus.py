"""eTag+: eTag's base task, and FeCAM on the features of backbone and auxiliaries."""

import numpy as np
import torch
from tests.methods.test_fecam import naive_scores
from tests.methods.test_ridge import all_features

from etag.models.classifier import Classifier


def test_it_is_fecam_with_embedding_distillation_and_its_branches(lab):
    plus = lab("etag+", {}, epochs=2)
    fecam = lab("fecam", {"embedding": {}, "features": {"branches": True}}, epochs=2)
    for made in (plus, fecam):
        made.learn(0, 1)
    for key, value in fecam.method.rule.state_dict().items():
        assert torch.equal(plus.method.rule.state_dict()[key], value), key


def test_scores_are_distances_of_all_features_side_by_side(lab):
    made = lab("etag+", {}, epochs=1, images=16)
    made.learn(0, 1)
    x, labels = all_features(made, 2)
    assert x.shape[1] == 4 * made.method.solver.backbone.feature_size
    expected = naive_scores(x, labels, 5, False, 0.5, 1.0, 1.0)
    found = made.method.rule(torch.from_numpy(x).float()).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_its_base_task_is_etags(lab):
    """The same weights, to the bit: only what comes after differs."""
    plus, etag = lab("etag+", {}, epochs=2), lab("etag", {}, epochs=2)
    for made in (plus, etag):
        made.learn(0)
    stages, branches = plus.method.solver.backbone.stages, plus.method.solver.backbone.branches
    for key, value in etag.method.solver.backbone.stages.state_dict().items():
        assert torch.equal(stages.state_dict()[key], value), key
    for branch, auxiliary in zip(branches, etag.method.solver.auxiliaries, strict=True):
        for key, value in auxiliary.branch.state_dict().items():
            assert torch.equal(branch.state_dict()[key], value), key


def test_nothing_of_the_network_changes_after_the_base_task(lab, snapshot):
    made = lab("etag+", {}, epochs=1)
    made.learn(0)
    before = snapshot(made.method.solver.backbone)
    made.learn(1, 2)
    for key, value in before.items():
        assert torch.equal(made.method.solver.backbone.state_dict()[key], value), key


def test_a_saved_classifier_has_the_branches(lab):
    made = lab("etag+", {}, epochs=1)
    made.learn(0)
    classifier = made.method.classifier().eval()
    copy = Classifier.without_weights(classifier.describe())
    for name, part in copy.saved_parts.items():
        part.load_state_dict(classifier.saved_parts[name].state_dict(), assign=True)
    images = made.preprocess.centered(made.task(0).test.pixels)
    with torch.no_grad():
        torch.testing.assert_close(copy(images), classifier(images))
