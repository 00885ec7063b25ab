"""Every data source is learned from end to end, with real bytes."""

import io
import pickle
import tarfile

import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from etag.experiments.config import resolve
from etag.experiments.run import run

QUICK = {
    "method": "etag",
    "model.width": 4,
    "train.epochs": 1,
    "train.batch_size": 8,
    "method.generator.train.epochs": 1,
    "method.generator.feature_passes": 1,
    "data.train_per_class": 8,
    "data.test_per_class": 4,
}


def learned(out, **given):
    """A whole quick run; every test image of every class was evaluated."""
    metrics = run(resolve(given=QUICK | given), out)
    classes = sum(metrics["classes_per_task"])
    assert sum(map(sum, metrics["confusion"])) == classes * 4
    assert len(set(metrics["class_names"])) == classes
    return metrics


def test_digits(tmp_path):
    learned(tmp_path / "run", data="digits", split="b4-3x2")


def test_mnist(shared_data, tmp_path):
    learned(tmp_path / "run", data="mnist", split="b4-3x2", **{"data.path": str(shared_data / "mnist")})


def test_cifar100_from_parquet(shared_data, tmp_path):
    path = {"data.path": str(shared_data / "cifar100"), "data.size": 16}
    learned(tmp_path / "run", data="cifar100", split="b4-3x2", **path)


def official_archive(folder, source):
    """The official archive, made of the first images of each class of the real parquet files."""
    with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz") as archive:

        def add(name, value):
            content = pickle.dumps(value, protocol=2)
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for part, count in (("train", 10), ("test", 4)):
            table = parquet.read_table(source / f"{part}.parquet")
            labels = table["fine_label"].to_numpy()
            rows = np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(100)]))
            pngs = table["img"].take(rows).to_pylist()
            pixels = [np.asarray(Image.open(io.BytesIO(png["bytes"]))).transpose(2, 0, 1).ravel() for png in pngs]
            add(part, {b"data": np.stack(pixels), b"fine_labels": labels[rows].tolist()})
        add("meta", {b"fine_label_names": [f"class {label}".encode() for label in range(100)]})


def test_cifar100_from_the_official_archive_is_the_same(shared_data, tmp_path):
    official_archive(tmp_path, shared_data / "cifar100")
    given = {"data": "cifar100", "split": "b4-3x2", "data.size": 16}
    official = learned(tmp_path / "official", **given, **{"data.path": str(tmp_path)})
    parquet_run = learned(tmp_path / "parquet", **given, **{"data.path": str(shared_data / "cifar100")})
    assert official["confusion"] == parquet_run["confusion"]


@pytest.mark.slow
def test_imagenet_sub_at_224_pixels(shared_data, tmp_path):
    given = {"data.path": str(shared_data / "imagenet-mini"), "data.classes": 10, "model.width": 16}
    metrics = learned(tmp_path / "run", data="imagenet-sub", split="b4-3x2", **given)
    assert all(name.startswith("n") for name in metrics["class_names"])


@pytest.mark.parametrize("memory", [2048, 0], ids=["in memory", "decoded ahead"])
def test_a_folder_of_the_users_own(shared_data, tmp_path, memory):
    given = {"data.size": 32, "data.memory": memory, "data.workers": 2}
    learned(tmp_path / "run", data=str(shared_data / "imagenet-mini"), split="b4-3x2", **given)


def test_tiny_imagenet(tmp_path):
    generator = np.random.default_rng(0)
    classes = [f"n{number:08}" for number in range(4)]
    lines = []
    for place in (tmp_path / "val" / "images", *(tmp_path / "train" / name / "images" for name in classes)):
        place.mkdir(parents=True)

    def picture(path):
        Image.fromarray(generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)

    for name in classes:
        for number in range(9):
            picture(tmp_path / "train" / name / "images" / f"{name}_{number}.JPEG")
        for _ in range(4):
            file = f"val_{len(lines)}.JPEG"
            picture(tmp_path / "val" / "images" / file)
            lines.append(f"{file}\t{name}\t0\t0\t62\t62")
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    learned(tmp_path / "run", data="tiny-imagenet", split="b2-1x2", **{"data.path": str(tmp_path)})
