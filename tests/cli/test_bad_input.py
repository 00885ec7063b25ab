"""Bad input through the command line: one sentence, exit code 2, no traceback, nothing half-written."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.app.conftest import etag as command

QUICK = ["--method", "fine", "--set", "model.width=4", "--set", "train.epochs=1"]


def images(folder: Path, count=3, size=(16, 16), classes=("cat", "dog")) -> Path:
    """A small folder of real images."""
    generator = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def bomb(side=30_000) -> bytes:
    """The head of a PNG that claims to be enormous."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def empty(folder):
    folder.mkdir()
    return ["--data", folder]


def one_class(folder):
    return ["--data", images(folder, classes=("cat",))]


def class_without_images(folder):
    (images(folder) / "empty").mkdir()
    return ["--data", folder]


def spoilt(folder):
    """Four files that cannot be read, in four ways."""
    images(folder)
    (folder / "cat" / "text.png").write_text("I am not an image")
    (folder / "cat" / "nothing.jpg").write_bytes(b"")
    (folder / "dog" / "bomb.png").write_bytes(bomb())
    Image.new("RGB", (16, 16), "red").save(folder / "dog" / "whole.jpg", quality=95)
    (folder / "dog" / "cut.jpg").write_bytes((folder / "dog" / "whole.jpg").read_bytes()[:400])
    return ["--data", folder, "--set", "data.size=16"]


def mixed_sizes(folder):
    images(folder)
    Image.new("RGB", (40, 20)).save(folder / "cat" / "wide.png")
    return ["--data", folder]


def too_small(folder):
    return ["--data", images(folder, size=(4, 4))]


def one_image(folder):
    return ["--data", images(folder, count=1)]


def exploding(_):
    return ["--split", "b2-1x1", "--set", "train.optimizer=sgd", "--set", "train.lr=1e30", "--set", "train.steps=40"]


def raising_plugin(folder):
    folder.mkdir()
    (folder / "mine.py").write_text("raise RuntimeError('not today')\n")
    return ["--plugin", folder / "mine.py"]


def wrong_weights(folder):
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"\x00" * 20)
    return ["--split", "b2-1x1", "--set", f"model.weights={folder / 'weights.safetensors'}"]


def no_folder(folder):
    return ["--data", "folder", "--set", f"data.path={folder / 'nowhere'}"]


TABLE = [
    (empty, "holds no classes"),
    (one_class, "holds a single class, 'cat'"),
    (class_without_images, "classes without images (empty)"),
    (mixed_sizes, "set the side to resize them to with --set data.size=N"),
    (too_small, "images of 4x4 pixels are too small for the backbone resnet18"),
    (one_image, "classes with a single image (cat, dog)"),
    (exploding, "the loss term 'ce' became"),
    (raising_plugin, "failed in line 1: RuntimeError: not today"),
    (wrong_weights, "weights.safetensors"),
    (no_folder, "nowhere"),
]


def etag(*words, cwd):
    return command("run", *QUICK, *words, cwd=cwd, ETAG_DATA="")


def check(done, says):
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(("make", "says"), TABLE, ids=[make.__name__ for make, _ in TABLE])
def test_bad_input_is_refused_in_one_sentence(make, says, tmp_path):
    done = etag(*make(tmp_path / "given"), "--split", "b0-2x1", "--out", "run", cwd=tmp_path)
    check(done, says)
    assert not (tmp_path / "run" / "metrics.json").exists()
    if make is not exploding:  # only found out while training
        assert not (tmp_path / "run").exists(), "refused before anything was written"


def test_corrupt_images_are_listed_all_at_once(tmp_path):
    done = etag(*spoilt(tmp_path / "given"), "--split", "b0-2x1", "--out", "run", cwd=tmp_path)
    check(done, "4 image files cannot be read")
    for name, why in [("text.png", "not an image"), ("nothing.jpg", "not an image"), ("cut.jpg", "damaged")]:
        assert f"{name} ({why}" in done.stderr
    assert "bomb.png (far too large)" in done.stderr
    assert "whole.jpg" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_holds_another_run_is_left_alone(tmp_path):
    quick = ["--split", "b2-1x1", "--set", "data.train_per_class=8", "--out", "run"]
    assert etag(*quick, cwd=tmp_path).returncode == 0
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    check(etag(*quick, "--seed", "7", cwd=tmp_path), "already holds a finished run")
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before


def test_a_place_that_cannot_be_written_is_refused_before_training(tmp_path):
    if os.geteuid() == 0:  # root may write anywhere but below a file
        (tmp_path / "locked").write_text("")
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
    check(etag("--split", "b2-1x1", "--out", "locked/run", cwd=tmp_path), "cannot be written")
