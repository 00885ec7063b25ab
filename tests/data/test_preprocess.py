import numpy as np
import pytest
import torch

from etag.core.random import Draws, Placement, Stream
from etag.data.preprocess import Preprocess, random_crop, resized_crop


def noise(count, channels, size, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    )


def cropped(image, size, padding, down, right, mirror):
    """One image: pad it with zeros, perhaps mirror it, cut out a window; pixel by pixel."""
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
def test_random_crop_cuts_each_image_at_its_own_place(size, padding, mirrored):
    images = noise(25, 3, 6)
    down, right = torch.arange(25) // 5, torch.arange(25) % 5  # every offset once
    mirror = torch.arange(25) % 3 == 0 if mirrored else None
    made = random_crop(images, size, padding, down, right, mirror)
    assert made.dtype == torch.uint8
    for k, image in enumerate(images.numpy()):
        turned = mirrored and k % 3 == 0
        assert np.array_equal(made[k], cropped(image, size, padding, int(down[k]), int(right[k]), turned)), k


def test_the_middle_offset_gives_the_image_back_and_mirrors_it_where_asked():
    images, middle = noise(2, 1, 8), torch.tensor([1, 1])
    made = random_crop(images, 8, 1, middle, middle, torch.tensor([False, True]))
    assert torch.equal(made[0], images[0])
    assert torch.equal(made[1], images[1].flip(-1))


def test_normalize_maps_bytes_to_zero_mean_and_unit_variance():
    images = noise(4, 3, 5)
    preprocess = Preprocess((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), size=5, flip=True)
    made = preprocess.test(images)
    assert made.dtype == torch.float32
    for (k, c, y, x), byte in np.ndenumerate(images.numpy()):
        expected = (float(byte) / 255 - preprocess.mean[c]) / preprocess.std[c]
        assert made[k, c, y, x].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_are_laid_out_channels_last(channels):
    preprocess = Preprocess((0.5,) * channels, (0.2,) * channels, size=8, flip=True)
    images, draws = noise(4, channels, 8), Draws(Stream.root(0))
    for made in (preprocess.test(images), preprocess.train(images, draws, 4)):
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert made.shape == images.shape


def test_the_images_themselves_stay_as_they_are():
    images = noise(4, 3, 8)
    copy = images.clone()
    preprocess = Preprocess((0.5,) * 3, (0.2,) * 3, size=8, flip=True)
    preprocess.train(images, Draws(Stream.root(0)), 4)
    preprocess.test(images)
    assert torch.equal(images, copy)


@pytest.mark.parametrize(("stored", "padding"), [(8, 1), (10, 0)], ids=["of the padded image", "of a larger image"])
@pytest.mark.parametrize("flip", [False, True])
def test_training_draws_windows_and_mirrors_for_every_image(flip, stored, padding):
    images, draws = noise(128, 1, stored), Draws(Stream.root(4))
    preprocess = Preprocess((0.0,), (1 / 255,), size=8, flip=flip)  # bytes stay what they are
    made = preprocess.train(images, draws, 128).round().byte().numpy()
    found = set()
    for k, image in enumerate(images.numpy()):
        ways = [(d, r, m) for d in range(3) for r in range(3) for m in ((False, True) if flip else (False,))]
        fitting = [way for way in ways if np.array_equal(made[k], cropped(image, 8, padding, *way))]
        assert len(fitting) == 1
        found.update(fitting)
    assert len(found) == (18 if flip else 9)  # with 128 images, no way is left out at this seed


