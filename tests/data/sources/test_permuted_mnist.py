import numpy as np
import pytest
import torch

from etag.core.errors import EtagError
from etag.core.random import Draws, Stream
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions


@pytest.fixture(scope="module")
def options(shared_data):
    return DataOptions(
        name="permuted-mnist", path=str(shared_data / "mnist"), train_per_class=3, test_per_class=2, permutations=3
    )


@pytest.fixture(scope="module")
def plain(shared_data):
    return SOURCES["mnist"].open(DataOptions(name="mnist", path=str(shared_data / "mnist")))


def test_each_task_is_mnist_under_one_fixed_permutation(options, plain):
    scenario, _ = build_scenario(options, "b0-3x10", seed=5)
    assert scenario.new_classes_per_task == [10, 10, 10]
    for number, task in enumerate(scenario):
        order = np.random.RandomState(number).permutation(784)
        assert sorted(task.train.labels.tolist()) == [10 * number + digit for digit in range(10) for _ in range(3)]
        for row, label in enumerate(task.train.labels.tolist()):
            known = plain.train.pixels[plain.train.labels == label - 10 * number]
            unpermuted = np.empty(784, np.uint8)
            unpermuted[order] = task.train.pixels[row].flatten().numpy()
            assert any(np.array_equal(unpermuted, image.flatten().numpy()) for image in known[:3])


def test_the_run_seed_changes_neither_the_data_nor_the_class_order(options):
    one, other = (build_scenario(options, "b0-3x10", seed)[0] for seed in (0, 1))
    assert one.classes == other.classes
    assert one.classes[11] == "1 in order 1"
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left.train.pixels, right.train.pixels)
        assert torch.equal(left.test.labels, right.test.labels)


def test_permuted_images_are_not_augmented(options):
    scenario, preprocess = build_scenario(options, "b0-3x10", 0)
    images = scenario.tasks[1].train.pixels
    assert torch.equal(preprocess.augmented(images, Draws(Stream.root(0)), len(images)), preprocess.centered(images))


def test_permutations_sets_the_number_of_classes(options):
    assert len(SOURCES["permuted-mnist"].open(options.model_copy(update={"permutations": 7})).classes) == 70


def test_the_files_are_those_of_mnist(monkeypatch, tmp_path):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path))
    assert SOURCES["permuted-mnist"].search_folders(None)[0] == tmp_path / "mnist"


def test_with_domains_every_task_has_the_same_ten_classes(options):
    separate, _ = build_scenario(options, "b0-3x10", seed=0)
    shared, _ = build_scenario(options.model_copy(update={"domains": True}), "b0-3x10", seed=0)
    assert shared.classes == tuple("0123456789")
    assert shared.new_classes_per_task == [10, 0, 0]
    assert shared.classes_present_per_task == [10, 10, 10]
    assert [(task.num_old, task.num_new, task.num_seen) for task in shared] == [(0, 10, 10), (10, 0, 10), (10, 0, 10)]
    for number, (left, right) in enumerate(zip(separate, shared, strict=True)):
        assert torch.equal(left.train.pixels, right.train.pixels)
        assert torch.equal(left.train.labels - 10 * number, right.train.labels)
        assert torch.equal(left.test.labels - 10 * number, right.test.labels)


@pytest.mark.parametrize(("split", "order"), [("b0-6x5", None), ("b10-4x5", None), ("b0-3x10", 7)])
def test_with_domains_other_splits_or_orders_are_an_error(options, split, order):
    with pytest.raises(EtagError, match="every task the same 10 classes: choose a split such as b0-5x10"):
        build_scenario(options.model_copy(update={"domains": True, "order": order}), split, seed=0)
