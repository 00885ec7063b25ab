import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etag.core.errors import EtagError
from etag.data.images import MemoryImages
from etag.data.scenario import build_scenario, class_order, parse_split
from etag.data.source import DataOptions, Dataset

# -- splits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("b50-5x10", [50, 10, 10, 10, 10, 10]),
        ("b50-10x5", [50] + [5] * 10),
        ("b50-25x2", [50] + [2] * 25),
        ("b0-4x25", [25, 25, 25, 25]),
        ("b0-1x100", [100]),
        ("b5-5x1", [5, 1, 1, 1, 1, 1]),
        ("b40-20x3", [40] + [3] * 20),
    ],
)
def test_parse_split_returns_the_classes_of_each_task(name, sizes):
    assert parse_split(name, 100) == sizes


@pytest.mark.parametrize(
    "name",
    ["", "b50", "50-5x10", "b50-5", "b50-5x", "b-5x10", "b50-5x10 ", "B50-5x10", "b50-5×10", "b50--5x10", "b5-1x1.5"],
)
def test_a_malformed_split_is_an_error_with_an_example(name):
    with pytest.raises(EtagError, match=r"bBASE-TASKSxCLASSES, such as b50-5x10"):
        parse_split(name)


@pytest.mark.parametrize("name", ["b50-0x10", "b50-5x0", "b0-0x0"])
def test_a_split_with_empty_tasks_is_an_error(name):
    with pytest.raises(EtagError, match="tasks without classes"):
        parse_split(name)


def test_a_split_with_more_classes_than_the_data_is_an_error():
    with pytest.raises(EtagError, match="'b50-6x10' needs 110 classes, but the data has only 100"):
        parse_split("b50-6x10", 100)


@given(base=st.integers(0, 99), tasks=st.integers(1, 30), step=st.integers(1, 30))
def test_any_split_has_the_number_of_tasks_and_classes_in_its_name(base, tasks, step):
    sizes = parse_split(f"b{base}-{tasks}x{step}")
    assert sum(sizes) == base + tasks * step
    assert len(sizes) == tasks + (base > 0)
    assert set(sizes[1:]) <= {step}


# -- class orders ----------------------------------------------------------------------------------


def dataset(*classes, **rest):
    one_each = MemoryImages(torch.zeros(len(classes), 1, 2, 2, dtype=torch.uint8), torch.arange(len(classes)))
    return Dataset(one_each, one_each, classes, size=2, mean=(0.5,), std=(0.5,), **rest)


HUNDRED = dataset(*(str(number) for number in range(100)))
ANIMALS = dataset("cat", "dog", "emu", "yak")


def test_seed_1993_is_the_icarl_order():
    order = class_order(HUNDRED, DataOptions(order=1993), seed=0)
    assert order[:5] == [68, 56, 78, 8, 23]
    assert sorted(order) == list(range(100))


def test_the_default_class_order_uses_the_run_seed():
    assert class_order(HUNDRED, DataOptions(), seed=1993) == class_order(HUNDRED, DataOptions(order=1993), seed=0)


def test_the_inverse_rule_gives_class_c_the_label_permutation_c():
    permutation = np.random.RandomState(3).permutation(100)
    order = class_order(HUNDRED, DataOptions(order=3, order_rule="inverse"), seed=0)
    label_of = {number: label for label, number in enumerate(order)}
    assert [label_of[c] for c in range(100)] == permutation.tolist()
    assert class_order(HUNDRED, DataOptions(order=3), seed=0) == permutation.tolist()


def test_the_natural_order_is_that_of_the_source():
    assert class_order(ANIMALS, DataOptions(order="natural"), seed=7) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("yak\ncat\nemu\n", [3, 0, 2]),
        ("3\n0\n2\n1", [3, 0, 2, 1]),
        (json.dumps(["emu", "dog"]), [2, 1]),
        (json.dumps([2, 1]), [2, 1]),
    ],
    ids=["names", "numbers", "JSON names", "JSON numbers"],
)
def test_an_order_file_lists_names_or_numbers(tmp_path, text, order):
    (tmp_path / "order").write_text(text)
    assert class_order(ANIMALS, DataOptions(order=str(tmp_path / "order")), seed=0) == order


