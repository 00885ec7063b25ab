import pytest
import torch

from etag.core.scenario import Task
from etag.data.images import MemoryImages


def task_of(labels):
    labels = torch.tensor(labels)
    images = MemoryImages(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), labels)
    return Task(index=1, num_old=2, num_new=2, train=images, test=images, num_base=2)


def test_seen_counts_old_and_new():
    assert task_of([2, 3]).num_seen == 4


def test_holding_out_takes_the_last_share_of_each_class():
    remaining, held_out = task_of([2, 3, 2, 2, 3, 3, 2, 3]).holding_out(0.25)
    assert held_out.labels.tolist() == [2, 3]
    assert held_out.pixels.flatten().tolist() == [6, 7]
    assert remaining.train.pixels.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert (remaining.index, remaining.num_old, remaining.num_new, remaining.num_base) == (1, 2, 2, 2)


def test_holding_out_a_share_of_zero_returns_the_task():
    task = task_of([2, 3])
    assert task.holding_out(0.0) == (task, None)


def test_a_share_that_rounds_to_no_image_holds_out_nothing():
    remaining, held_out = task_of([2, 3, 2, 3]).holding_out(0.1)
    assert len(remaining.train) == 4
    assert held_out is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_all_data_joins_the_training_images_of_all_tasks_up_to_this_one(tiny_scenario, index):
    scenario, _ = tiny_scenario("b3-2x2")
    task = scenario.tasks[index]
    joined = scenario.training_task(task, all_data=True)
    assert joined.train.labels.tolist() == [y for t in scenario.tasks[: index + 1] for y in t.train.labels.tolist()]
    assert torch.equal(joined.train.pixels[-len(task.train) :], task.train.pixels)
    assert joined.test is task.test
    assert (joined.num_old, joined.num_new) == (task.num_old, task.num_new)


@pytest.mark.parametrize("all_data", [False, True])
def test_images_given_counts_the_training_images_of_each_task(tiny_scenario, all_data):
    scenario, _ = tiny_scenario("b3-2x2")
    assert scenario.training_image_counts(all_data) == [
        len(scenario.training_task(task, all_data).train) for task in scenario
    ]
