"""Images that are nearly the same, among real photos."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from tests.app.conftest import etag

from etag.app import near_copies as module
from etag.app.copies import find_copies
from etag.app.near_copies import near_copies
from etag.core.images import Resize
from etag.data.decode import inspect
from etag.data.folders import as_images


@pytest.fixture(scope="module")
def photos(shared_data):
    """Twenty photos of each of three kinds, all different."""
    kinds = ("fritillary", "sunflower", "pansy")
    files = [sorted((shared_data / "flowers12" / "train" / kind).iterdir())[:20] for kind in kinds]
    return [file for own in files for file in own]


def cropped(image, share=0.05):
    width, height = image.size
    return image.crop((round(share * width), 0, width, round((1 - share) * height)))


CHANGES = {
    "saved again": lambda image: image,
    "half the size": lambda image: image.resize((112, 112)),
    "larger": lambda image: image.resize((400, 400)),
    "cropped": cropped,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "gray": lambda image: image.convert("L"),
    "cropped and scaled": lambda image: cropped(image).resize((150, 150)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_among_different_photos(photos, tmp_path, change):
    for number, file in enumerate(photos[::6]):
        with Image.open(file) as image:
            CHANGES[change](image).save(tmp_path / f"{number}.jpg", quality=60)
    thumbnails = [inspect(file)[0] for file in [*photos, *sorted(tmp_path.iterdir())]]
    groups = near_copies(np.stack(thumbnails))
    expected = [[6 * number, len(photos) + number] for number in range(10)]
    assert all(group in expected for group in groups), "none of the others is a copy"
    assert len(groups) == 10


def test_images_of_one_color_and_no_images_are_no_copies():
    assert near_copies(np.zeros((3, 32, 32), np.uint8)) == []
    assert near_copies(np.zeros((0, 32, 32), np.uint8)) == []


def test_groups_are_found_whatever_the_number_of_images_at_a_time(photos, monkeypatch):
    thumbnails = np.stack([inspect(file)[0] for file in photos])
    twice = np.concatenate([thumbnails, thumbnails[::-1]])
    expected = [[row, 119 - row] for row in range(60)]
    assert near_copies(twice) == expected
    monkeypatch.setattr(module, "ROWS", 7)
    assert near_copies(twice) == expected
    assert near_copies(np.concatenate([twice, thumbnails[:1]]))[0] == [0, 119, 120]


def test_exact_copies_and_small_images_are_no_near_copies(photos, tmp_path):
    shutil.copy(photos[0], tmp_path / "a.jpg")
    shutil.copy(photos[0], tmp_path / "b.jpg")
    with Image.open(photos[0]) as image:
        image.save(tmp_path / "c.jpg", quality=50)
        image.resize((63, 70)).save(tmp_path / "d.jpg")
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    images = as_images({"x": files}, 0).resized(Resize(8))
    seen = [inspect(file) for file in files]
    arguments = np.stack([thumbnail for thumbnail, _ in seen]), np.array([side for _, side in seen])
    found = find_copies(images, *arguments, dict.fromkeys(files, ""))
    assert found.within == [files[:2]]
    assert found.near == [[files[0], files[2]]]


def test_the_check_lists_near_copies(photos, tmp_path):
    for file in [*photos[:6], *photos[20:26]]:
        kind = tmp_path / "photos" / file.parent.name
        kind.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, kind)
    with Image.open(photos[2]) as image:
        cropped(image).save(tmp_path / "photos" / "sunflower" / "copy.jpg")
    done = etag("check", tmp_path / "photos")
    assert done.returncode == 1, done.stderr
    pair = [
        str(tmp_path / "photos" / "fritillary" / photos[2].name),
        str(tmp_path / "photos" / "sunflower" / "copy.jpg"),
    ]
    assert f"nearly the same images: 1\n  {' ~ '.join(pair)}\n" in done.stdout
    assert json.loads(etag("check", tmp_path / "photos", "--json").stdout)["near_copies"] == [pair]