def test_an_order_file_with_one_name_per_line_can_have_names_of_two_words(tmp_path):
    (tmp_path / "order").write_text("polar bear\ncat\n")
    options = DataOptions(order=str(tmp_path / "order"))
    assert class_order(dataset("cat", "polar bear"), options, seed=0) == [1, 0]


def test_in_an_order_file_class_names_take_precedence_over_class_numbers(tmp_path):
    (tmp_path / "order").write_text("0\n1")
    assert class_order(dataset("1", "0"), DataOptions(order=str(tmp_path / "order")), seed=0) == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\ngnu", "lists 'gnu', which is not a class"),
        ("cat\n4", "lists '4', which is not a class"),
        ("cat\ndog\ncat", "lists a class twice"),
        ("cat\n0", "lists a class twice"),
        ("", "must list class names or numbers"),
        ('{"cat": 1}', "must list class names or numbers"),
    ],
)
def test_an_invalid_order_file_is_an_error(tmp_path, text, message):
    (tmp_path / "order").write_text(text)
    with pytest.raises(EtagError, match=message):
        class_order(ANIMALS, DataOptions(order=str(tmp_path / "order")), seed=0)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"], ids=["missing", "not text"])
def test_an_unreadable_order_file_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "order").write_bytes(content)
    with pytest.raises(EtagError, match=r"class order '.*order' cannot be read"):
        class_order(ANIMALS, DataOptions(order=str(tmp_path / "order")), seed=0)


# -- subsets of classes ----------------------------------------------------------------------------

SOME = dataset(
    *(str(number) for number in range(100)), default_classes=10
)  # uses ten of them by default, as ImageNet-sub uses 100


def drawn(seed, count, classes=100):
    return set(np.random.RandomState(seed).permutation(classes)[:count].tolist())


def write(path, names):
    path.write_text("\n".join(map(str, names)))
    return str(path)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(
    ("data", "options", "chosen"),
    [
        (SOME, {}, drawn(1993, 10)),
        (SOME, {"classes": 20}, drawn(1993, 20)),
        (SOME, {"classes": 100}, set(range(100))),
        (SOME, {"subset": 7}, drawn(7, 10)),
        (SOME, {"subset": 0, "classes": 3}, drawn(0, 3)),
        (SOME, {"subset": "natural"}, set(range(10))),
        (SOME, {"order_rule": "inverse"}, drawn(1993, 10)),
        (SOME, {"order": 3}, drawn(1993, 10)),
        (HUNDRED, {}, set(range(100))),
        (HUNDRED, {"classes": 4}, set(range(4))),
        (HUNDRED, {"classes": 4, "subset": 7}, drawn(7, 4)),
        (HUNDRED, {"classes": 100, "subset": 7}, set(range(100))),
    ],
)
def test_the_classes_used_do_not_depend_on_the_run_seed(data, options, chosen, seed):
    assert set(class_order(data, DataOptions(**options), seed)) == chosen


@pytest.mark.parametrize("rule", ["position", "inverse"])
@pytest.mark.parametrize("order", [None, 3])
def test_the_class_order_permutes_the_classes_used(order, rule):
    chosen = sorted(drawn(1993, 10))
    permutation = np.random.RandomState(8 if order is None else order).permutation(10).tolist()
    positions = permutation if rule == "position" else [permutation.index(label) for label in range(10)]
    result = class_order(SOME, DataOptions(order=order, order_rule=rule), seed=8)
    assert result == [chosen[position] for position in positions]


def test_the_natural_order_of_a_subset_is_that_of_the_source():
    assert class_order(SOME, DataOptions(order="natural"), seed=8) == sorted(drawn(1993, 10))


