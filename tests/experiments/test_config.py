import pytest

from etag.core.errors import EtagError
from etag.experiments import recipes
from etag.experiments.config import resolve, validate
from etag.methods.etag import EtagOptions


def test_the_defaults_are_the_papers():
    config = validate({"method": {"name": "etag"}})
    train, generator = config.train, config.method.generator.train
    assert (train.optimizer, train.lr, train.schedule, train.decay, train.decay_every) == (
        "adam",
        1e-3,
        "step",
        0.1,
        30,
    )
    assert (train.batch_size, train.epochs, train.weight_decay) == (128, 100, 2e-4)
    assert (generator.lr, generator.epochs, generator.weight_decay, generator.decay_every) == (1e-4, 100, 0.0, 30)
    assert (config.model.backbone, config.model.width) == ("resnet18", None)
    method = config.method
    assert (method.embedding.tau, method.lambda_ce, method.lambda_l2, method.lambda_vae) == (3.0, None, None, None)


def test_later_ones_win_recipe_then_options_then_settings():
    config = resolve("digits", {"seed": 3, "train.epochs": 4}, ["train.epochs=5", "train.lr=2e-3"])
    assert (config.seed, config.train.epochs, config.train.lr) == (3, 5, 2e-3)
    assert config.train.schedule == "onecycle", "from the recipe"
    assert config.train.base == {"lr": 3e-3}


def test_without_a_recipe_the_one_named_after_the_data_is_taken_if_there_is_one():
    assert resolve(given={"data": "digits"}).model.width == 16
    assert resolve(given={"data": "cifar100"}) == validate({"method": {"name": "etag"}, "data": {"name": "cifar100"}})


def test_a_recipes_methods_section_is_for_the_method_that_is_run():
    assert resolve("digits", {"method": "etag"}).method.generator.train.epochs == 40
    assert not hasattr(resolve("digits", {"method": "fine"}).method, "generator")
    assert resolve("digits", settings=["method.generator.train.epochs=2"]).method.generator.train.epochs == 2


PIECES = """
data: digits
train: {epochs: 3, lr: 1e-2}
methods:
  gfr: {train: {epochs: 7}, method: {lambda_l2: 2, lambda_ce: 2}}
  etag: {train: {lr: 1e-3}, method: {lambda_l2: 3}, split: b4-3x2}
  fine: {model: {width: 5}}
"""


@pytest.mark.parametrize(
    ("method", "epochs", "lr", "lambdas", "split"),
    [
        ("gfr", 7, 1e-2, (2, 2), "b5-5x1"),
        ("egfr", 7, 1e-2, (2, 2), "b5-5x1"),
        ("b1", 7, 1e-2, (2, 2), "b5-5x1"),
        ("etag", 7, 1e-3, (3, 2), "b4-3x2"),
        ("b0", 7, 1e-3, (3, 2), "b4-3x2"),
        ("ewc", 3, 1e-2, None, "b5-5x1"),
    ],
)
def test_what_a_recipe_says_of_a_method_it_says_of_what_is_derived_from_it(
    tmp_path, method, epochs, lr, lambdas, split
):
    file = tmp_path / "mine.yaml"
    file.write_text(PIECES)
    config = resolve(str(file), {"method": method})
    assert (config.train.epochs, config.train.lr, config.split) == (epochs, lr, split)
    assert config.model.width != 5
    if lambdas:
        assert (config.method.lambda_l2, config.method.lambda_ce) == lambdas
    asked = resolve(str(file), {"method": method, "split": "b2-4x2"}, ["train.epochs=1", "method.batch_norm=train"])
    assert (asked.train.epochs, asked.split, asked.method.batch_norm) == (1, "b2-4x2", "train")


def test_a_setting_inside_a_group_keeps_the_groups_own_defaults():
    assert (
        resolve(settings=["method.embedding.tau=2"]).method.embedding
        == EtagOptions(name="etag", embedding={"tau": 2}).embedding
    )


def test_a_resolved_config_resolves_to_itself():
    config = resolve("digits", settings=["method.lambda_l2=0.5"])
    assert validate(config.to_json()) == config


def test_a_recipe_can_be_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("summary: mine\ndata: digits\nsplit: b4-3x2\nmethod: fine\n")
    config = resolve(str(file))
    assert (config.split, config.method.name, config.train.epochs) == ("b4-3x2", "fine", 100)


def test_every_recipe_of_the_package_resolves_and_has_a_summary():
    assert recipes.available()
    for name, path in recipes.available().items():
        resolve(name)
        assert recipes.summary(path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.epocs=5"], r"unknown option 'train.epocs': did you mean 'epochs'\? Allowed are .*batch_size"),
        (["trian.epochs=5"], r"unknown option 'trian': did you mean 'train'\?"),
        (["train.epochs=many"], r"option 'train.epochs' cannot be 'many': .*integer"),
        (["train.epochs=0"], r"option 'train.epochs' cannot be 0: .*greater than 0"),
        (["method.name=etagg"], r"unknown method 'etagg': did you mean 'etag'\?"),
        (["method.generator.latnet=3"], r"unknown option 'method.generator.latnet': did you mean 'latent'\?"),
        (
            ["method.fidelity.aux_classes=some"],
            r"option 'method.fidelity.aux_classes' cannot be 'some': .*'base' or 'all'",
        ),
        (["data.name=cifar10"], r"unknown data source 'cifar10': did you mean 'cifar100'\?"),
        (["model.backbone=resnet81"], r"unknown backbone 'resnet81': did you mean 'resnet18'\?"),
        (["train.base={lr: 0}"], r"option 'train.*' cannot be"),
        (["train.epochs"], r"--set takes KEY=VALUE"),
        (["train=3"], r"option 'train' cannot be 3"),
        (["train.lr=1e-3", "train.lr.deep=1"], r"'lr' is a single value"),
        (["seed=-1"], r"option 'seed' cannot be -1"),
        (["train.epochs=[1"], r"--set train.epochs.* is not valid YAML"),
    ],
)
def test_bad_settings_are_refused_in_words(settings, words):
    with pytest.raises(EtagError, match=words):
        resolve(settings=settings)


def test_several_mistakes_are_told_at_once():
    with pytest.raises(EtagError, match=r"'train.epochs'.*'train.lr'"):
        resolve(settings=["train.epochs=x", "train.lr=-1"])


def test_unknown_recipes_are_refused_in_words(tmp_path):
    with pytest.raises(EtagError, match=r"unknown recipe 'digit': did you mean 'digits'\?"):
        resolve("digit")
    with pytest.raises(EtagError, match="does not exist"):
        resolve(str(tmp_path / "none.yaml"))
