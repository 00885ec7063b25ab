import numpy as np
import pytest
import torch

from etag.core.random import Draws, Placement, Stream
from etag.data.preprocess import Preprocess, random_crop, resized_crop


def noise(count, channels, size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=np.uint8))


def cropped(image, size, padding, down, right, mirror):
    """Naive crop of one image, pixel by pixel: pad it with zeros, mirror it if asked, cut out a window."""
    channels, height, width = image.shape
    result = np.zeros((channels, size, size), image.dtype)
    for c in range(channels):
        for y in range(size):
            for x in range(size):
                row, column = y + down - padding, x + right - padding
                if mirror:
                    column = width - 1 - column
                if 0 <= row < height and 0 <= column < width:
                    result[c, y, x] = image[c, row, column]
    return result


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("size", "padding"), [(6, 2), (2, 0), (4, 1)], ids=["padded", "inside", "both"])
def test_random_crop_cuts_each_image_at_its_own_offset(size, padding, mirrored):
    images = noise(25, 3, 6)
    down, right = torch.arange(25) // 5, torch.arange(25) % 5  # every offset once
    mirror = torch.arange(25) % 3 == 0 if mirrored else None
    result = random_crop(images, size, padding, down, right, mirror)
    assert result.dtype == torch.uint8
    for k, image in enumerate(images.numpy()):
        mirrored_here = mirrored and k % 3 == 0
        assert np.array_equal(result[k], cropped(image, size, padding, int(down[k]), int(right[k]), mirrored_here)), k


def test_random_crop_at_the_middle_offset_returns_the_image_or_its_mirror():
    images, middle = noise(2, 1, 8), torch.tensor([1, 1])
    result = random_crop(images, 8, 1, middle, middle, torch.tensor([False, True]))
    assert torch.equal(result[0], images[0])
    assert torch.equal(result[1], images[1].flip(-1))


def test_normalize_maps_bytes_to_zero_mean_and_unit_variance():
    images = noise(4, 3, 5)
    preprocess = Preprocess((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), size=5, flip=True)
    result = preprocess.centered(images)
    assert result.dtype == torch.float32
    for (k, c, y, x), byte in np.ndenumerate(images.numpy()):
        expected = (float(byte) / 255 - preprocess.mean[c]) / preprocess.std[c]
        assert result[k, c, y, x].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_are_in_channels_last_order(channels):
    preprocess = Preprocess((0.5,) * channels, (0.2,) * channels, size=8, flip=True)
    images, draws = noise(4, channels, 8), Draws(Stream.root(0))
    for result in (preprocess.centered(images), preprocess.augmented(images, draws, 4)):
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert result.shape == images.shape


def test_preprocessing_does_not_change_the_images_in_place():
    images = noise(4, 3, 8)
    copy = images.clone()
    preprocess = Preprocess((0.5,) * 3, (0.2,) * 3, size=8, flip=True)
    preprocess.augmented(images, Draws(Stream.root(0)), 4)
    preprocess.centered(images)
    assert torch.equal(images, copy)


@pytest.mark.parametrize(("stored", "padding"), [(8, 1), (10, 0)], ids=["padded image", "larger image"])
@pytest.mark.parametrize("flip", [False, True])
def test_training_crops_and_mirrors_every_image_at_random(flip, stored, padding):
    images, draws = noise(128, 1, stored), Draws(Stream.root(4))
    preprocess = Preprocess((0.0,), (1 / 255,), size=8, flip=flip)  # normalization leaves the bytes unchanged
    result = preprocess.augmented(images, draws, 128).round().byte().numpy()
    used = set()
    for k, image in enumerate(images.numpy()):
        ways = [(d, r, m) for d in range(3) for r in range(3) for m in ((False, True) if flip else (False,))]
        fitting = [way for way in ways if np.array_equal(result[k], cropped(image, 8, padding, *way))]
        assert len(fitting) == 1
        used.update(fitting)
    assert len(used) == (18 if flip else 9)  # with this seed, 128 images use every combination