def test_a_subset_file_lists_the_classes_to_use(tmp_path):
    options = {"subset": write(tmp_path / "some", [70, 3, 50]), "order": "natural"}
    assert class_order(HUNDRED, DataOptions(**options), seed=0) == [3, 50, 70]
    assert class_order(HUNDRED, DataOptions(classes=2, **options), seed=0) == [3, 70]  # the first two of the file


def test_a_subset_file_overrides_the_default_number_of_classes(tmp_path):
    options = DataOptions(subset=write(tmp_path / "some", [70, 3, 50]), order="natural")
    assert class_order(SOME, options, seed=0) == [3, 50, 70]
    options = DataOptions(subset=write(tmp_path / "some", range(12)), order="natural")
    assert class_order(SOME, options, seed=0) == list(range(12))


def test_an_order_file_lists_classes_of_the_subset_only(tmp_path):
    order = write(tmp_path / "order", ["yak", "cat"])
    some = write(tmp_path / "some", ["cat", "emu", "yak"])
    assert class_order(ANIMALS, DataOptions(subset=some, order=order), seed=0) == [3, 0]
    some = write(tmp_path / "some", ["cat", "dog"])
    with pytest.raises(EtagError, match="'yak', which is not a class"):
        class_order(ANIMALS, DataOptions(subset=some, order=order), seed=0)


def test_requesting_more_classes_than_the_data_has_is_an_error():
    with pytest.raises(
        EtagError, match=r"5 classes were requested, but the data has 4: set data.classes to that or less"
    ):
        class_order(ANIMALS, DataOptions(classes=5), seed=0)
    with pytest.raises(EtagError, match="10 classes were requested, but the data has 4"):
        class_order(dataset("cat", "dog", "emu", "yak", default_classes=10), DataOptions(), seed=0)


def test_a_split_divides_the_classes_used():
    options = DataOptions(classes=4, subset=7, train_per_class=2, test_per_class=2)
    scenario, _ = build_scenario(options, "b2-2x1", seed=0)
    assert {int(name) for name in scenario.classes} == drawn(7, 4, classes=10)
    assert [task.train.labels.unique().tolist() for task in scenario] == [[0, 1], [2], [3]]
    with pytest.raises(EtagError, match="'b2-3x1' needs 5 classes, but the data has only 4"):
        build_scenario(options, "b2-3x1", seed=0)


# -- scenarios -------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["b5-5x1", "b0-5x2", "b4-2x3", "b0-1x3"])
def test_labels_follow_the_class_order(split):
    scenario, _ = build_scenario(DataOptions(), split, seed=2)
    sizes = parse_split(split)
    assert scenario.new_classes_per_task == sizes
    assert len(scenario.classes) == sum(sizes)
    for index, task in enumerate(scenario):
        assert (task.index, task.num_old, task.num_new) == (index, sum(sizes[:index]), sizes[index])
        assert (task.num_seen, task.num_base) == (sum(sizes[: index + 1]), sizes[0])
        for images in (task.train, task.test):  # so tasks are disjoint too
            assert images.labels.unique().tolist() == list(range(task.num_old, task.num_seen))


def test_every_image_is_in_one_task_with_its_class():
    scenario, _ = build_scenario(DataOptions(), "b5-5x1", seed=2)
    source, _ = build_scenario(DataOptions(order="natural"), "b0-1x10", seed=0)

    def collection(tasks, part):
        images = [getattr(task, part) for task in tasks.tasks]
        rows = [
            (pixels.numpy().tobytes(), int(label))
            for i in images
            for pixels, label in zip(i.pixels, i.labels, strict=True)
        ]
        return sorted((pixels, tasks.classes[label]) for pixels, label in rows)

    for part in ("train", "test"):
        assert collection(scenario, part) == collection(source, part)


def test_train_and_test_per_class_use_the_first_images_of_each_class():
    whole, _ = build_scenario(DataOptions(), "b5-5x1", seed=0)
    few, _ = build_scenario(DataOptions(train_per_class=7, test_per_class=3), "b5-5x1", seed=0)
    for task, full in zip(few, whole, strict=True):
        for part, count in (("train", 7), ("test", 3)):
            images, source = getattr(task, part), getattr(full, part)
            for label in range(task.num_old, task.num_seen):
                assert torch.equal(images.pixels[images.labels == label], source.pixels[source.labels == label][:count])


