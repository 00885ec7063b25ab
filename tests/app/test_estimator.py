"""IncrementalClassifier in the scikit-learn manner."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

from etag import IncrementalClassifier
from etag.app.given_images import as_pixels
from etag.app.sources import source_folders
from etag.core.errors import EtagError

SHORT = {
    "train.batch_size": 16,
    "train.base": {"steps": 120},
    "data.flip": False,
    "method.generator.train.steps": 60,
    "method.generator.feature_passes": 1,
    "method.refit.steps": 60,
}


def small(**options):
    return IncrementalClassifier(width=4, steps=40, settings=SHORT | options.pop("settings", {}), **options)


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8) * 15.9).astype(np.uint8), labels


@pytest.fixture(scope="module")
def some(digits):
    """some(classes): the first forty images of each."""
    images, labels = digits

    def choose(classes, first=0, count=40):
        rows = np.concatenate([np.flatnonzero(labels == c)[first : first + count] for c in classes])
        return images[rows], labels[rows]

    return choose


@pytest.fixture(scope="module")
def learned(some):
    return small().fit(*some((0, 1, 2))).partial_fit(*some((3, 4)))


def test_it_learns_more_and_more_classes(learned, some):
    assert learned.classes_.tolist() == [0, 1, 2, 3, 4]
    test = some(range(5), first=100)
    assert learned.score(*test) > 0.4, "five digits, chance is 0.2"
    likely = learned.predict_proba(test[0])
    assert likely.shape == (200, 5)
    np.testing.assert_allclose(likely.sum(1), 1, rtol=1e-5)
    assert (learned.classes_[likely.argmax(1)] == learned.predict(test[0])).all()
    assert len(learned.predict(test[0][:0])) == 0


@pytest.mark.slow
def test_the_first_partial_fit_is_a_fit(some):
    one, other = small().fit(*some((0, 1))), small().partial_fit(*some((0, 1)))
    images, _ = some((0, 1), first=60)
    np.testing.assert_array_equal(one.predict_proba(images), other.predict_proba(images))


@pytest.mark.slow
def test_fit_starts_again(some):
    model = small().fit(*some((0, 1, 2)))
    assert model.fit(*some((3, 4))).classes_.tolist() == [3, 4]


@pytest.mark.parametrize("kind", ["fractions", "tensor", "channels last", "channels first", "pairs"])
def test_all_kinds_of_images_are_the_same_images(learned, some, kind):
    images, labels = some((0, 1, 2))
    few = {"train.base": {"steps": 2}, "method.generator.train.steps": 2}
    model = small(settings=few)
    if kind == "pairs":
        model.fit(list(zip(images, labels.tolist(), strict=True)))
    else:
        given = {
            "fractions": images / 255,
            "tensor": torch.from_numpy(images),
            "channels last": images[..., None],
            "channels first": torch.from_numpy(images)[:, None],
        }[kind]
        model.fit(given, labels)
    expected = small(settings=few).fit(images, labels)
    np.testing.assert_array_equal(model.predict_proba(images), expected.predict_proba(images))


@pytest.mark.parametrize(
    "names",
    [["cat", "dog", "猫"], [1.5, 2.5, 3.5], [True, False, None], [("a", 1), ("a", 2), ("b", 1)], [3, "x", (1,)]],
)
def test_names_of_any_kind(some, names, tmp_path):
    images, labels = some((0, 1, 2), count=10)
    model = small(settings={"train.base": {"steps": 2}}).fit(images, [names[label] for label in labels])
    assert set(model.classes_.tolist()) == set(names)
    assert set(model.predict(images).tolist()) <= set(names)
    model.save(tmp_path / "saved")
    assert IncrementalClassifier.load(tmp_path / "saved").classes_.tolist() == model.classes_.tolist()


def test_names_that_cannot_be_saved_are_refused_before_training(some):
    images, _ = some((0, 1), count=4)
    with pytest.raises(EtagError, match=r"cannot be saved: names are text, numbers, or tuples of these"):
        small().fit(images, [frozenset(), frozenset([1])] * 4)


def test_saved_and_loaded_it_predicts_the_same_and_learns_more(learned, some, tmp_path):
    images, _ = some(range(5), first=100)
    learned.save(tmp_path / "saved")
    loaded = IncrementalClassifier.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict_proba(images), learned.predict_proba(images))
    loaded.set_params(steps=4).partial_fit(*some((5, 6)))
    assert loaded.classes_.tolist() == list(range(7))
    with pytest.raises(EtagError, match="exists already"):
        learned.save(tmp_path / "saved")


def test_it_can_be_pickled_and_cloned(learned, some):
    images, _ = some(range(5), first=100)
    again = pickle.loads(pickle.dumps(learned))
    np.testing.assert_array_equal(again.predict_proba(images), learned.predict_proba(images))
    fresh = clone(learned)
    assert fresh.get_params() == learned.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(images)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((4, 8)), [0, 0, 1, 1], "not (4, 8)"),
        (np.zeros((4, 8, 8, 2)), [0, 0, 1, 1], "1 or 3 channels"),
        (np.zeros((4, 8, 8)), [0, 1], "4 images, but 2 labels"),
        (np.zeros((4, 8, 8)), [0, 0, 0, 0], "at least two classes"),
        (np.full((4, 8, 8), np.nan), [0, 0, 1, 1], "NaN"),
        (np.full((4, 8, 8), 7.0), [0, 0, 1, 1], "between 0 and 1"),
        (np.full((4, 8, 8), 300), [0, 0, 1, 1], "between 0 and 255"),
    ],
)
def test_images_and_classes_that_are_refused(images, labels, message):
    with pytest.raises(EtagError) as error:
        small().fit(images, labels)
    assert message in str(error.value)


def test_a_class_is_learned_once(learned, some):
    with pytest.raises(EtagError, match="known already: 3"):
        learned.partial_fit(*some((3, 5)))
    with pytest.raises(EtagError, match="3 channels"):
        learned.predict(np.zeros((2, 8, 8, 3), dtype=np.uint8))


def test_pixels_are_copied_from_any_kind():
    given = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4) % 256
    assert torch.equal(as_pixels(given), given.byte())
    assert torch.equal(as_pixels(given.permute(0, 2, 3, 1).numpy()), given.byte())


# of scikit-learn's checks those that do not feed it tables of features, which are no images
CHECKS = [
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_scikit_learns_own_checks(check):
    check("IncrementalClassifier", IncrementalClassifier())


def test_folders_are_learned_and_recognized(tmp_path):
    for name, classes, part in (("first", "0-2", "train"), ("more", "3", "train"), ("labeled", "0-3", "test")):
        source_folders("digits", tmp_path / name, classes, 40, part)
    model = small(size=8).fit(tmp_path / "first").partial_fit(str(tmp_path / "more"))
    assert model.classes_.tolist() == ["0", "1", "2", "3"]
    names = [path.parent.name for path in sorted((tmp_path / "labeled").rglob("*.png"))]
    predicted = model.predict(tmp_path / "labeled")
    assert predicted.paths == [str(path) for path in sorted((tmp_path / "labeled").rglob("*.png"))]
    assert not any(row.rejected for row in predicted), "the highest probability is no sure guide"
    assert [row.name for row in predicted] == predicted.classes == np.asarray(predicted).tolist()
    assert all((name is None) == row.rejected for name, row in zip(predicted.classes, predicted, strict=True))
    guesses = np.array([row.classes[0] for row in predicted])
    assert model.score(tmp_path / "labeled") == np.mean(guesses == names) > 0.4
    assert predicted[:2].paths == predicted.paths[:2]
    one = sorted((tmp_path / "labeled").rglob("*.png"))[0]
    np.testing.assert_allclose(model.predict_proba(one)[0], model.predict_proba(tmp_path / "labeled")[0], rtol=1e-4)
    assert model.predict(one).rows == predicted.rows[:1]
    assert model.predict([one, str(one)]).paths == [str(one), str(one)]
    with pytest.raises(EtagError, match="no file matches"):
        model.predict(str(tmp_path / "*.jpg"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EtagError, match="there are no images in"):
        model.predict(tmp_path / "empty")


def test_files_with_a_list_of_classes(tmp_path):
    source_folders("digits", tmp_path / "first", "0-2", 40, "train")
    files = sorted((tmp_path / "first").rglob("*.png"))
    names = [path.parent.name for path in files]
    one, other = small(size=8).fit(files, names), small(size=8).fit(tmp_path / "first")
    np.testing.assert_array_equal(one.predict_proba(files), other.predict_proba(tmp_path / "first"))
    with pytest.raises(EtagError, match="needs y, the class of each file"):
        one.partial_fit(files)
    with pytest.raises(EtagError, match="120 files, but 3 labels"):
        small(size=8).fit(files, ["0", "1", "2"])


# -- images of several sizes ---------------------------------------------------------------------


def test_pil_images_and_arrays_of_several_sizes(learned, some):
    images, _ = some(range(5), first=100, count=2)
    whole = learned.predict_proba(images)
    pictures = [Image.fromarray(image) for image in images]
    np.testing.assert_array_equal(learned.predict_proba(pictures), whole)
    larger = [picture.resize((8 + place, 9)) for place, picture in enumerate(pictures)]
    found = learned.predict_proba(larger)
    assert found.shape == whole.shape
    np.testing.assert_array_equal(learned.predict_proba([np.asarray(picture) for picture in larger]), found)
    assert learned.predict(larger[0]).tolist() == [learned.classes_[found[0].argmax()]], "one image"
    with pytest.raises(EtagError, match="an array of 2 or 3 dimensions, but one has 1"):
        learned.predict([np.zeros(3), np.zeros((2, 2))])


def test_images_of_several_sizes_are_learned_at_their_median_side():
    rng = np.random.default_rng(0)
    colors = [(220, 30, 30), (30, 30, 220)]
    images = [
        Image.fromarray(
            (np.full((30 + row, 40 + row, 3), colors[row % 2]) + rng.integers(0, 30, (1, 1, 3))).astype("uint8")
        )
        for row in range(20)
    ]
    model = small(from_scratch=True).fit(images, [("red", "blue")[row % 2] for row in range(20)])
    assert model.info().preprocess.size == 40
    assert model.score(images, [("red", "blue")[row % 2] for row in range(20)]) > 0.9
    color = np.full((50, 60, 3), colors[1], dtype=np.uint8)
    assert model.predict(color).tolist() == ["blue"], "an array of shape (height, width, 3) is one image"


# -- what the command line can do ----------------------------------------------------------------


def test_it_updates_forgets_renames_rolls_back_and_lists_versions(learned, some):
    model = pickle.loads(pickle.dumps(learned))
    assert [(row.number, row.classes) for row in model.versions()] == [(1, 3), (2, 5)]
    model.update(*some((1, 4), first=40, count=30))
    assert model.last_lesson_.update.before.keys() == {1, 4}
    assert [lesson.kind for lesson in model.info().history] == ["learn", "learn", "update"]
    with pytest.raises(EtagError, match="update is for known classes, but these are new: 7"):
        model.update(*some((7,)))
    images, _ = some(range(5), first=100)
    before = model.predict_proba(images)
    model.rename(3, "three")
    assert model.classes_.tolist() == [0, 1, 2, "three", 4]
    np.testing.assert_array_equal(model.predict_proba(images), before)
    assert [row.number for row in model.versions()] == [2, 3, 4]
    assert model.rollback(3).classes_.tolist() == [0, 1, 2, 3, 4]
    assert "networks that were trained with its images" in model.forget(3)
    assert model.classes_.tolist() == [0, 1, 2, 4]
    assert model.predict_proba(images).shape[1] == 4
    assert len(model.versions()) == 1


def test_it_evaluates_and_exports(tmp_path):
    for name, classes in (("first", "0-2"), ("labeled", "0-3")):
        source_folders("digits", tmp_path / name, classes, 30, "train" if name == "first" else "test")
    model = small(size=8).fit(tmp_path / "first")
    found = model.evaluate(tmp_path / "labeled")
    assert (found.images, found.unknown_classes) == (90, {"3": 30})
    assert found.accuracy == pytest.approx(
        model.score(
            [*(p for p in sorted((tmp_path / "labeled").rglob("*.png")) if p.parent.name != "3")],
            [c for c in "012" for _ in range(30)],
        )
    )
    model.export(torch=tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").stat().st_size > 0
    with pytest.raises(EtagError, match="choose what to write"):
        model.export()


def test_it_explains(tmp_path):
    source_folders("digits", tmp_path / "first", "0-2", 40)
    model = small(size=32).fit(tmp_path / "first")
    files = sorted((tmp_path / "first" / "1").glob("*.png"))[:2]
    shown = model.explain(files, tmp_path / "shown")
    assert shown.paths == list(map(str, files))
    for row in shown:
        assert (row.picture is None) == row.rejected
        assert row.rejected or Path(row.picture).parent == tmp_path / "shown"


def test_progress_is_reported_to_a_function(some):
    seen = []
    model = small(on_progress=seen.append)
    model.fit(*some((0, 1, 2)))
    shares = [progress.done for progress in seen]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    assert {progress.phase for progress in seen} >= {"solver", "generator"}
    assert any(progress.accuracy is not None and 0 <= progress.accuracy <= 1 for progress in seen)
    assert all(progress.seconds_left >= 0 for progress in seen)


@pytest.mark.parametrize("call", ["versions", "info", "rollback", "export"])
def test_nothing_is_known_before_the_first_lesson(call):
    with pytest.raises(NotFittedError):
        getattr(small(), call)()
