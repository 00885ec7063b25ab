import pytest
import torch

from etag.core.errors import EtagError
from etag.core.random import Placement, Stream
from etag.data.batches import ImageBatches
from etag.data.images import FileImages, MemoryImages
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions
from etag.data.sources.folder import MEAN, STD


@pytest.fixture
def zoo(tmp_path, classes_in):
    """Four classes of six images of 8 x 8."""
    return classes_in(tmp_path / "zoo", *(f"{name}/{k}.png" for name in ("cat", "dog", "emu", "yak") for k in range(6)))


def folder(path, **options):
    return DataOptions(name="folder", path=str(path), **options)


def inputs(images, preprocess, **options):
    batches = ImageBatches(images, preprocess, 4, Stream.root(0), Placement(), **options)
    return [(batch.inputs, batch.labels) for epoch in range(2) for batch in batches.epoch(epoch)]


def test_a_folder_becomes_a_scenario(zoo, picture):
    scenario, preprocess = build_scenario(folder(zoo, order="natural"), "b2-1x2", seed=0)
    assert scenario.classes == ("cat", "dog", "emu", "yak")
    assert (scenario.name, scenario.channels, scenario.size) == ("folder", 3, 8)
    assert (preprocess.mean, preprocess.std, preprocess.size, preprocess.flip) == (MEAN, STD, 8, True)
    for task in scenario:
        assert task.train.labels.tolist() == [label for label in range(task.num_old, task.num_seen) for _ in range(5)]
        assert task.test.labels.tolist() == list(range(task.num_old, task.num_seen))
    emu = [picture(zoo / "again.png", seed=12 + k) for k in range(6)]  # the same images that `zoo` wrote
    expected = torch.stack([torch.from_numpy(pixels).permute(2, 0, 1) for pixels in emu])
    assert torch.equal(scenario.tasks[1].test.pixels[0], expected[4])
    assert torch.equal(scenario.tasks[1].train.pixels[:5], expected[[0, 1, 2, 3, 5]])


@pytest.mark.parametrize(
    ("options", "workers"),
    [({}, 0), ({}, 2), ({"size": 6}, 0), ({"resized_crop": True}, 1)],
    ids=["plain", "two workers", "resized", "crops"],
)
def test_batches_decoded_from_files_equal_those_from_memory(zoo, options, workers):
    in_memory, preprocess = build_scenario(folder(zoo, **options), "b2-1x2", seed=3)
    in_files, same = build_scenario(folder(zoo, memory=0, workers=workers, **options), "b2-1x2", seed=3)
    assert preprocess == same
    for memory, files in zip(in_memory, in_files, strict=True):
        assert isinstance(memory.train, MemoryImages)
        assert isinstance(files.train, FileImages)
        for one, other in ((memory.train, files.train), (memory.test, files.test)):
            for batching in ({}, {"shuffle": False, "augment": False}):
                first, second = inputs(one, preprocess, **batching), inputs(other, preprocess, **batching)
                assert len(first) == len(second) > 0
                for (x, y), (again, label) in zip(first, second, strict=True):
                    assert torch.equal(x, again)
                    assert torch.equal(y, label)


@pytest.mark.parametrize(("size", "in_memory"), [(8, True), (300, False)])
def test_images_stay_in_memory_if_they_fit_the_limit(zoo, size, in_memory):
    # 24 images need 4.6 kB at 8 x 8 pixels, 6.5 MB at 300 x 300
    scenario, _ = build_scenario(folder(zoo, memory=1, size=size), "b2-1x2", seed=0)
    assert isinstance(scenario.tasks[0].train, MemoryImages if in_memory else FileImages)
    assert isinstance(scenario.tasks[0].test, MemoryImages if in_memory else FileImages)


def test_only_the_images_used_count_for_the_memory_limit_and_are_read(zoo):
    (zoo / "cat" / "5.png").write_bytes(b"no image")
    options = folder(zoo, size=300, memory=2, train_per_class=1, test_per_class=1, order="natural")
    scenario, _ = build_scenario(options, "b2-1x1", seed=0)
    assert isinstance(scenario.tasks[0].train, MemoryImages)
    assert scenario.classes == ("cat", "dog", "emu")


def test_images_of_different_sizes_need_data_size(zoo, picture):
    picture(zoo / "emu" / "wide.png", width=12)
    with pytest.raises(EtagError, match=r"from 8x8 to 12x8 pixels.*data.size=N"):
        build_scenario(folder(zoo), "b2-1x2", seed=0)
    scenario, _ = build_scenario(folder(zoo, size=16), "b2-1x2", seed=0)
    assert scenario.tasks[0].train.pixels.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize("options", [{}, {"size": 8}], ids=["found by size", "found by decoding"])
def test_one_error_lists_unreadable_files_of_train_and_test(zoo, options):
    bad = [zoo / "cat" / "0.png", zoo / "emu" / "4.png"]  # one for training, one for testing
    for file in bad:
        file.write_bytes(b"no image")
    with pytest.raises(EtagError, match=r"^2 image files cannot be read") as caught:
        build_scenario(folder(zoo, **options), "b2-1x2", seed=0)
    assert all(f"{file} (not an image)" in str(caught.value) for file in bad)


def test_an_unreadable_file_is_an_error_when_its_batch_is_read(zoo):
    (zoo / "cat" / "0.png").write_bytes(b"no image")
    scenario, preprocess = build_scenario(folder(zoo, size=8, memory=0, order="natural"), "b2-1x2", seed=0)
    with pytest.raises(EtagError, match=r"1 image file cannot be read: .*cat/0.png \(not an image\)"):
        inputs(scenario.tasks[0].train, preprocess)


@pytest.mark.parametrize("exists", [False, True])
def test_the_folder_source_needs_a_path(tmp_path, classes_in, monkeypatch, exists):
    monkeypatch.setenv("ETAG_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if exists:
        classes_in(tmp_path / "folder", "cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")
    with pytest.raises(EtagError, match=r"'folder' needs a folder: give --data DIR or --set data.path=DIR"):
        build_scenario(DataOptions(name="folder"), "b0-2x1", seed=0)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(EtagError, match=f"the image folder '{tmp_path}/nowhere' cannot be read: No such file"):
        SOURCES["folder"].open(folder(tmp_path / "nowhere"))


def test_the_folder_source_cannot_be_downloaded():
    with pytest.raises(EtagError, match="'folder' cannot be downloaded automatically"):
        SOURCES["folder"].get(None, lambda *_: None)


def test_a_tilde_is_expanded_to_the_home_directory(zoo, monkeypatch):
    monkeypatch.setenv("HOME", str(zoo.parent))
    assert SOURCES["folder"].open(folder("~/zoo")).classes == ("cat", "dog", "emu", "yak")