def test_the_seed_draws_images_whatever_the_order_of_the_classes():
    def images(seed, **options):
        scenario, _ = build_scenario(DataOptions(train_per_class=4, draw=True, **options), "b0-1x10", seed)
        (task,) = scenario.tasks
        return {
            name: {row.numpy().tobytes() for row in task.train.pixels[task.train.labels == label]}
            for label, name in enumerate(scenario.classes)
        }

    first = images(0)
    assert {len(rows) for rows in first.values()} == {4}
    assert images(0, order="natural") == first
    assert images(1) != first


def test_a_limit_above_the_number_of_images_changes_nothing():
    whole, _ = build_scenario(DataOptions(), "b0-1x10", seed=0)
    same, _ = build_scenario(DataOptions(train_per_class=10_000), "b0-1x10", seed=0)
    assert torch.equal(same.tasks[0].train.pixels, whole.tasks[0].train.pixels)


def test_resizing_preserves_the_mean_brightness():
    plain, _ = build_scenario(DataOptions(train_per_class=5), "b0-1x10", seed=0)
    large, preprocess = build_scenario(DataOptions(train_per_class=5, size=16), "b0-1x10", seed=0)
    before, after = plain.tasks[0].train.pixels, large.tasks[0].train.pixels
    assert (large.size, preprocess.size) == (16, 16)
    assert after.shape == (50, 1, 16, 16)
    assert after.dtype == torch.uint8
    torch.testing.assert_close(after.float().mean((1, 2, 3)), before.float().mean((1, 2, 3)), atol=2.0, rtol=0)


@pytest.mark.parametrize(("flip", "expected"), [(None, False), (True, True), (False, False)])
def test_the_flip_option_overrides_the_source(flip, expected):
    _, preprocess = build_scenario(DataOptions(flip=flip), "b5-5x1", seed=0)
    assert preprocess.flip is expected


def test_the_order_options_determine_the_first_classes():
    names = {
        rule: build_scenario(DataOptions(order=1, order_rule=rule), "b3-1x2", seed=0)[0].classes
        for rule in ("position", "inverse")
    }
    permutation = np.random.RandomState(1).permutation(10).tolist()
    assert names["position"] == tuple(str(c) for c in permutation[:5])
    assert names["inverse"] == tuple(str(permutation.index(label)) for label in range(5))
    assert build_scenario(DataOptions(order="natural"), "b3-1x2", seed=0)[0].classes == ("0", "1", "2", "3", "4")


def test_an_unknown_source_suggests_the_most_similar_name():
    with pytest.raises(EtagError, match="did you mean 'digits'"):
        build_scenario(DataOptions(name="digit"), "b5-5x1", seed=0)


def test_the_stored_icarl_order_equals_seed_1993():
    hundred = replace(ANIMALS, classes=tuple(f"class {number}" for number in range(100)))
    named = class_order(hundred, DataOptions(order="icarl"), seed=0)
    assert named[:5] == [68, 56, 78, 8, 23]
    assert named == class_order(hundred, DataOptions(order=1993), seed=0)


def test_first_and_held_out_evaluate_the_first_classes_on_training_images():
    whole, _ = build_scenario(DataOptions(train_per_class=20), "b2-2x1", seed=3)
    part, _ = build_scenario(DataOptions(train_per_class=20, first_classes=2, held_out=0.25), "b0-2x1", seed=3)
    assert part.classes == whole.classes[:2]
    for task in part:
        assert (len(task.train), len(task.test)) == (15, 5)
        pixels = whole.tasks[0].train.select((whole.tasks[0].train.labels == task.index).nonzero().flatten()).pixels
        assert torch.equal(torch.cat([task.train.pixels, task.test.pixels]), pixels)
    with pytest.raises(EtagError, match="needs 3 classes, but the data has only 2"):
        build_scenario(DataOptions(first_classes=2), "b0-3x1", seed=3)
