import pytest

from etag.core.errors import EtagError
from etag.experiments import recipes
from etag.experiments.config import resolve

SPLITS = {"cifar100": ["b50-5x10", "b50-10x5", "b50-25x2", "b0-4x25", "b0-10x10"]}
SPLITS["imagenet-sub"] = SPLITS["cifar100"][:3]
ALL = [(data, split) for data, splits in SPLITS.items() for split in splits]


@pytest.mark.parametrize(("data", "split"), ALL)
def test_the_paper_recipes_have_the_numbers_of_the_paper(data, split):
    config = resolve(f"paper/{data}-{split}")
    assert (config.data.name, config.split, config.method.name) == (data, split, "etag")
    assert config.train.epochs == {"cifar100": 100, "imagenet-sub": 70}[data]
    assert (config.train.lr, config.train.decay, config.train.decay_every, config.train.batch_size) == (
        1e-3,
        0.1,
        30,
        128,
    )
    generator = config.method.generator.train
    assert (generator.lr, generator.epochs, generator.decay_every, generator.batch_size) == (1e-4, 100, 30, 128)
    plain = resolve(given={"data": data, "method": "etag"}).method
    assert config.method == plain, "every method option has its default"


@pytest.mark.parametrize(("data", "split"), ALL)
def test_the_code_recipes_follow_the_release_in_every_row(data, split):
    config = resolve(f"code/{data}-{split}")
    method, generator = config.method, config.method.generator
    assert method.fidelity.model_dump() == {
        "ratio": "integer",
        "normalize_ce": True,
        "ce_new": "all",
        "ce_replay": "all",
        "argmax": "all",
        "l2_reduction": "frobenius",
        "l2_views": "all",
        "aux_classes": "all",
        "backbone_batch_norm": "views",
        "reconstruction": "whole",
        "guide_input": "reconstruction",
        "guide_classes": "all",
        "guide_weight": "normalized",
        "guide_old": True,
        "match_reduction": "batch_sum",
        "match_factor": 1e-3,
    }
    assert (method.head.growth, method.embedding.last_stage, method.batch_norm) == ("fixed", True, "frozen")
    assert (method.guidance, generator.kind, generator.last_task) == (True, "cvae", False)
    assert (generator.train.lr, generator.train.schedule, generator.feature_passes) == (1e-3, "constant", 100)
    assert (config.train.clip_norm, config.data.order_rule) == (10_000, "inverse")
    assert config.data.resized_crop == (data == "imagenet-sub")
    assert resolve(f"code/{data}-{split}", {"method": "fine"}).method.name == "fine"


def test_a_recipe_overrides_those_it_extends(tmp_path):
    (tmp_path / "_low.yaml").write_text("data: digits\ntrain: {epochs: 3, lr: 1e-2}\n")
    (tmp_path / "_mid.yaml").write_text("train: {epochs: 4}\n")
    (tmp_path / "top.yaml").write_text("extends: [_low, _mid]\ntrain: {batch_size: 8}\n")
    train = resolve(str(tmp_path / "top.yaml")).train
    assert (train.epochs, train.lr, train.batch_size) == (4, 1e-2, 8)


def test_extending_a_missing_recipe_is_an_error(tmp_path):
    (tmp_path / "top.yaml").write_text("extends: nobody\n")
    with pytest.raises(EtagError, match=r"extends 'nobody', but .* does not exist"):
        resolve(str(tmp_path / "top.yaml"))


def test_partial_recipes_are_not_listed():
    assert not [name for name in recipes.available() if "_" in name]