@pytest.mark.parametrize(("size", "padding"), [(32, 4), (8, 1), (64, 8), (224, 28)])
def test_padding_is_an_eighth_of_the_side(size, padding):
    white = torch.full((400, 1, size, size), 255, dtype=torch.uint8)
    result = Preprocess((0.0,), (1.0,), size, flip=False).augmented(white, Draws(Stream.root(0)), 400)
    for line in (result[:, 0, :, size // 2], result[:, 0, size // 2, :]):  # from top to bottom, from left to right
        black = (line == 0).sum(1)
        assert (line == 0)[black > 0][:, [0, -1]].sum(1).tolist() == [1] * int((black > 0).sum())  # at one end
        assert black.max() == padding  # with this seed, 400 images include the largest offset


@pytest.mark.parametrize(("stored", "start"), [(8, 0), (9, 0), (10, 1), (11, 1), (16, 4)])
def test_testing_takes_the_center(stored, start):
    images = noise(3, 2, stored)
    preprocess = Preprocess((0.0,) * 2, (1 / 255,) * 2, size=8, flip=True)
    expected = images[:, :, start : start + 8, start : start + 8]
    assert torch.equal(preprocess.centered(images).round().byte(), expected)


@pytest.mark.parametrize("resized", [False, True])
def test_several_processes_augment_like_one(resized):
    images, stream = noise(7, 3, 10), Stream.root(0).child("step", 3)
    preprocess = Preprocess((0.5,) * 3, (0.2,) * 3, size=8, flip=True, resized_crop=resized)
    alone = preprocess.augmented(images, Draws(stream), 7)
    placements = [Placement(rank=rank, world=3) for rank in range(3)]
    several = [preprocess.augmented(images[own.own_rows(7)], Draws(stream, own), 7) for own in placements]
    torch.testing.assert_close(torch.cat(several), alone)
    assert not torch.equal(preprocess.augmented(images, Draws(stream.child("next")), 7), alone)


@pytest.mark.parametrize("rows", [12, 7])
def test_uniform_draws_of_several_processes_equal_those_of_one(rows):
    stream = Stream.root(0).child("step", 5)
    alone = Draws(stream).uniform("crop box", rows, 4)
    several = [Draws(stream, Placement(rank=rank, world=3)).uniform("crop box", rows, 4) for rank in range(3)]
    assert torch.equal(torch.cat(several), alone)
    assert alone.shape == (rows, 4)
    assert alone.min() >= 0
    assert alone.max() < 1
    assert len(alone.unique()) == 4 * rows


# -- resized crops ---------------------------------------------------------------------------------

WHOLE = [1.0, 0.5, 0.5, 0.5]  # the whole area, square


def sampled(image, size, box, mirror):
    """Naive resized crop of one image: each output pixel is interpolated from its four neighbors."""
    channels, side, _ = image.shape
    area, ratio = 0.08 + 0.92 * box[0], 3 / 4 * (16 / 9) ** box[1]
    width, height = min((area * ratio) ** 0.5, 1) * side, min((area / ratio) ** 0.5, 1) * side
    left, top = box[2] * (side - width), box[3] * (side - height)
    result = np.zeros((channels, size, size))
    for row in range(size):
        for column in range(size):
            y = top + (row + 0.5) / size * height - 0.5
            x = left + ((size - 1 - column if mirror else column) + 0.5) / size * width - 0.5
            y, x = min(max(y, 0), side - 1), min(max(x, 0), side - 1)
            for near_y in {int(y), min(int(y) + 1, side - 1)}:
                for near_x in {int(x), min(int(x) + 1, side - 1)}:
                    weight = (1 - abs(y - near_y)) * (1 - abs(x - near_x))
                    result[:, row, column] += weight * image[:, near_y, near_x]
    return result


@pytest.mark.parametrize("size", [5, 9, 12])
@pytest.mark.parametrize("mirrored", [False, True])
def test_resized_crop_equals_a_computation_pixel_by_pixel(size, mirrored):
    images, box = noise(12, 2, 9), torch.rand(12, 4, generator=torch.Generator().manual_seed(1))
    box[0], box[1], box[2] = torch.zeros(4), torch.ones(4), torch.tensor([0.9, 0.0, 0.3, 0.3])  # the limits
    mirror = torch.arange(12) % 2 == 0 if mirrored else None
    result = resized_crop(images, size, box, mirror)
    assert result.shape == (12, 2, size, size)
    assert result.dtype == torch.float32
    for k, image in enumerate(images.numpy()):
        expected = sampled(image, size, box[k].tolist(), mirrored and k % 2 == 0)
        np.testing.assert_allclose(result[k], expected, atol=2e-3, err_msg=str(k))


def test_resized_crop_of_the_whole_image_returns_it_or_its_mirror():
    images, box = noise(2, 3, 8), torch.tensor([WHOLE, WHOLE])
    result = resized_crop(images, 8, box, torch.tensor([False, True]))
    torch.testing.assert_close(result[0], images[0].float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(result[1], images[1].float().flip(-1), atol=1e-3, rtol=0)


def test_resized_crop_stays_inside_the_image():
    box = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    white = torch.full((500, 1, 16, 16), 255, dtype=torch.uint8)
    torch.testing.assert_close(resized_crop(white, 12, box, None), torch.full((500, 1, 12, 12), 255.0))
    result = resized_crop(noise(500, 3, 16), 12, box, box[:, 0] > 0.5)
    assert result.min() >= 0
    assert result.max() <= 255 + 1e-3


@pytest.mark.parametrize("axis", [2, 3], ids=["right", "down"])
def test_resized_crop_reaches_both_ends_of_the_image(axis):
    ramp = torch.arange(64, dtype=torch.uint8).expand(1, 1, 64, 64)
    image = ramp if axis == 2 else ramp.transpose(2, 3)
    box = torch.tensor([[0.0, 0.5, 0.5, 0.5]] * 2)
    box[:, axis] = torch.tensor([0.0, 1.0])
    first, last = resized_crop(image.expand(2, 1, 64, 64), 16, box, None)
    assert first.min() < 1
    assert last.max() > 62
    assert first.max() < 20  # a window of 8% is 18 pixels wide
    assert last.min() > 44


def test_training_with_resized_crop_draws_random_windows():
    images, draws = noise(64, 3, 16), Draws(Stream.root(0))
    preprocess = Preprocess((0.0,) * 3, (1 / 255,) * 3, size=12, flip=True, resized_crop=True)
    result = preprocess.augmented(images, draws, 64)
    box, mirror = draws.uniform("crop box", 64, 4), draws.integers("mirror", 0, 2, 64).bool()
    torch.testing.assert_close(result, resized_crop(images, 12, box, mirror), atol=1e-3, rtol=1e-5)
    assert torch.equal(result, preprocess.augmented(images, draws, 64))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert 0 < int(mirror.sum()) < 64
    center = Preprocess((0.0,) * 3, (1 / 255,) * 3, size=12, flip=True)
    assert torch.equal(preprocess.centered(images), center.centered(images))  # testing is not affected
