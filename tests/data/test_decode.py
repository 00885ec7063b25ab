import gc
import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from etag.core.images import Resize
from etag.data.decode import UnreadableImage, decode, image_size, inspect
from etag.data.formats import ENDINGS

# EXIF orientation -> function from the stored pixels to the displayed ones
ROTATIONS = {
    1: lambda image: image,
    2: np.fliplr,
    3: lambda image: np.rot90(image, 2),
    4: np.flipud,
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: np.rot90(image, 2).transpose(1, 0, 2),
    8: lambda image: np.rot90(image, 1),
}


def decoded(path, side):
    """Return the decoded image as height x width x 3."""
    pixels = decode(path, Resize(side))
    assert pixels.dtype == np.uint8
    assert pixels.shape == (3, side, side)
    assert pixels.flags.c_contiguous
    return pixels.transpose(1, 2, 0)


def ramps(width, height):
    """A smooth image: red grows to the right, green downwards."""
    red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([red, green, np.full_like(red, 90)], axis=2).round().astype(np.uint8)


def assert_near(pixels, expected, tolerance):
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= tolerance


# -- formats and kinds of pixels -------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "bmp", "webp", "tif", "TIFF"])
def test_a_lossless_file_is_decoded_exactly(tmp_path, picture, ending):
    pixels = picture(tmp_path / f"a.{ending}", width=12, height=12)
    assert np.array_equal(decoded(tmp_path / f"a.{ending}", 12), pixels)


@pytest.mark.parametrize("ending", ["jpg", "jpeg", "JPEG"])
def test_a_jpeg_is_decoded_approximately(tmp_path, ending):
    Image.fromarray(ramps(32, 32)).save(tmp_path / f"a.{ending}", quality=95, subsampling=0)
    assert_near(decoded(tmp_path / f"a.{ending}", 32), ramps(32, 32), 4)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_an_avif_is_decoded_approximately(tmp_path):
    Image.fromarray(ramps(32, 32)).save(tmp_path / "a.avif", quality=95)
    assert_near(decoded(tmp_path / "a.avif", 32), ramps(32, 32), 9)


@pytest.mark.parametrize("ending", ["heic", "jpg"])
def test_a_heic_is_decoded_with_its_extra_whatever_its_name(tmp_path, ending):
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.fromarray(ramps(64, 64)).save(tmp_path / "a", "HEIF", quality=95)
    (tmp_path / "a").rename(tmp_path / f"a.{ending}")
    assert image_size(tmp_path / f"a.{ending}") == (64, 64)
    assert_near(decoded(tmp_path / f"a.{ending}", 64), ramps(64, 64), 12)
    assert ".heic" in ENDINGS


def test_the_format_is_detected_from_the_bytes_not_the_file_name(tmp_path, picture):
    pixels = picture(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")  # as one file of ImageNet
    assert np.array_equal(decoded(tmp_path / "a.jpg", 8), pixels)


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
def test_every_kind_of_png_is_converted_to_rgb(tmp_path, image, options, expected):
    image.save(tmp_path / "a.png", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow warns about some palettes
        assert np.array_equal(decoded(tmp_path / "a.png", 6), expected)


@pytest.mark.parametrize(("color", "channels"), [(0, 1), (2, 3)], ids=["gray", "RGB"])
def test_a_16_bit_png_is_reduced_to_its_upper_8_bits(tmp_path, png_bytes, color, channels):
    values = np.random.default_rng(0).integers(0, 2**16, (6, 6, channels))
    values.flat[:4] = (0, 255, 256, 65535)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    (tmp_path / "a.png").write_bytes(png_bytes(6, 6, 16, color, rows))
    assert np.array_equal(decoded(tmp_path / "a.png", 6), np.broadcast_to(values >> 8, (6, 6, 3)))


def test_a_16_bit_tiff_is_reduced_to_its_upper_8_bits(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (6, 6)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert np.array_equal(decoded(tmp_path / "a.tif", 6), np.broadcast_to((values >> 8)[..., None], (6, 6, 3)))


def test_a_tiff_of_floats_between_0_and_1_is_scaled(tmp_path):
    values = np.linspace(0, 1, 36, dtype=np.float32).reshape(6, 6)
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert_near(decoded(tmp_path / "a.tif", 6), (255 * values[..., None]).round(), 0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[0, 300.0]], np.float32), "floats that are not between 0 and 1"),
        (np.array([[0, -0.1]], np.float32), "floats that are not between 0 and 1"),
        (np.array([[0, np.nan]], np.float32), "floats that are not between 0 and 1"),
        (np.array([[0, 1 << 16]], np.int32), "integers of more than 16 bits"),
        (np.array([[0, -1]], np.int32), "integers of more than 16 bits"),
    ],
)
def test_a_tiff_whose_range_nobody_knows_is_refused(tmp_path, values, reason):
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(UnreadableImage, match=reason):
        decode(tmp_path / "a.tif", Resize(8))


