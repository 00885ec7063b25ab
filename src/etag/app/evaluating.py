"""The accuracy of a model on labeled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etag.app.arguments import check_order
from etag.app.folders import image_files
from etag.app.labeled import AS_IT_IS, FolderOptions, LabeledFolder, read_folder
from etag.app.predicting import BATCH, Device, is_rejected, load_on, predict_pixels, unlabeled_images
from etag.core.errors import EtagError
from etag.core.text import listing as listing_text
from etag.data.folders import Listing, as_images
from etag.data.images import FileImages, unreadable_error
from etag.data.not_read import NotRead
from etag.evaluation.calibration import calibration_error, unknown_auroc
from etag.learner.versions import ModelInfo, Name
from etag.models.classifier import Classifier

MISTAKES = 24  # are listed
NAMED = 10  # classes in an error


@dataclass(frozen=True)
class Mistake:
    """An image that was classified wrongly."""

    path: str
    label: Name
    predicted: Name
    probability: float  # of the predicted class


@dataclass(frozen=True)
class FolderEvaluation:
    """The result of evaluating a folder."""

    images: int
    accuracy: float
    per_class: dict[Name, tuple[int, float]]  # images, and the share of them that is right
    confusion: list[list[int]]  # [true class][predicted class], of all known classes
    unknown_classes: dict[str, int]  # images of classes that the model does not know; they count as unknown images
    mistakes: list[Mistake]  # the surest ones first
    calibration_error: float
    auroc: float | None  # of known against unknown images, by how familiar they are
    rejected: float | None  # share of the images that `--reject` would reject; None without a threshold
    unknown_rejected: float | None  # the same for unknown images
    folder: str  # that holds the classes: of a data set that is split, the part
    not_read: NotRead
    remarks: tuple[str, ...]  # lines for the user about how the folder was read

    def by_lesson(self, about: ModelInfo) -> list[tuple[int, tuple[Name, ...], int, int]]:
        """For each lesson of which there are images: its number, its classes, right predictions, images."""
        rows = []
        for number, past in enumerate(about.history, start=1):
            own = [self.per_class[name] for name in past.classes if name in self.per_class]
            if past.kind == "learn" and own:
                right = sum(round(count * share) for count, share in own)
                rows.append((number, past.classes, right, sum(count for count, _ in own)))
        return rows

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        classes = [
            {"class": name, "images": count, "accuracy": accuracy} for name, (count, accuracy) in self.per_class.items()
        ]
        mistakes = [mistake.__dict__ for mistake in self.mistakes]
        return self.__dict__ | {"per_class": classes, "mistakes": mistakes, "not_read": self.not_read.to_json()}


def evaluate_folder(
    model: Path,
    folder: Path,
    unknown: Path | None = None,
    out: Path | None = None,
    workers: int = 1,
    device: Device = "auto",
    options: FolderOptions = AS_IT_IS,
) -> FolderEvaluation:
    """Evaluate a model on a folder of images by class. Images of classes that it does not know, and those of the folder
    `unknown`, tell how well unknown images are recognized. `options` say how the folder is read."""
    check_order("evaluate", model, [folder])
    classifier, about = load_on(model, device)
    found, listing, remarks = images_to_evaluate(folder, options)
    strange = {name: files for name, files in listing.items() if name not in about.classes}
    listing = {name: files for name, files in listing.items() if name not in strange}
    if not listing:
        known = listing_text(list(map(str, about.classes)), NAMED)
        raise EtagError(f"'{model}' knows none of the classes of '{folder}': it knows {known}.")
    images = as_images(listing, workers, about.channels).resized(about.preprocess.resize)
    place = torch.tensor([about.classes.index(name) for name in listing])
    labels, (probability, familiarity) = place[images.labels], _all(classifier, about, images)
    files = [file for own in strange.values() for file in own]
    files += [] if unknown is None else _unknown_files(unknown, remarks)
    unfamiliar = _all(classifier, about, unlabeled_images(files, about, workers))[1] if files else None
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
        unknown_classes={name: len(own) for name, own in strange.items()},
        mistakes=list_mistakes(images.files.tolist(), probability, labels, about.classes),
        calibration_error=calibration_error(probability, labels),
        auroc=None if unfamiliar is None else unknown_auroc(familiarity, unfamiliar),
        rejected=_share_rejected(about, familiarity),
        unknown_rejected=None if unfamiliar is None else _share_rejected(about, unfamiliar),
        folder=str(next(found.paths[part] for part in found.parts)),
        not_read=found.not_read,
        remarks=tuple(remarks),
    )
    if out is not None:
        _draw(model, folder, about, evaluation, out)
    return evaluation


def _draw(model: Path, folder: Path, about: ModelInfo, evaluation: FolderEvaluation, out: Path) -> None:
    """Write a page, or the confusion matrix as a figure, as the name of the file says."""
    if out.suffix == ".html":
        from etag.app.pages import write_evaluation_page

        write_evaluation_page(model, folder, about, evaluation, out)
        return
    from etag.report.figures import confusion_heatmap
    from etag.report.page import write_figure

    write_figure(confusion_heatmap(evaluation.confusion, list(map(str, about.classes)), about.task_sizes), out)


def list_mistakes(files: Sequence[str], probability: Tensor, labels: Tensor, classes: Sequence[Name]) -> list[Mistake]:
    """The files that are classified wrongly, the surest mistakes first."""
    surest, predicted = probability.max(1)
    order = surest.argsort(descending=True, stable=True)
    wrong = order[(predicted != labels)[order]][:MISTAKES].tolist()
    return [
        Mistake(files[row], classes[int(labels[row])], classes[int(predicted[row])], float(surest[row]))
        for row in wrong
    ]


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


def _unknown_files(folder: Path, remarks: list[str]) -> list[str]:
    """The images of unknown classes; what the folder holds besides images is added to the remarks."""
    files, not_read = image_files([str(folder)])
    if not_read.kinds:
        remarks.append(f"'{folder}': {not_read}")
    return files
