"""Likely wrong labels, against leaving each image out in a loop."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge

from etag.app.labels import FEWEST, MARGIN, likely_wrong
from etag.data.images import Features
from etag.methods.parts.penalty import PENALTIES


def features(rows, labels):
    return Features(torch.as_tensor(rows, dtype=torch.float32), torch.arange(len(rows)), torch.as_tensor(labels))


def digits(per_class=12, swapped=()):
    """Pixels of four digits; the labels of some rows are moved to the next digit."""
    images, labels = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(labels == digit)[:per_class] for digit in range(4)])
    labels = labels[rows].copy()
    labels[list(swapped)] = (labels[list(swapped)] + 1) % 4
    return images[rows], labels


def left_out_scores(rows, labels, penalty):
    """The scores of each image from a regression without it."""
    scores = []
    for row in range(len(rows)):
        others = np.arange(len(rows)) != row
        scores.append(Ridge(penalty).fit(rows[others], np.eye(4)[labels[others]]).predict(rows[row : row + 1])[0])
    return np.array(scores)


def test_the_rule_equals_leaving_each_image_out():
    rows, labels = digits(swapped=(3, 20, 40))
    by_penalty = [left_out_scores(rows, labels, penalty) for penalty in PENALTIES]
    scores = min(by_penalty, key=lambda found: ((np.eye(4)[labels] - found) ** 2).sum())
    expected = {}
    for row, label in enumerate(labels):
        others = [name for name in range(4) if name != label]
        best = max(others, key=lambda name: scores[row][name])
        if scores[row][best] - scores[row][label] > MARGIN:
            expected[row] = (scores[row][label] - scores[row][best], best)
    found = likely_wrong(features(rows, labels))
    assert list(found.items()) == [(row, expected[row][1]) for row in sorted(expected, key=lambda r: expected[r][0])]
    assert found == {3: 0, 20: 1, 40: 3}, "the swapped ones, with the digits that they are"


def test_right_labels_raise_no_alarm():
    assert likely_wrong(features(*digits())) == {}


def test_images_of_tiny_classes_and_of_a_single_class_are_not_judged():
    rows, labels = digits(swapped=(20,))
    assert likely_wrong(features(rows, np.zeros_like(labels))) == {}
    few = np.concatenate([np.flatnonzero(labels == 2)[:1], np.flatnonzero(labels == 2)[-(FEWEST - 2) :]])
    rest = np.concatenate([few, np.flatnonzero(labels != 2)])
    assert 20 in rest, "a digit 1 that is labeled as 2"
    assert likely_wrong(features(rows[rest], labels[rest])) == {}
