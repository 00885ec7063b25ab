import numpy as np
import pytest
import torch
from PIL import Image

from etag.core.errors import EtagError
from etag.core.random import Draws, Stream
from etag.data.images import FileImages
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions

ALL = [
    f"n0{number}"
    for number in (1440764, 2102040, 2979186, 3000684, 3028079, 3394916, 3417042, 3425413, 3445777, 3888257)
]


@pytest.fixture(scope="module")
def imagenet(shared_data):
    """imagenet(**options) -> a scenario with one image per class, and its preprocessing."""

    def make(split="b5-5x1", seed=0, **options):
        all_options = {"size": 28, "train_per_class": 1, "test_per_class": 1} | options
        return build_scenario(
            DataOptions(name="imagenet-sub", path=str(shared_data / "imagenet-mini"), **all_options), split, seed
        )

    return make


def test_images_are_stored_larger_than_the_crops(imagenet):
    scenario, preprocess = imagenet(classes=10, size=56, train_per_class=None, test_per_class=None)
    assert (scenario.size, preprocess.size) == (56, 56)
    assert [len(task.train) for task in scenario] == [150] + [30] * 5
    assert [len(task.test) for task in scenario] == [50] + [10] * 5
    images = scenario.tasks[0].train.pixels
    assert images.shape == (150, 3, 64, 64)  # 256 for 224
    color = images.float().mean((0, 2, 3)) / 255
    assert color.tolist() == pytest.approx(preprocess.mean, abs=0.06)  # real photographs, red first
    windows = preprocess.augmented(images, Draws(Stream.root(0)), 150)
    assert windows.shape == (150, 3, 56, 56)
    assert preprocess.centered(images).shape == (150, 3, 56, 56)


def test_images_equal_the_pixels_of_their_files(imagenet, shared_data):
    scenario, _ = imagenet(classes=10, size=196, order="natural")  # stored at 224, the size of the files
    for label, name in enumerate(ALL):
        files = sorted((shared_data / "imagenet-mini" / "train" / name).iterdir())
        task = next(task for task in scenario if label < task.num_seen)
        stored = task.train.pixels[label - task.num_old].permute(1, 2, 0).numpy()
        assert np.array_equal(stored, np.asarray(Image.open(files[0]).convert("RGB")))


def test_at_full_size_images_stay_in_files(imagenet):
    scenario, preprocess = imagenet(classes=10, size=None, memory=1)
    images = scenario.tasks[0].train
    assert isinstance(images, FileImages)
    assert (images.resize.side, preprocess.size, scenario.size) == (256, 224, 224)


def test_a_hundred_classes_are_used_by_default(imagenet):
    with pytest.raises(EtagError) as caught:
        imagenet()
    assert str(caught.value) == "100 classes were requested, but the data has 10: set data.classes to that or less."


@pytest.mark.parametrize("subset", [None, 7, "natural", "file"])
def test_the_subset_does_not_depend_on_the_run_seed(imagenet, tmp_path, subset):
    file = tmp_path / "classes.txt"
    file.write_text("\n".join(ALL[:3:-1]))  # the last six, backwards
    expected = {
        None: np.random.RandomState(1993).permutation(10)[:4],
        7: np.random.RandomState(7).permutation(10)[:4],
        "natural": range(4),
        "file": (9, 8, 7, 6),
    }[subset]
    result = [
        imagenet("b2-1x2", seed, classes=4, subset=str(file) if subset == "file" else subset)[0].classes
        for seed in (0, 1)
    ]
    assert [set(names) for names in result] == 2 * [{ALL[number] for number in expected}]
    assert result[0] != result[1]  # the class order depends on the seed


def test_resized_crop_crops_at_random_sizes(imagenet):
    scenario, preprocess = imagenet(classes=10, resized_crop=True)
    images = scenario.tasks[0].train.pixels
    draws = Draws(Stream.root(0))
    assert preprocess.resized_crop
    crops = preprocess.augmented(images, draws, len(images))
    assert crops.shape == (5, 3, 28, 28)
    assert torch.equal(crops, preprocess.augmented(images, draws, len(images)))


def test_train_and_val_are_both_needed(tmp_path, classes_in):
    classes_in(tmp_path, "train/cat/1.png", "train/dog/1.png")
    with pytest.raises(EtagError, match="'imagenet-sub' was not found: train and val should be in"):
        build_scenario(DataOptions(name="imagenet-sub", path=str(tmp_path)), "b0-2x1", seed=0)
