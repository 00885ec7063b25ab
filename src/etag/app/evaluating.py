"""The accuracy of a model on labeled images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etag.app.arguments import check_order
from etag.app.folders import image_files
from etag.app.labeled import AS_IT_IS, FolderOptions, LabeledFolder, read_folder
from etag.app.predicting import BATCH, is_rejected, predict_pixels, unlabeled_images
from etag.core.errors import EtagError
from etag.data.folders import Listing, as_images
from etag.data.images import FileImages, unreadable_error
from etag.data.not_read import NotRead
from etag.evaluation.calibration import calibration_error, unknown_auroc
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, Name
from etag.models.classifier import Classifier


@dataclass(frozen=True)
class FolderEvaluation:
    """The result of evaluating a folder."""

    images: int
    accuracy: float
    per_class: dict[Name, tuple[int, float]]  # images, and the share of them that is right
    confusion: list[list[int]]  # [true class][predicted class], of all known classes
    calibration_error: float
    auroc: float | None  # of known against unknown images, by how familiar they are
    rejected: float | None  # share of the images that `--reject` would reject; None without a threshold
    unknown_rejected: float | None  # the same for unknown images
    folder: str  # that holds the classes: of a data set that is split, the part
    not_read: NotRead
    remarks: tuple[str, ...]  # lines for the user about how the folder was read

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        classes = [
            {"class": name, "images": count, "accuracy": accuracy} for name, (count, accuracy) in self.per_class.items()
        ]
        return self.__dict__ | {"per_class": classes, "not_read": self.not_read.to_json()}


def evaluate_folder(
    model: Path,
    folder: Path,
    unknown: Path | None = None,
    picture: Path | None = None,
    workers: int = 1,
    options: FolderOptions = AS_IT_IS,
) -> FolderEvaluation:
    """Evaluate a model on a folder of known classes, and optionally on images of unknown ones. `options` say how the
    folder is read."""
    check_order("evaluate", model, [folder])
    classifier, about = ModelDirectory(model).load_classifier()
    found, listing, remarks = images_to_evaluate(folder, options)
    if unknown_names := [name for name in listing if name not in about.classes]:
        raise EtagError(f"'{model}' does not know these classes of '{folder}': {', '.join(unknown_names)}.")
    images = as_images(listing, workers, about.channels).resized(about.preprocess.resize)
    place = torch.tensor([about.classes.index(name) for name in listing])
    labels, (probability, familiarity) = place[images.labels], _all(classifier, about, images)
    unfamiliar = None if unknown is None else _unknown(classifier, about, unknown, workers, remarks)
    predicted, classes = probability.argmax(1), len(about.classes)
    right = (predicted == labels).double()
    evaluation = FolderEvaluation(
        images=len(labels),
        accuracy=right.mean().item(),
        per_class={
            name: (int((labels == number).sum()), right[labels == number].mean().item())
            for name, number in zip(listing, place.tolist(), strict=True)
        },
        confusion=(labels * classes + predicted).bincount(minlength=classes**2).view(classes, classes).tolist(),
        calibration_error=calibration_error(probability, labels),
        auroc=None if unfamiliar is None else unknown_auroc(familiarity, unfamiliar),
        rejected=_share_rejected(about, familiarity),
        unknown_rejected=None if unfamiliar is None else _share_rejected(about, unfamiliar),
        folder=str(next(found.paths[part] for part in found.parts)),
        not_read=found.not_read,
        remarks=tuple(remarks),
    )
    if picture is not None:
        from etag.report.figures import confusion_heatmap
        from etag.report.page import write_figure

        write_figure(confusion_heatmap(evaluation.confusion, list(map(str, about.classes)), about.task_sizes), picture)
    return evaluation


def images_to_evaluate(folder: Path, options: FolderOptions = AS_IT_IS) -> tuple[LabeledFolder, Listing, list[str]]:
    """A folder, its labeled images (of a data set that is split: those of test, else of val), and lines about them."""
    found = read_folder(folder, options, wanted=(("test", "val"),))
    if not found.parts:
        raise EtagError(
            f"'{folder}' holds train, but neither test nor val with labels: pass '{found.paths['train']}' to evaluate "
            "the images of train."
        )
    ((part, listing),) = found.parts.items()
    remarks = [f"'{folder}' is split: {part} is evaluated."] if found.is_split else []
    return found, listing, remarks + found.remarks


def _share_rejected(about: ModelInfo, familiarity: Tensor) -> float | None:
    return None if about.threshold is None else is_rejected(about, familiarity).double().mean().item()


def _all(classifier: Classifier, about: ModelInfo, images: FileImages) -> tuple[Tensor, Tensor]:
    """The probabilities of all images, and how familiar each is."""
    found, unreadable = [], []
    for _, pixels, failed in images.decode_batches(torch.split(torch.arange(len(images)), BATCH)):
        found.append(predict_pixels(classifier, about, pixels))
        unreadable += failed
    if unreadable:
        raise unreadable_error(unreadable)
    return torch.cat([probability for probability, _ in found]), torch.cat([familiarity for _, familiarity in found])


def _unknown(classifier: Classifier, about: ModelInfo, folder: Path, workers: int, remarks: list[str]) -> Tensor:
    """How familiar the images of unknown classes are; what the folder holds besides images is added to the remarks."""
    files, not_read = image_files([str(folder)])
    if not_read.kinds:
        remarks.append(f"'{folder}': {not_read}")
    return _all(classifier, about, unlabeled_images(files, about, workers))[1]
