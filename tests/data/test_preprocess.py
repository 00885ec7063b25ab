import numpy as np
import pytest
import torch

from etag.core.random import Draws, Stream
from etag.data.preprocess import Preprocess, random_crop


def noise(count, channels, size, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    )


def cropped(image, padding, down, right, mirror):
    """One image: pad it with zeros, perhaps mirror it, cut out a window; pixel by pixel."""
    channels, height, width = image.shape
    result = np.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                row, column = y + down - padding, x + right - padding
                if mirror:
                    column = width - 1 - column
                if 0 <= row < height and 0 <= column < width:
                    result[c, y, x] = image[c, row, column]
    return result


@pytest.mark.parametrize("mirrored", [False, True])
def test_random_crop_cuts_each_image_at_its_own_place(mirrored):
    images, padding = noise(25, 3, 6), 2
    down, right = torch.arange(25) // 5, torch.arange(25) % 5  # every offset once
    mirror = torch.arange(25) % 3 == 0 if mirrored else None
    made = random_crop(images, padding, down, right, mirror)
    assert made.dtype == torch.uint8
    for k, image in enumerate(images.numpy()):
        turned = mirrored and k % 3 == 0
        assert np.array_equal(made[k], cropped(image, padding, int(down[k]), int(right[k]), turned)), k


def test_the_middle_offset_gives_the_image_back_and_mirrors_it_where_asked():
    images, middle = noise(2, 1, 8), torch.tensor([1, 1])
    made = random_crop(images, 1, middle, middle, torch.tensor([False, True]))
    assert torch.equal(made[0], images[0])
    assert torch.equal(made[1], images[1].flip(-1))


def test_normalise_maps_bytes_to_zero_mean_and_unit_variance():
    images = noise(4, 3, 5)
    preprocess = Preprocess((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), size=5, flip=True)
    made = preprocess.normalise(images)
    assert made.dtype == torch.float32
    for (k, c, y, x), byte in np.ndenumerate(images.numpy()):
        expected = (float(byte) / 255 - preprocess.mean[c]) / preprocess.std[c]
        assert made[k, c, y, x].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_are_laid_out_channels_last(channels):
    preprocess = Preprocess((0.5,) * channels, (0.2,) * channels, size=8, flip=True)
    images, draws = noise(4, channels, 8), Draws(Stream.root(0))
    for made in (preprocess.normalise(images), preprocess.train(images, draws, 4)):
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert made.shape == images.shape


def test_the_images_themselves_stay_as_they_are():
    images = noise(4, 3, 8)
    copy = images.clone()
    preprocess = Preprocess((0.5,) * 3, (0.2,) * 3, size=8, flip=True)
    preprocess.train(images, Draws(Stream.root(0)), 4)
    preprocess.normalise(images)
    assert torch.equal(images, copy)


@pytest.mark.parametrize("flip", [False, True])
def test_training_draws_offsets_and_mirrors_for_every_image(flip):
    images, draws = noise(128, 1, 8), Draws(Stream.root(4))
    preprocess = Preprocess((0.0,), (1 / 255,), size=8, flip=flip)  # bytes stay what they are
    made = preprocess.train(images, draws, 128).round().byte().numpy()
    found = set()
    for k, image in enumerate(images.numpy()):
        ways = [(d, r, m) for d in range(3) for r in range(3) for m in ((False, True) if flip else (False,))]
        fitting = [way for way in ways if np.array_equal(made[k], cropped(image, 1, *way))]
        assert len(fitting) == 1
        found.update(fitting)
    assert len(found) == (18 if flip else 9)  # with 128 images, no way is left out at this seed


@pytest.mark.parametrize(("size", "padding"), [(32, 4), (8, 1), (64, 8), (224, 28)])
def test_the_padding_is_an_eighth_of_the_side(size, padding):
    assert Preprocess((0.5,), (0.2,), size, flip=True).padding == padding
