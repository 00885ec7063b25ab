import pytest
import torch

from etag.core.scenario import Task
from etag.data.images import MemoryImages


def task_of(labels):
    labels = torch.tensor(labels)
    images = MemoryImages(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), labels)
    return Task(index=1, old=2, new=2, train=images, test=images, base=2)


def test_seen_counts_old_and_new():
    assert task_of([2, 3]).seen == 4


def test_holding_out_takes_the_last_share_of_every_class():
    kept, held = task_of([2, 3, 2, 2, 3, 3, 2, 3]).holding_out(0.25)
    assert held.labels.tolist() == [2, 3]
    assert held.pixels.flatten().tolist() == [6, 7]
    assert kept.train.pixels.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert (kept.index, kept.old, kept.new, kept.base) == (1, 2, 2, 2)


def test_holding_out_nothing_leaves_the_task_alone():
    task = task_of([2, 3])
    assert task.holding_out(0.0) == (task, None)


def test_a_share_that_rounds_to_no_image_holds_out_nothing():
    kept, held = task_of([2, 3, 2, 3]).holding_out(0.1)
    assert len(kept.train) == 4
    assert held is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_all_data_joins_the_training_images_of_all_tasks_so_far(tiny_scenario, index):
    scenario, _ = tiny_scenario("b3-2x2")
    task = scenario.tasks[index]
    joined = scenario.given(task, all_data=True)
    assert joined.train.labels.tolist() == [y for t in scenario.tasks[: index + 1] for y in t.train.labels.tolist()]
    assert torch.equal(joined.train.pixels[-len(task.train) :], task.train.pixels)
    assert joined.test is task.test
    assert (joined.old, joined.new) == (task.old, task.new)


@pytest.mark.parametrize("all_data", [False, True])
def test_images_are_counted_as_they_are_given(tiny_scenario, all_data):
    scenario, _ = tiny_scenario("b3-2x2")
    assert scenario.images_given(all_data) == [len(scenario.given(task, all_data).train) for task in scenario]
