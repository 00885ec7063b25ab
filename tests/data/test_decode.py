import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from etag.data.decode import UnreadableImage, decode, image_size

# the file's pixels, as they should be seen, for each value of EXIF's orientation
TURNS = {
    1: lambda image: image,
    2: np.fliplr,
    3: lambda image: np.rot90(image, 2),
    4: np.flipud,
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: np.rot90(image, 2).transpose(1, 0, 2),
    8: lambda image: np.rot90(image, 1),
}


def seen(path, side):
    """Decoded, as height x width x 3."""
    made = decode(path, side)
    assert made.dtype == np.uint8
    assert made.shape == (3, side, side)
    assert made.flags.c_contiguous
    return made.transpose(1, 2, 0)


def ramps(width, height):
    """A smooth picture: red grows to the right, green downwards."""
    red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([red, green, np.full_like(red, 90)], axis=2).round().astype(np.uint8)


def assert_near(made, expected, tolerance):
    assert np.abs(made.astype(int) - expected.astype(int)).max() <= tolerance


# -- formats and kinds of pixels -------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "bmp", "webp"])
def test_a_lossless_file_gives_its_pixels(tmp_path, picture, ending):
    pixels = picture(tmp_path / f"a.{ending}", width=12, height=12)
    assert np.array_equal(seen(tmp_path / f"a.{ending}", 12), pixels)


@pytest.mark.parametrize("ending", ["jpg", "jpeg", "JPEG"])
def test_a_jpeg_gives_nearly_its_pixels(tmp_path, ending):
    Image.fromarray(ramps(32, 32)).save(tmp_path / f"a.{ending}", quality=95, subsampling=0)
    assert_near(seen(tmp_path / f"a.{ending}", 32), ramps(32, 32), 4)


def test_the_format_is_known_by_its_bytes_not_by_the_ending(tmp_path, picture):
    pixels = picture(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")  # as one file of ImageNet is
    assert np.array_equal(seen(tmp_path / "a.jpg", 8), pixels)


GRAY = np.arange(0, 252, 7, dtype=np.uint8).reshape(6, 6)
ALPHA = np.tile(np.array([0, 128, 255], np.uint8), 12).reshape(6, 6)
COLOR = np.stack([GRAY, GRAY[::-1], GRAY.T], axis=2)


def palette():
    image = Image.fromarray(np.arange(36, dtype=np.uint8).reshape(6, 6), "P")
    image.putpalette(COLOR.tobytes())
    return image


@pytest.mark.parametrize(
    ("image", "options", "expected"),
    [
        (Image.fromarray(GRAY), {}, np.stack([GRAY] * 3, axis=2)),
        (Image.fromarray(np.dstack([GRAY, ALPHA])), {}, np.stack([GRAY] * 3, axis=2)),
        (Image.fromarray(np.dstack([COLOR, ALPHA])), {}, COLOR),
        (palette(), {}, COLOR),
        (palette(), {"transparency": 3}, COLOR),
        (palette(), {"transparency": bytes(range(36))}, COLOR),
        (Image.fromarray(ALPHA > 100), {}, np.stack([(ALPHA > 100) * 255] * 3, axis=2)),
    ],
    ids=["gray", "gray+alpha", "RGBA", "palette", "palette, one clear color", "palette, many alphas", "1-bit"],
)
def test_every_kind_of_png_becomes_its_colors(tmp_path, image, options, expected):
    image.save(tmp_path / "a.png", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow has something to say on palettes
        assert np.array_equal(seen(tmp_path / "a.png", 6), expected)


@pytest.mark.parametrize(("color", "channels"), [(0, 1), (2, 3)], ids=["gray", "RGB"])
def test_of_16_bits_the_upper_8_are_kept(tmp_path, png_bytes, color, channels):
    values = np.random.default_rng(0).integers(0, 2**16, (6, 6, channels))
    values.flat[:4] = (0, 255, 256, 65535)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    (tmp_path / "a.png").write_bytes(png_bytes(6, 6, 16, color, rows))
    assert np.array_equal(seen(tmp_path / "a.png", 6), np.broadcast_to(values >> 8, (6, 6, 3)))


def test_a_cmyk_jpeg_becomes_its_colors(tmp_path):
    Image.new("CMYK", (16, 16), (200, 40, 0, 60)).save(tmp_path / "a.jpg", quality=95)
    expected = [(255 - ink) * (255 - 60) / 255 for ink in (200, 40, 0)]
    assert_near(seen(tmp_path / "a.jpg", 16), np.array(expected), 4)


def test_a_grey_jpeg_becomes_color(tmp_path):
    Image.new("L", (64, 64), 77).save(tmp_path / "a.jpg")
    assert_near(seen(tmp_path / "a.jpg", 16), np.array([77]), 1)


def test_of_an_animation_the_first_picture_is_taken(tmp_path):
    frames = [Image.new("RGB", (8, 8), color) for color in ((10, 20, 30), (200, 0, 0))]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], lossless=True)
    assert_near(seen(tmp_path / "a.webp", 8), np.array([10, 20, 30]), 0)


