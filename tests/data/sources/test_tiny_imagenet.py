import pytest
import torch

from etag.core.errors import EtagError
from etag.data.scenario import build_scenario
from etag.data.source import SOURCES, DataOptions

CLASSES = ("n01443537", "n01629819", "n01641577", "n01644900")
VALIDATION = [2, 0, 3, 1, 0, 2]  # the class of val_0, val_1, ...


@pytest.fixture
def tiny(tmp_path, picture):
    """The layout of the real data set, with four classes of three JPEG images."""
    for number, name in enumerate(CLASSES):
        for k in range(3):
            picture(tmp_path / "train" / name / "images" / f"{name}_{k}.JPEG", 10 * number + k, 64, 64)
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
    lines = []
    for k, label in enumerate(VALIDATION):
        picture(tmp_path / "val" / "images" / f"val_{k}.JPEG", 100 + k, 64, 64)
        lines.append(f"val_{k}.JPEG\t{CLASSES[label]}\t0\t32\t44\t62\n")
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    picture(tmp_path / "test" / "images" / "test_0.JPEG", 7, 64, 64)
    return tmp_path


def options(path, **rest):
    return DataOptions(name="tiny-imagenet", path=str(path), **rest)


def annotate(path, text):
    (path / "val" / "val_annotations.txt").write_text(text)


def test_training_and_validation_images_are_read(tiny):
    scenario, preprocess = build_scenario(options(tiny, order="natural"), "b2-1x2", seed=0)
    assert scenario.classes == CLASSES
    assert (scenario.size, scenario.channels, preprocess.flip) == (64, 3, True)
    assert [task.train.labels.tolist() for task in scenario] == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]]
    assert [task.test.labels.tolist() for task in scenario] == [[0, 0, 1], [2, 2, 3]]
    assert scenario.tasks[0].train.pixels.shape == (6, 3, 64, 64)


def test_annotations_give_the_class_of_each_validation_image(tiny):
    dataset = SOURCES["tiny-imagenet"].open(options(tiny))
    names = [file.rsplit("/", 1)[1] for file in dataset.test.files]
    result = dict(zip(names, dataset.test.labels.tolist(), strict=True))
    assert result == {f"val_{k}.JPEG": label for k, label in enumerate(VALIDATION)}
    assert {file.rsplit("/", 3)[1] for file in dataset.train.files} == set(CLASSES)


def test_images_decoded_from_files_equal_those_in_memory(tiny):
    in_memory, _ = build_scenario(options(tiny), "b2-1x2", seed=0)
    in_files, _ = build_scenario(options(tiny, memory=0), "b2-1x2", seed=0)
    for memory, files in zip(in_memory, in_files, strict=True):
        assert torch.equal(memory.test.pixels, files.test.in_memory().pixels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("val_0.JPEG\tn01443537\t0\nval_1.JPEG\tn99999999\t0", "line 2: 'n99999999' is not a class in train/"),
        ("val_0.JPEG n01443537", "line 1: '' is not a class in train/"),
        ("val_0.JPEG", "line 1: '' is not a class in train/"),
        ("val_0.JPEG\t\t0", "line 1: '' is not a class in train/"),
    ],
    ids=["unknown class", "blanks for tabs", "no class", "empty class"],
)
def test_an_invalid_annotation_is_an_error_with_its_line(tiny, text, message):
    annotate(tiny, text)
    with pytest.raises(EtagError, match=rf"val_annotations.txt, {message}"):
        build_scenario(options(tiny), "b2-1x2", seed=0)


def test_annotations_that_are_not_text_are_an_error(tiny):
    (tiny / "val" / "val_annotations.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(EtagError, match=r"val_annotations.txt cannot be read: .*decode"):
        build_scenario(options(tiny), "b2-1x2", seed=0)


def test_a_missing_annotated_image_is_an_error(tiny):
    (tiny / "val" / "images" / "val_3.JPEG").unlink()
    with pytest.raises(EtagError, match=r"1 image file cannot be read: .*val_3.JPEG \(file not found\)"):
        build_scenario(options(tiny), "b2-1x2", seed=0)


@pytest.mark.parametrize("text", ["", "val_0.JPEG\tn01443537\t0\n"], ids=["all", "all but one"])
def test_classes_without_test_images_are_an_error(tiny, text):
    """Their accuracy would be undefined, which would only be noticed after the training."""
    annotate(tiny, text)
    with pytest.raises(EtagError, match=r"these classes have no images to test with: .*n01641577"):
        build_scenario(options(tiny), "b2-1x2", seed=0)


def test_without_annotations_the_data_is_not_found(tiny):
    (tiny / "val" / "val_annotations.txt").unlink()
    with pytest.raises(EtagError, match=r"train and val/val_annotations.txt should be in"):
        build_scenario(options(tiny), "b2-1x2", seed=0)
