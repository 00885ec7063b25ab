import numpy as np
import pytest
import torch

from etag.data.source import SOURCES, DataOptions


def opened():
    return SOURCES["digits"].open(DataOptions())


def test_digits_have_1797_images_and_every_class_in_train_and_test():
    digits = opened()
    assert len(digits.train) + len(digits.test) == 1797
    for part in (digits.train, digits.test):
        assert part.labels.unique().tolist() == list(range(10))
        assert part.pixels.shape == (len(part), 1, 8, 8)
        assert part.pixels.dtype == torch.uint8
        assert (part.pixels.min(), part.pixels.max()) == (0, 255)


def test_every_fifth_image_of_each_class_is_for_testing():
    from sklearn.datasets import load_digits

    digits, bunch = opened(), load_digits()
    for label in range(10):
        images = [np.rint(image * 255 / 16) for image in bunch.images[bunch.target == label]]
        assert np.array_equal(digits.test.pixels[digits.test.labels == label, 0], images[4::5])
        train = [image for position, image in enumerate(images) if position % 5 != 4]
        assert np.array_equal(digits.train.pixels[digits.train.labels == label, 0], train)


def test_mean_and_std_are_those_of_the_training_images():
    digits = opened()
    pixels = digits.train.pixels.double() / 255
    assert digits.mean[0] == pytest.approx(pixels.mean().item(), abs=2e-3)
    assert digits.std[0] == pytest.approx(pixels.std().item(), abs=2e-3)


def test_loading_twice_gives_the_same_images():
    first, second = (opened() for _ in range(2))
    assert torch.equal(first.train.pixels, second.train.pixels)
    assert torch.equal(first.test.labels, second.test.labels)