def test_a_cmyk_jpeg_is_converted_to_rgb(tmp_path):
    Image.new("CMYK", (16, 16), (200, 40, 0, 60)).save(tmp_path / "a.jpg", quality=95)
    expected = [(255 - ink) * (255 - 60) / 255 for ink in (200, 40, 0)]
    assert_near(decoded(tmp_path / "a.jpg", 16), np.array(expected), 4)


def test_a_gray_jpeg_is_converted_to_rgb(tmp_path):
    Image.new("L", (64, 64), 77).save(tmp_path / "a.jpg")
    assert_near(decoded(tmp_path / "a.jpg", 16), np.array([77]), 1)


def test_the_first_frame_of_an_animation_is_decoded(tmp_path):
    frames = [Image.new("RGB", (8, 8), color) for color in ((10, 20, 30), (200, 0, 0))]
    for ending in ("webp", "gif", "tif"):
        options = {"lossless": True} if ending == "webp" else {}
        frames[0].save(tmp_path / f"a.{ending}", save_all=True, append_images=frames[1:], **options)
        assert_near(decoded(tmp_path / f"a.{ending}", 8), np.array([10, 20, 30]), 0)


def test_the_first_picture_of_an_mpo_file_is_decoded(tmp_path):
    frames = [Image.new("RGB", (16, 16), color) for color in ((200, 30, 30), (0, 0, 200))]
    frames[0].save(tmp_path / "a.mpo", save_all=True, append_images=frames[1:], quality=95)
    (tmp_path / "a.mpo").rename(tmp_path / "a.jpg")  # as phones name them
    assert_near(decoded(tmp_path / "a.jpg", 16), np.array([200, 30, 30]), 3)


# -- orientation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_rotated_by_its_exif_orientation(tmp_path, picture, ending, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} | ({"lossless": True} if ending == "webp" else {})
    plain, turned = tmp_path / f"plain.{ending}", tmp_path / f"turned.{ending}"
    for width, height in ((16, 16), (24, 16)):
        pixels = picture(plain, width=width, height=height)
        Image.fromarray(pixels).save(turned, **options)
        assert image_size(plain) == (width, height)
        assert image_size(turned) == ROTATIONS[orientation](pixels).shape[1::-1]
        # scaling to a square and rotating commute, except for rounding
        assert_near(decoded(turned, 16), ROTATIONS[orientation](decoded(plain, 16)), 0 if width == 16 else 2)


@pytest.mark.parametrize("exif", [b"Exif\0\0neither II nor MM", b"Exif\0\0II*\0\x08\0\0\0\x05\0"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_an_image_with_corrupt_exif_data_is_still_decoded(tmp_path, exif):
    Image.fromarray(ramps(24, 16)).save(tmp_path / "a.jpg", exif=exif)
    assert image_size(tmp_path / "a.jpg") == (24, 16)
    decoded(tmp_path / "a.jpg", 16)


def test_the_size_of_a_png_is_read_from_its_header_alone(tmp_path, png_bytes):
    (tmp_path / "a.png").write_bytes(png_bytes(300, 300)[:60])  # no pixels at all
    assert image_size(tmp_path / "a.png") == (300, 300)


# -- resizing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jpg", "png"])
@pytest.mark.parametrize(("width", "height"), [(512, 512), (300, 200), (64, 400), (20, 20), (1, 50)])
def test_resizing_does_not_change_a_constant_color(tmp_path, ending, width, height):
    Image.new("RGB", (width, height), (200, 100, 50)).save(tmp_path / f"a.{ending}", quality=95)
    assert_near(decoded(tmp_path / f"a.{ending}", 32), np.array([200, 100, 50]), 3)


@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_a_large_image_is_reduced_to_the_mean_of_its_blocks(tmp_path, ending):
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[:] = ramps(512, 512)
    pixels[::2] //= 2  # fine stripes that must be averaged out
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}", quality=95, subsampling=0)
    blocks = pixels.reshape(32, 16, 32, 16, 3).mean((1, 3))
    inner = slice(1, -1)  # at the edge the filter covers less
    assert_near(decoded(tmp_path / f"a.{ending}", 32)[inner, inner], blocks[inner, inner], 4)


def test_a_rectangle_is_squeezed_into_a_square(tmp_path):
    Image.fromarray(ramps(128, 32)).save(tmp_path / "a.png")
    assert_near(decoded(tmp_path / "a.png", 32), ramps(32, 32), 4)


# -- unreadable files ------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path, picture, png_bytes):
    """A folder of files that cannot be decoded, named by what is wrong with them."""
    picture(tmp_path / "good.jpg", width=64, height=64)
    picture(tmp_path / "good.png", width=64, height=64)
    Image.fromarray(ramps(64, 64)).save(tmp_path / "good.tif", compression="tiff_lzw")  # its directory is at the end
    contents = {
        "text.png": b"These are words.\n" * 50,
        "nothing.jpg": b"",
        "cut.jpg": (tmp_path / "good.jpg").read_bytes()[:-2000],
        "cut.png": (tmp_path / "good.png").read_bytes()[:-2000],
        "bomb.png": png_bytes(20_000, 20_000),
        "small bomb.png": png_bytes(10_000, 10_000),  # Pillow would only warn
        "cut.tif": (tmp_path / "good.tif").read_bytes()[:-50],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text.png", "not an image"),
        ("nothing.jpg", "not an image"),
        ("cut.jpg", r"damaged: image file is truncated.*"),
        ("cut.png", r"damaged: image file is truncated.*"),
        ("cut.tif", "damaged, or an unusual kind of TIFF"),
        ("bomb.png", "far too large"),
        ("small bomb.png", "far too large"),
        ("missing.png", "file not found"),
    ],
)
def test_an_unreadable_file_raises_an_error_with_the_reason(damaged, name, reason):
    for read in (lambda path: decode(path, Resize(8)), inspect, image_size):
        if name in ("cut.jpg", "cut.png") and read is image_size:
            continue  # the header is intact
        with pytest.raises(UnreadableImage, match=rf"^{reason}$"):
            read(damaged / name)


