"""Calibration against plain arithmetic."""

import math

import pytest
import torch

from etag.evaluation.calibration import calibration_error, unknown_auroc
from etag.losses.temperature import fit_temperature


def drawn(temperature, rows=20_000, classes=4):
    """Scores, and labels drawn with the probabilities that the scores have at a temperature."""
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((scores / temperature).softmax(1), 1, generator=generator).flatten()
    return scores, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_the_labels_is_found(temperature):
    scores, labels = drawn(temperature)
    assert fit_temperature(scores, labels) == pytest.approx(temperature, rel=0.05)


def test_a_few_right_predictions_do_not_make_every_prediction_certain():
    for images in (2, 10, 50):
        scores = torch.eye(2, dtype=torch.float64).repeat(images // 2, 1)
        right = (scores / fit_temperature(scores, scores.argmax(1))).softmax(1).amax(1)
        assert right[0].item() == pytest.approx(1 - 0.5 / (images + 2), abs=1e-3)


def test_a_class_counts_the_same_however_many_images_it_has():
    scores, labels = drawn(2.0)
    again = torch.cat([torch.arange(len(labels)), *([(labels == 0).nonzero().flatten()] * 9)])
    found = fit_temperature(scores[again], labels[again])
    assert found == pytest.approx(fit_temperature(scores, labels), rel=1e-3)


def test_probabilities_that_mean_what_they_say_have_no_error():
    scores, labels = drawn(1.0)
    assert calibration_error(scores.softmax(1), labels) < 0.015
    assert calibration_error((4 * scores).softmax(1), labels) > 0.1
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert calibration_error(sure, torch.tensor([0, 1])) == 0
    assert calibration_error(sure, torch.tensor([1, 0])) == 1


def test_the_calibration_error_by_hand():
    likely = torch.tensor([[0.62, 0.38], [0.64, 0.36], [0.1, 0.9], [0.05, 0.95]])
    labels = torch.tensor([0, 1, 1, 0])
    # ten bins: two answers at 0.62 and 0.64 of which one is right; 0.9 alone, right; 0.95 alone, wrong
    expected = (abs(1 - 1.26) + abs(1 - 0.9) + abs(0 - 0.95)) / 4
    assert calibration_error(likely, labels, bins=10) == pytest.approx(expected, abs=1e-6)


def test_known_and_unknown_images_are_told_apart_by_rank():
    known, unknown = torch.tensor([0.9, 0.7]), torch.tensor([0.5, 0.8])
    # pairs (0.9, 0.5), (0.9, 0.8), (0.7, 0.5) are right, (0.7, 0.8) is wrong
    assert unknown_auroc(known, unknown) == pytest.approx(3 / 4)
    assert math.isclose(unknown_auroc(known, known), 0.5)
