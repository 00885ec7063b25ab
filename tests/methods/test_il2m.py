"""IL2M: exemplars, and mean scores of classes by which predictions are rectified."""

import torch

from etag.core.outputs import Need
from etag.models.prediction import HeadRule, RectifiedRule

OPTIONS = {"exemplars": {"per_class": 3}}


def logits_of(laboratory, pixels):
    with torch.no_grad():
        return laboratory.method.solver.eval()(laboratory.preprocess.centered(pixels), Need.LOGITS).logits


def test_a_task_trains_measures_scores_and_stores_exemplars(lab):
    laboratory = lab("il2m", OPTIONS)
    laboratory.begin(0)
    assert list(laboratory.works(0)) == ["solver", "scores", "exemplars"]


def test_the_scores_are_means_over_new_images_and_exemplars(lab):
    laboratory = lab("il2m", OPTIONS)
    laboratory.learn(0)
    base, scores = laboratory.task(0).train, laboratory.method.scores
    logits = logits_of(laboratory, base.pixels)
    initial = [logits[base.labels == label, label].mean() for label in range(3)]
    torch.testing.assert_close(scores.initial, torch.stack(initial))
    torch.testing.assert_close(scores.confidence[0], logits.amax(1).mean())

    first, exemplars = scores.initial, laboratory.method.memory.images
    laboratory.learn(1)
    scores, new = laboratory.method.scores, laboratory.task(1).train
    old, logits = logits_of(laboratory, exemplars.pixels), logits_of(laboratory, new.pixels)
    current = [old[exemplars.labels == label, label].mean() for label in range(3)]
    current += [logits[new.labels == label, label].mean() for label in (3, 4)]
    torch.testing.assert_close(scores.current, torch.stack(current))
    assert torch.equal(scores.initial[:3], first), "those of when they were learned"
    torch.testing.assert_close(scores.initial[3:], scores.current[3:])
    torch.testing.assert_close(scores.confidence[1], logits.amax(1).mean())


def test_its_predictions_are_rectified_unless_that_is_turned_off(lab):
    rectified, plain = lab("il2m", OPTIONS), lab("il2m", OPTIONS | {"rectify": False})
    for laboratory in (rectified, plain):
        laboratory.learn(0, 1)
    assert isinstance(rectified.method.prediction_rule(), RectifiedRule)
    assert type(plain.method.prediction_rule()) is HeadRule
    weights = plain.method.solver.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in rectified.method.solver.state_dict().items())


def test_it_trains_on_new_images_and_exemplars_together(lab):
    laboratory = lab("il2m", OPTIONS, batch_size=5, drop_last=False)
    laboratory.learn(0)
    laboratory.begin(1)
    labels = torch.cat([batch.labels for batch in laboratory.works(1)["solver"].batches.epoch(0)])
    assert labels.bincount().tolist() == [3, 3, 3, 8, 8]