def reasons_of_all(folder):
    for path in [*sorted(folder.iterdir()), folder / "missing.png"]:
        for read in (lambda path: decode(path, Resize(8)), image_size):
            try:
                read(path)
            except UnreadableImage as reason:
                yield reason  # the caller stores it; its traceback must not keep a file open


def test_the_warning_filters_are_restored(damaged):
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        before = list(warnings.filters), warnings.showwarning
        assert len(list(reasons_of_all(damaged))) >= 11
        assert (list(warnings.filters), warnings.showwarning) == before


def test_no_file_is_left_open(damaged):
    gc.collect()  # files of earlier tests
    before = sorted(os.listdir("/proc/self/fd"))
    reasons = [list(reasons_of_all(damaged)) for _ in range(3)]
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert len(reasons) == 3


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("cut", [3, 100, 5000, 0.5])
def test_a_truncated_photo_is_found_by_inspection_and_by_decoding(shared_data, tmp_path, progressive, cut):
    photo = sorted((shared_data / "flowers12" / "train" / "daisy").iterdir())[0]
    with Image.open(photo) as image:
        image.resize((1000, 1000)).save(tmp_path / "a.jpg", quality=90, progressive=progressive)
    content = (tmp_path / "a.jpg").read_bytes()
    inspect(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes(content[: -cut if cut >= 1 else int(cut * len(content))])
    for read in (inspect, lambda path: decode(path, Resize(32))):  # a JPEG that is decoded at a smaller scale, too
        with pytest.raises(UnreadableImage, match="damaged: image file is truncated"):
            read(tmp_path / "a.jpg")


def test_inspection_returns_a_thumbnail_and_the_shorter_side(tmp_path):
    Image.fromarray(ramps(640, 320)).save(tmp_path / "a.jpg", quality=95)
    thumbnail, side = inspect(tmp_path / "a.jpg")
    expected = np.asarray(Image.fromarray(ramps(32, 32)).convert("L"))
    assert side == 320
    assert_near(thumbnail, expected, 4)


def test_only_allowed_formats_are_opened(tmp_path):
    """Pillow hands an EPS to Ghostscript, a program that runs what is in the file."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(UnreadableImage, match="not an image"):
        decode(tmp_path / "a.png", Resize(8))


# -- fuzzing ---------------------------------------------------------------------------------------


def or_reason(read, *arguments):
    """Return the result, or None after UnreadableImage with a reason; any other exception fails the test."""
    try:
        return read(*arguments)
    except UnreadableImage as reason:
        text = str(reason)
    assert text
    return None


def image_or_reason(path):
    width, height = or_reason(image_size, path) or (1, 1)
    assert width * height > 0
    return or_reason(decoded, path, 8)


@pytest.fixture(scope="module")
def valid(tmp_path_factory, picture):
    """The bytes of a valid file of each format, and a path for a corrupted one."""
    folder = tmp_path_factory.mktemp("valid")
    for ending in ("jpg", "png", "webp", "bmp", "gif", "tif"):
        picture(folder / f"a.{ending}", width=16, height=16)
        assert image_or_reason(folder / f"a.{ending}") is not None
    return [path.read_bytes() for path in sorted(folder.iterdir())], folder / "corrupted.png"


@settings(max_examples=150)
@given(content=st.binary(max_size=300))
def test_random_bytes_raise_unreadable_image(valid, content):
    _, path = valid
    path.write_bytes(content)
    assert image_or_reason(path) is None


@settings(max_examples=300)
@given(
    which=st.integers(0, 5),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    share=st.floats(0.1, 1),
)
@pytest.mark.filterwarnings("ignore")
def test_a_corrupted_file_gives_an_image_or_a_reason(valid, which, changes, share):
    files, path = valid
    content = bytearray(files[which])
    for position, value in changes:
        content[int(position * position * len(content))] = value  # mostly in the header, where it matters
    path.write_bytes(content[: int(share * len(content))])
    image_or_reason(path)