def test_of_the_pictures_of_a_phone_the_first_is_taken(tmp_path):
    frames = [Image.new("RGB", (16, 16), color) for color in ((200, 30, 30), (0, 0, 200))]
    frames[0].save(tmp_path / "a.mpo", save_all=True, append_images=frames[1:], quality=95)
    (tmp_path / "a.mpo").rename(tmp_path / "a.jpg")  # as phones call them
    assert_near(seen(tmp_path / "a.jpg", 16), np.array([200, 30, 30]), 3)


# -- upright ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright(tmp_path, picture, ending, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} | ({"lossless": True} if ending == "webp" else {})
    plain, turned = tmp_path / f"plain.{ending}", tmp_path / f"turned.{ending}"
    for width, height in ((16, 16), (24, 16)):
        pixels = picture(plain, width=width, height=height)
        Image.fromarray(pixels).save(turned, **options)
        assert image_size(plain) == (width, height)
        assert image_size(turned) == TURNS[orientation](pixels).shape[1::-1]
        # scaling to a square and turning can be done in either order, but for rounding
        assert_near(seen(turned, 16), TURNS[orientation](seen(plain, 16)), 0 if width == 16 else 2)


@pytest.mark.parametrize("exif", [b"Exif\0\0neither II nor MM", b"Exif\0\0II*\0\x08\0\0\0\x05\0"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_spoilt_exif_does_not_spoil_the_image(tmp_path, exif):
    Image.fromarray(ramps(24, 16)).save(tmp_path / "a.jpg", exif=exif)
    assert image_size(tmp_path / "a.jpg") == (24, 16)
    seen(tmp_path / "a.jpg", 16)


def test_the_size_of_a_png_is_read_from_its_head_alone(tmp_path, png_bytes):
    (tmp_path / "a.png").write_bytes(png_bytes(300, 300)[:60])  # no pixels at all
    assert image_size(tmp_path / "a.png") == (300, 300)


# -- resized ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize(("width", "height"), [(512, 512), (300, 200), (64, 400), (20, 20), (1, 50)])
def test_a_constant_color_survives_any_change_of_size(tmp_path, ending, width, height):
    Image.new("RGB", (width, height), (200, 100, 50)).save(tmp_path / f"a.{ending}", quality=95)
    assert_near(seen(tmp_path / f"a.{ending}", 32), np.array([200, 100, 50]), 3)


@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_a_large_image_becomes_the_mean_of_its_blocks(tmp_path, ending):
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[:] = ramps(512, 512)
    pixels[::2] //= 2  # fine stripes, which must not survive
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}", quality=95, subsampling=0)
    blocks = pixels.reshape(32, 16, 32, 16, 3).mean((1, 3))
    inner = slice(1, -1)  # at the edge the filter sees less
    assert_near(seen(tmp_path / f"a.{ending}", 32)[inner, inner], blocks[inner, inner], 4)


def test_an_oblong_is_squeezed_into_the_square(tmp_path):
    Image.fromarray(ramps(128, 32)).save(tmp_path / "a.png")
    assert_near(seen(tmp_path / "a.png", 32), ramps(32, 32), 4)


# -- what cannot be read --------------------------------------------------------------------------


@pytest.fixture
def spoilt(tmp_path, picture, png_bytes):
    """Files that cannot be read, by what is the matter."""
    picture(tmp_path / "good.jpg", width=64, height=64)
    picture(tmp_path / "good.png", width=64, height=64)
    contents = {
        "text.png": b"These are words.\n" * 50,
        "nothing.jpg": b"",
        "cut.jpg": (tmp_path / "good.jpg").read_bytes()[:-2000],
        "cut.png": (tmp_path / "good.png").read_bytes()[:-2000],
        "bomb.png": png_bytes(20_000, 20_000),
        "small bomb.png": png_bytes(10_000, 10_000),  # Pillow would only warn
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text.png", "not an image"),
        ("nothing.jpg", "not an image"),
        ("cut.jpg", r"damaged: image file is truncated.*"),
        ("cut.png", r"damaged: image file is truncated.*"),
        ("bomb.png", "far too large"),
        ("small bomb.png", "far too large"),
        ("missing.png", "no longer there"),
    ],
)
def test_what_can_not_be_read_is_said_in_words(spoilt, name, words):
    for read in (lambda path: decode(path, 8), image_size):
        if name.startswith("cut") and read is image_size:
            continue  # its head is whole
        with pytest.raises(UnreadableImage, match=rf"^{words}$"):
            read(spoilt / name)