@pytest.mark.parametrize(("size", "padding"), [(32, 4), (8, 1), (64, 8), (224, 28)])
def test_the_padding_is_an_eighth_of_the_side(size, padding):
    white = torch.full((400, 1, size, size), 255, dtype=torch.uint8)
    made = Preprocess((0.0,), (1.0,), size, flip=False).train(white, Draws(Stream.root(0)), 400)
    for line in (made[:, 0, :, size // 2], made[:, 0, size // 2, :]):  # from top to bottom, from left to right
        black = (line == 0).sum(1)
        assert (line == 0)[black > 0][:, [0, -1]].sum(1).tolist() == [1] * int((black > 0).sum())  # at one end
        assert black.max() == padding  # with 400 images, the outermost is among them at this seed


@pytest.mark.parametrize(("stored", "start"), [(8, 0), (9, 0), (10, 1), (11, 1), (16, 4)])
def test_testing_takes_the_centre(stored, start):
    images = noise(3, 2, stored)
    preprocess = Preprocess((0.0,) * 2, (1 / 255,) * 2, size=8, flip=True)
    expected = images[:, :, start : start + 8, start : start + 8]
    assert torch.equal(preprocess.test(images).round().byte(), expected)


@pytest.mark.parametrize("resized", [False, True])
def test_several_processes_augment_as_one_does(resized):
    images, stream = noise(7, 3, 10), Stream.root(0).child("step", 3)
    preprocess = Preprocess((0.5,) * 3, (0.2,) * 3, size=8, flip=True, resized_crop=resized)
    alone = preprocess.train(images, Draws(stream), 7)
    places = [Placement(rank=rank, world=3) for rank in range(3)]
    several = [preprocess.train(images[place.share(7)], Draws(stream, place), 7) for place in places]
    torch.testing.assert_close(torch.cat(several), alone)
    assert not torch.equal(preprocess.train(images, Draws(stream.child("next")), 7), alone)


@pytest.mark.parametrize("rows", [12, 7])
def test_uniform_draws_of_several_processes_are_those_of_one(rows):
    stream = Stream.root(0).child("step", 5)
    alone = Draws(stream).uniform("crop box", rows, 4)
    several = [Draws(stream, Placement(rank=rank, world=3)).uniform("crop box", rows, 4) for rank in range(3)]
    assert torch.equal(torch.cat(several), alone)
    assert alone.shape == (rows, 4)
    assert alone.min() >= 0
    assert alone.max() < 1
    assert len(alone.unique()) == 4 * rows


# -- windows of random size ------------------------------------------------------------------------

WHOLE = [1.0, 0.5, 0.5, 0.5]  # all of the area, as wide as high


def sampled(image, size, box, mirror):
    """One image: the window that `box` describes, scaled; each pixel from its four neighbors."""
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
def test_a_resized_crop_is_made_pixel_by_pixel(size, mirrored):
    images, box = noise(12, 2, 9), torch.rand(12, 4, generator=torch.Generator().manual_seed(1))
    box[0], box[1], box[2] = torch.zeros(4), torch.ones(4), torch.tensor([0.9, 0.0, 0.3, 0.3])  # the limits
    mirror = torch.arange(12) % 2 == 0 if mirrored else None
    made = resized_crop(images, size, box, mirror)
    assert made.shape == (12, 2, size, size)
    assert made.dtype == torch.float32
    for k, image in enumerate(images.numpy()):
        expected = sampled(image, size, box[k].tolist(), mirrored and k % 2 == 0)
        np.testing.assert_allclose(made[k], expected, atol=2e-3, err_msg=str(k))


def test_the_whole_window_is_the_image_and_mirrors_it_where_asked():
    images, box = noise(2, 3, 8), torch.tensor([WHOLE, WHOLE])
    made = resized_crop(images, 8, box, torch.tensor([False, True]))
    torch.testing.assert_close(made[0], images[0].float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(made[1], images[1].float().flip(-1), atol=1e-3, rtol=0)


def test_any_window_stays_inside_the_image():
    box = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    white = torch.full((500, 1, 16, 16), 255, dtype=torch.uint8)
    torch.testing.assert_close(resized_crop(white, 12, box, None), torch.full((500, 1, 12, 12), 255.0))
    made = resized_crop(noise(500, 3, 16), 12, box, box[:, 0] > 0.5)
    assert made.min() >= 0
    assert made.max() <= 255 + 1e-3


@pytest.mark.parametrize("axis", [2, 3], ids=["right", "down"])
def test_windows_reach_from_end_to_end(axis):
    ramp = torch.arange(64, dtype=torch.uint8).expand(1, 1, 64, 64)
    image = ramp if axis == 2 else ramp.transpose(2, 3)
    box = torch.tensor([[0.0, 0.5, 0.5, 0.5]] * 2)
    box[:, axis] = torch.tensor([0.0, 1.0])
    first, last = resized_crop(image.expand(2, 1, 64, 64), 16, box, None)
    assert first.min() < 1
    assert last.max() > 62
    assert first.max() < 20  # a window of 8% is 18 pixels wide
    assert last.min() > 44


def test_training_on_resized_crops_draws_them():
    images, draws = noise(64, 3, 16), Draws(Stream.root(0))
    preprocess = Preprocess((0.0,) * 3, (1 / 255,) * 3, size=12, flip=True, resized_crop=True)
    made = preprocess.train(images, draws, 64)
    box, mirror = draws.uniform("crop box", 64, 4), draws.integers("mirror", 0, 2, 64).bool()
    torch.testing.assert_close(made, resized_crop(images, 12, box, mirror), atol=1e-3, rtol=1e-5)
    assert torch.equal(made, preprocess.train(images, draws, 64))
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert 0 < int(mirror.sum()) < 64
    center = Preprocess((0.0,) * 3, (1 / 255,) * 3, size=12, flip=True)
    assert torch.equal(preprocess.test(images), center.test(images))  # in training only
