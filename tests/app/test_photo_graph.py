"""The graph in front of an exported network turns photos into the images that Pillow makes of them."""

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from etag.app.photo_graph import photo_graph
from etag.core.images import Resize
from etag.data.decode import decode, decode_photo

SQUASH, CROP = Resize(24), Resize(28, "bicubic", 0.875)


def graph(resize, channels=3, opset=18):
    content = photo_graph(resize, channels, ir_version=10, opset=opset).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda photos: session.run(None, {"photos": photos})[0] * 255


def photo(height, width, colors=3):
    """Smooth colors with noise."""
    numbers = np.random.default_rng([height, width])
    rough = numbers.integers(40, 216, (2 + height // 16, 2 + width // 16, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(rough).resize((width, height)), dtype=np.int16)
    pixels = (smooth + numbers.integers(-20, 21, smooth.shape)).clip(0, 255).astype(np.uint8)
    return pixels[..., :colors]


def by_pillow(pixels, resize, folder, channels=3):
    Image.fromarray(pixels).save(folder / "photo.png")
    return decode(folder / "photo.png", resize, channels)


@pytest.mark.parametrize("opset", [18, 20])
@pytest.mark.parametrize("resize", [SQUASH, CROP, Resize(24, "bicubic"), Resize(31, "bilinear", 0.9)], ids=str)
@pytest.mark.parametrize("size", [(24, 24), (40, 60), (19, 23), (99, 150), (301, 402), (500, 1001)], ids=str)
def test_wide_photos_become_what_pillow_makes_of_them(resize, size, opset, tmp_path):
    found = graph(resize, opset=opset)(photo(*size)[None])[0]
    expected = by_pillow(photo(*size), resize, tmp_path)
    far = np.abs(found - expected)
    assert far.max() < 2.01
    assert (far > 0.5).mean() < 0.15, "only halves, which small ratios make often, may be rounded otherwise"


def test_an_image_of_the_right_side_stays_as_it_is():
    pixels = photo(24, 24)
    np.testing.assert_allclose(graph(SQUASH)(pixels[None])[0], pixels.transpose(2, 0, 1), atol=1e-4)


@pytest.mark.parametrize("size", [(150, 99), (640, 480), (1001, 300)], ids=str)
def test_tall_photos_differ_by_the_order_of_the_two_directions_only(size, tmp_path):
    for resize in (SQUASH, CROP):
        far = np.abs(graph(resize)(photo(*size)[None])[0] - by_pillow(photo(*size), resize, tmp_path))
        assert far.max() < 4.01
        assert far.mean() < 0.4


@pytest.mark.parametrize("resize", [SQUASH, CROP], ids=str)
def test_every_size_leads_to_the_same_side(resize):
    """A side that is one pixel too small would make the network behind it fail."""
    run, numbers = graph(resize), np.random.default_rng(0)
    for height, width in [(1, 1), (1, 300), (300, 1), *numbers.integers(1, 400, (60, 2)).tolist()]:
        assert run(np.zeros((1, height, width, 3), dtype=np.uint8)).shape == (1, 3, resize.side, resize.side)


def test_photos_of_a_batch_do_not_influence_each_other():
    photos = np.stack([photo(120, 200), 255 - photo(120, 200)])
    run = graph(CROP)
    np.testing.assert_array_equal(run(photos), np.concatenate([run(photos[:1]), run(photos[1:])]))


def test_a_model_of_gray_images_takes_gray_photos_and_colored_ones(tmp_path):
    run, colored = graph(CROP, channels=1), photo(90, 130)
    gray = colored[..., :1]
    np.testing.assert_allclose(run(colored[None])[0], by_pillow(colored, CROP, tmp_path, channels=1), atol=1.01)
    np.testing.assert_allclose(run(gray[None])[0], by_pillow(gray[..., 0], CROP, tmp_path, channels=1), atol=1.01)
    np.testing.assert_array_equal(run(gray[None]), run(np.repeat(gray, 3, axis=2)[None]))


def test_a_photo_is_decoded_in_its_own_size_and_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    pixels = photo(30, 50)
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    np.testing.assert_array_equal(decode_photo(tmp_path / "photo.png"), np.rot90(pixels, -1))
