"""What an update of known classes did to the others."""

import pytest
import torch
from lightning_fabric import Fabric

from etag.app.folders import lesson_files, lesson_images
from etag.app.lesson_task import lesson_task
from etag.app.update_check import UpdateCheck
from etag.cli.lesson_result import _print_update
from etag.engine.runtime import Runtime
from etag.learner.learner import Learner
from etag.learner.model_directory import ModelDirectory


@pytest.fixture
def learner_and_check(copied, digits_folder):
    directory, runtime = ModelDirectory(copied), Runtime(Fabric(accelerator="cpu", devices=1))
    about = directory.about()
    listing = lesson_files(digits_folder("more", (1, 4), first=40, count=30), about.classes, update=True)
    images = lesson_images(listing, about, memory=100, workers=0, update=True)
    method, task = lesson_task(runtime, directory, about, images)
    learner = Learner(method, runtime, about=about)
    return learner, UpdateCheck(learner, task, images.names)


def test_a_model_that_did_not_change_has_equal_figures(learner_and_check):
    learner, check = learner_and_check
    report = check.report()
    assert [(group.lesson, group.classes) for group in report.others] == [
        (1, ("digit 0", "digit 2")),
        (2, ("digit 3",)),
    ]
    assert all(group.before == group.after for group in report.others)
    assert not report.harmed
    assert not report.exact
    features = learner.method.generate_features(torch.tensor([3]).repeat_interleave(100))
    expected = (learner.method.classifier().classify(features).argmax(1) == 3).double().mean().item()
    assert abs(report.others[1].before - expected) < 0.15  # other draws


def test_a_group_that_lost_accuracy_is_named_with_the_way_back(learner_and_check, capsys):
    learner, check = learner_and_check
    with torch.no_grad():
        learner.method.solver.head.blocks[1].weight[0].zero_()  # digit 3
        learner.method.solver.head.blocks[1].bias[0] = -100
    (group,) = check.report().harmed
    assert (group.lesson, group.classes, group.after) == (2, ("digit 3",), 0.0)
    _print_update("photos.model", 7, check.report())
    out = capsys.readouterr().out
    assert f"lesson 2 (digit 3): {group.before:.1%} -> 0.0%  <- fell" in out
    assert "harmed classes of lesson 2. `etag models rollback photos.model` returns to version 7" in out
