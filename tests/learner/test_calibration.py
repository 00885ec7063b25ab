"""Calibration: the threshold below which images are rejected, from held-out images of the lessons."""

from types import SimpleNamespace

import pytest
import torch

from etag.core.evaluation import Evaluation
from etag.data.preprocess import Preprocess
from etag.learner.calibration import calibrate
from etag.learner.versions import Lesson, ModelInfo
from etag.methods.abilities import UpdatesExactly
from etag.models.familiarity import Familiarity

WITH_STATISTICS = SimpleNamespace(familiarity=Familiarity(4))
WITHOUT = SimpleNamespace()


def predictions(images, lowest=0.0):
    """Scores of so many images of two classes, and how familiar they are: from `lowest` to `lowest` + 1."""
    labels = torch.arange(images) % 2
    scores = torch.where(labels[:, None] == torch.arange(2), torch.linspace(0, 3, images)[:, None], torch.tensor(0.0))
    scores[: images // 5] = scores[: images // 5].flip(1)  # some are wrong
    return {"scores": scores.log_softmax(1), "label": labels, "familiarity": torch.linspace(lowest, lowest + 1, images)}


def lesson(threshold, images):
    evaluation = Evaluation([0.5], [0.5], [], images, 0.5)
    return Lesson("learn", (), 80, 1.0, 1.0, "", evaluation, threshold)


def before(*history, **facts):
    """A model before the lesson."""
    return ModelInfo({}, Preprocess((0.5,), (0.5,), 8, flip=False), 1, history=history, **facts)


def test_one_image_of_twenty_is_rejected():
    found = calibrate(WITH_STATISTICS, predictions(200, lowest=-3), 200, 0, before())
    assert found.threshold == found.lesson_threshold == pytest.approx(-2.95)


def test_without_class_statistics_the_probability_decides():
    given = predictions(200)
    found = calibrate(WITHOUT, given, 200, 2, before(lesson(-7.0, 100)))
    highest = (given["scores"] / found.temperature).softmax(1).amax(1)
    assert found.threshold == pytest.approx(highest.quantile(0.05).item())


def test_lessons_count_by_their_held_out_images():
    forgotten = Lesson("forget", (), 0, 0.0, 0.0, "")
    known = before(lesson(0.0, 60), forgotten, lesson(-2.0, 40))
    found = calibrate(WITH_STATISTICS, predictions(100, lowest=1.0), 100, 2, known)
    assert found.lesson_threshold == pytest.approx(1.05)
    assert found.threshold == pytest.approx((60 * 0.0 + 40 * -2.0 + 100 * 1.05) / 200)


@pytest.mark.parametrize("method", [WITH_STATISTICS, WITHOUT])
def test_of_too_few_images_none_is_rejected(method):
    assert calibrate(method, predictions(19), 19, 0, before()).threshold is None
    assert calibrate(method, predictions(20), 20, 0, before()).threshold is not None


def test_too_few_images_leave_the_calibration_as_it_was():
    later = calibrate(WITHOUT, predictions(19), 19, 2, before(lesson(0.2, 60), threshold=0.2, temperature=1.7))
    assert (later.threshold, later.lesson_threshold, later.temperature) == (0.2, None, 1.7)


def test_small_lessons_reach_a_threshold_together():
    known = before(lesson(0.0, 10), temperature=1.7)
    assert calibrate(WITH_STATISTICS, predictions(9), 9, 2, known).threshold is None
    later = calibrate(WITH_STATISTICS, predictions(10, lowest=1.0), 10, 2, known)
    assert later.temperature == 1.7
    assert later.threshold == pytest.approx((0.0 + later.lesson_threshold) / 2)


def test_the_learner_saves_the_thresholds_of_all_lessons(course, monkeypatch):
    monkeypatch.setattr("etag.learner.calibration.ENOUGH", 2)
    made = course("ncm")
    for index in (0, 1):
        made.learn(index, calibrate=True)
    about = made.directory.about()
    images = [lesson.evaluation.images for lesson in about.history]
    weighted = sum(lesson.threshold * count for lesson, count in zip(about.history, images, strict=True))
    assert about.threshold == pytest.approx(weighted / sum(images))
    made.learn(2)
    assert made.directory.about().history[-1].threshold is None, "not calibrated"


@pytest.mark.parametrize(("method", "learned"), [("ridge", True), ("fetril", False)])
def test_a_head_in_closed_form_learns_the_held_out_images_afterwards(course, method, learned):
    made = course(method)
    task = made.scenario.tasks[0]
    learner = made.learn(0, calibrate=True)
    assert isinstance(learner.method, UpdatesExactly) == learned
    if learned:
        assert learner.method.statistics.count.sum() == len(task.train) + len(task.test)
    assert made.directory.about().history[0].evaluation == made_without(course, method)


def made_without(course, method):
    """The evaluation of the same task by a learner that learns no held-out image."""
    made = course(method, "without")
    made.learn(0)
    return made.directory.about().history[0].evaluation
