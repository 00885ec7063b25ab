"""The choices between paper and release: the ratio of old classes to new ones, and the defaults."""

import pytest

from etag.core.scenario import Task
from etag.data.scenario import parse_split
from etag.methods.parts.fidelity import FidelityOptions


def class_ratio(task, kind):
    return FidelityOptions(ratio=kind).class_ratio(task)


def tasks_of(split):
    sizes = parse_split(split)
    return [Task(t, sum(sizes[:t]), new, None, None, num_base=sizes[0]) for t, new in enumerate(sizes)]


@pytest.mark.parametrize(
    ("split", "ratios"), [("b50-5x10", range(5, 10)), ("b50-10x5", range(10, 20)), ("b0-4x25", range(1, 4))]
)
def test_the_two_ratios_agree_where_the_step_divides_the_base(split, ratios):
    for kind in ("integer", "exact"):
        assert [class_ratio(task, kind) for task in tasks_of(split)[1:]] == list(ratios)


def test_the_ratio_of_the_release_is_rounded_down():
    first = tasks_of("b40-20x3")[1]
    assert class_ratio(first, "integer") == 13
    assert class_ratio(first, "exact") == pytest.approx(40 / 3)


@pytest.mark.parametrize("kind", ["integer", "exact"])
def test_nothing_is_old_at_the_base_task(kind):
    assert class_ratio(tasks_of("b50-5x10")[0], kind) == 0


def test_every_default_is_the_reading_of_the_paper():
    assert FidelityOptions().model_dump() == {
        "ratio": "exact",
        "normalize_ce": False,
        "ce_new": "seen",
        "ce_replay": "seen",
        "argmax": "seen",
        "l2_reduction": "mean_norm",
        "l2_views": "plain",
        "aux_classes": "base",
        "backbone_batch_norm": "images",
        "reconstruction": "half",
        "guide_input": "prior",
        "guide_classes": "seen",
        "guide_weight": "one",
        "guide_old": False,
        "match_reduction": "mean",
        "match_factor": 1.0,
    }