def read_them_all(folder):
    for path in [*sorted(folder.iterdir()), folder / "missing.png"]:
        for read in (lambda path: decode(path, 8), image_size):
            try:
                read(path)
            except UnreadableImage as reason:
                yield reason  # kept, with its traceback, which must not keep a file open


def test_the_state_of_warnings_is_left_as_it_was(spoilt):
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        before = list(warnings.filters), warnings.showwarning
        assert len(list(read_them_all(spoilt))) >= 11
        assert (list(warnings.filters), warnings.showwarning) == before


def test_no_file_is_left_open(spoilt):
    before = sorted(os.listdir("/proc/self/fd"))
    reasons = [list(read_them_all(spoilt)) for _ in range(3)]
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert len(reasons) == 3


def test_only_formats_with_a_known_ending_are_opened(tmp_path):
    """Pillow hands an EPS to Ghostscript, a program that runs what is in the file."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(UnreadableImage, match="not an image"):
        decode(tmp_path / "a.png", 8)


# -- anything at all -------------------------------------------------------------------------------


def or_reason(read, *arguments):
    """What is read, or None and a reason; nothing else may come out."""
    try:
        return read(*arguments)
    except UnreadableImage as reason:
        words = str(reason)
    assert words
    return None


def image_or_reason(path):
    width, height = or_reason(image_size, path) or (1, 1)
    assert width * height > 0
    return or_reason(seen, path, 8)


@pytest.fixture(scope="module")
def valid(tmp_path_factory, picture):
    """A whole file of each format, as bytes, and where to put a spoilt one."""
    folder = tmp_path_factory.mktemp("valid")
    for ending in ("jpg", "png", "webp", "bmp"):
        picture(folder / f"a.{ending}", width=16, height=16)
        assert image_or_reason(folder / f"a.{ending}") is not None
    return [path.read_bytes() for path in sorted(folder.iterdir())], folder / "spoilt.png"


@settings(max_examples=150)
@given(content=st.binary(max_size=300))
def test_random_bytes_are_no_image(valid, content):
    _, path = valid
    path.write_bytes(content)
    assert image_or_reason(path) is None


@settings(max_examples=300)
@given(
    which=st.integers(0, 3),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    kept=st.floats(0.1, 1),
)
@pytest.mark.filterwarnings("ignore")
def test_a_spoilt_file_gives_an_image_or_a_reason(valid, which, changes, kept):
    wholes, path = valid
    content = bytearray(wholes[which])
    for place, value in changes:
        content[int(place * place * len(content))] = value  # mostly in the head, where it matters
    path.write_bytes(content[: int(kept * len(content))])
    image_or_reason(path)
