import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from etag.core.images import Resize
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.data.images import FileImages, MemoryImages
from etag.methods.parts.memory import ExemplarMemory, ExemplarOptions, herding


def numbers(*shape, key="a"):
    return torch.randn(*shape, generator=Stream.root(0).torch_generator(key, *shape))


# -- herding ---------------------------------------------------------------------------------------


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def mean_of(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def brute_force(features, count):
    """Greedily: try every row that is left, and take the one whose company has the mean nearest to that of all."""
    rows, chosen = [unit(row) for row in features.double().tolist()], []
    for _ in range(min(count, len(rows))):
        left = [row for row in range(len(rows)) if row not in chosen]
        distances = {row: math.dist(mean_of(rows), mean_of([rows[r] for r in [*chosen, row]])) for row in left}
        chosen.append(min(distances, key=distances.get))
    return chosen


@pytest.mark.parametrize("key", range(5))
@pytest.mark.parametrize("count", [1, 3, 6])
def test_herding_is_brute_force_on_six_points(key, count):
    features = 1 + numbers(6, 3, key=key)
    assert herding(features, count).tolist() == brute_force(features, count)


def test_herding_takes_no_row_twice_and_no_more_than_there_are():
    features = numbers(6, 3)
    features[3:] = features[:3]  # and not even of equals
    assert sorted(herding(features, 20).tolist()) == list(range(6))


def test_fewer_are_the_first_of_more():
    features = numbers(30, 4)
    chosen = [herding(features, count).tolist() for count in (3, 10, 30)]
    assert all(more[: len(fewer)] == fewer for fewer, more in pairwise(chosen))


def test_herding_looks_at_directions_only():
    features = numbers(6, 3)
    lengths = torch.tensor([0.01, 1, 5, 100, 2, 30])[:, None]
    assert herding(lengths * features, 4).tolist() == herding(features, 4).tolist()


# -- the memory ------------------------------------------------------------------------------------

CLASSES, EACH = (2, 1, 2), 6  # per task; images a class


def task(index):
    """Images whose first pixel is their class, and the second their number within the class."""
    old, new = sum(CLASSES[:index]), CLASSES[index]
    order = torch.randperm(new * EACH, generator=Stream.root(index).torch_generator("order"))
    labels, numbers = old + order % new, order // new
    pixels = torch.zeros(new * EACH, 1, 2, 2, dtype=torch.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = labels.byte(), numbers.byte()
    return Task(index, old, new, MemoryImages(pixels, labels), MemoryImages(pixels, labels), num_base=CLASSES[0])


def features_of(task):
    """Of every image its own."""
    return torch.stack([numbers(3, key=f"{y} {n}") for _, y, n in identities(task.train)])


def identities(images):
    """What each image shows: label, and class and number as the pixels tell."""
    first, second = images.pixels[:, 0, 0, 0], images.pixels[:, 0, 0, 1]
    return list(zip(images.labels.tolist(), first.tolist(), second.tolist(), strict=True))


def memory(tasks=3, seed=0, **options):
    made = ExemplarMemory(ExemplarOptions(**options))
    for index in range(tasks):
        given = task(index)
        made.add(given, features_of(given), Stream.root(seed).torch_generator("selection", index))
    return made


def kept(made):
    """Numbers within their class, class by class, in the order in which they are kept."""
    shown = identities(made.images)
    assert all(label == pixel for label, pixel, _ in shown)  # the pixels are those of the label's class
    return {label: [n for y, _, n in shown if y == label] for label in dict.fromkeys(made.labels.tolist())}


@pytest.mark.parametrize("per_class", [1, 3, 6, 20])
def test_so_many_of_every_class_are_kept_best_first(per_class):
    expected = {}
    for index in range(3):
        given = task(index)
        for label in range(given.num_old, given.num_seen):
            rows = (given.train.labels == label).nonzero().flatten()
            chosen = brute_force(features_of(given)[rows], per_class)
            expected[label] = [identities(given.train)[rows[place]][2] for place in chosen]
    assert kept(memory(per_class=per_class)) == expected
    assert {len(numbers) for numbers in expected.values()} == {min(per_class, EACH)}


@pytest.mark.parametrize(("tasks", "each"), [(1, 4), (2, 3), (3, 1)])
def test_a_total_is_shared_by_the_classes(tasks, each):
    found = kept(memory(tasks, total=9))  # 9 // 2 classes, 9 // 3, 9 // 5
    assert [len(numbers) for numbers in found.values()] == [each] * sum(CLASSES[:tasks])


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_older_classes_give_room_and_those_chosen_last_go_first(selection):
    states = [kept(memory(tasks, total=9, selection=selection)) for tasks in (1, 2, 3)]
    for before, after in pairwise(states):
        for label, numbers in before.items():
            assert after[label] == numbers[: len(after[label])]
            assert len(after[label]) < len(numbers)


def test_a_random_choice_is_the_seeds_and_no_image_twice():
    one, same, other = (kept(memory(per_class=4, selection="random", seed=seed)) for seed in (0, 0, 1))
    assert one == same != other
    assert one != kept(memory(per_class=4))
    assert all(len(set(numbers)) == 4 for numbers in one.values())


def test_all_images_can_be_a_random_choice_too():
    assert {tuple(sorted(numbers)) for numbers in kept(memory(per_class=9, selection="random")).values()} == {
        tuple(range(EACH))
    }


def test_it_is_joined_to_the_images_of_a_task():
    made, given = memory(2, per_class=2), task(2)
    joined = made.joined_to(given.train)
    assert identities(joined) == identities(given.train) + identities(made.images)
    empty = ExemplarMemory(ExemplarOptions())
    assert empty.joined_to(given.train) is given.train


def test_images_in_files_are_kept_as_pixels_and_joined_to_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    files = np.array([str(tmp_path / f"{number}.png") for number in range(6)])
    images = FileImages(files, torch.tensor([0, 1, 0, 1, 0, 1]), resize=Resize(4), workers=0)
    made, features = ExemplarMemory(ExemplarOptions(per_class=2)), numbers(6, 3)
    made.add(Task(0, 0, 2, images, images, 2), features, Stream.root(0).torch_generator())
    chosen = [[0, 2, 4][place] for place in brute_force(features[0::2], 2)]
    chosen += [[1, 3, 5][place] for place in brute_force(features[1::2], 2)]
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert torch.equal(made.images.pixels, expected[chosen])
    assert made.labels.tolist() == [0, 0, 1, 1]
    joined = made.joined_to(images)
    (all_of_them,) = joined.read([torch.arange(10)])
    assert torch.equal(all_of_them, expected[[*range(6), *chosen]])
    assert joined.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1, 1]


def test_it_is_saved_and_loaded_into_a_fresh_one():
    made, fresh = memory(2, total=9), ExemplarMemory(ExemplarOptions(total=9))
    fresh.load_state_dict(made.state_dict())
    assert kept(fresh) == kept(made)
    assert fresh.images.pixels.dtype == torch.uint8
    for part in (made, fresh):
        part.add(task(2), features_of(task(2)), Stream.root(0).torch_generator())
    assert kept(fresh) == kept(made)


@pytest.mark.parametrize("option", ["per_class", "total"])
def test_no_exemplars_are_refused_with_a_way_out(option):
    with pytest.raises(ValidationError, match="store at least one per class, or choose another method"):
        ExemplarOptions(**{option: 0})


def test_a_method_passes_the_refusal_on(lab):
    with pytest.raises(ValidationError, match="store at least one per class"):
        lab("lucir", {"exemplars": {"per_class": 0}})


def test_a_method_remembers_by_the_features_of_its_trained_solver(lab):
    laboratory = lab("il2m", {"exemplars": {"per_class": 2}})
    laboratory.learn(0)
    given = laboratory.task(0)
    found = laboratory.engine.run_pass(laboratory.method.features_pass("again", given.train))["features"]
    expected = []
    for label in range(3):
        rows = (given.train.labels == label).nonzero().flatten()
        expected += [given.train.pixels[rows[place]] for place in brute_force(found[rows], 2)]
    assert torch.equal(laboratory.method.memory.images.pixels, torch.stack(expected))
