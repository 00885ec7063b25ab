"""A model's classifier as one file for other programs: what all kinds of files share, and torch.export programs."""

import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo, name_to_json
from etag.models.classifier import Classifier

MAX_DIFFERENCE = 1e-4  # how far the exported outputs may be from ours; relative, if they are greater than 1
SAMPLES = 5
OUTPUTS = ["probabilities", "familiarity"]
ANY_BATCH = {"images": {0: torch.export.Dim("batch", min=1)}}
Takes = Literal["photos", "tensors"]


class FromPixels(nn.Module):
    """From resized images, with pixels between 0 and 1, to probabilities and familiarity; normalizes first."""

    def __init__(self, classifier: Classifier, about: ModelInfo) -> None:
        super().__init__()
        self.classifier = classifier
        shape = (1, about.channels, 1, 1)
        self.register_buffer("mean", torch.tensor(about.preprocess.mean).view(shape))
        self.register_buffer("std", torch.tensor(about.preprocess.std).view(shape))

    mean: Tensor
    std: Tensor

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, one row per image; and how familiar each image is."""
        log_probabilities, familiarity = self.classifier.predict((images - self.mean) / self.std)
        return log_probabilities.exp(), familiarity


def load_module(model: Path) -> tuple[FromPixels, ModelInfo]:
    """The network that is exported, in evaluation mode, and what is known of its model."""
    classifier, about = ModelDirectory(model).load_classifier()
    module = FromPixels(classifier, about)
    return module.eval(), about


def random_images(about: ModelInfo) -> Tensor:
    """A few images of the model's size, with random pixels between 0 and 1."""
    shape = (SAMPLES, about.channels, about.preprocess.size, about.preprocess.size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def export_torch(model: Path, out: Path) -> float:
    """Write a torch.export program, to be loaded by torch.export.load; returns how much it differs from the model."""
    module, about = load_module(model)
    images, buffer = random_images(about), io.BytesIO()
    with torch.no_grad(), quiet():
        program = torch.export.export(module, (images,), dynamic_shapes=ANY_BATCH)
        torch.export.save(program, buffer, extra_files=metadata(about, "tensors"))
        data = buffer.getvalue()
        compute = torch.export.load(io.BytesIO(data)).module()
        worst = max(difference(module(rows), compute(rows)) for rows in (images, images[:1]))
    write_atomically(out, data)
    return worst


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The greatest difference between outputs for the same images; an error if it is too great."""
    pairs = zip(ours, theirs, strict=True)
    worst = max(float(((our - their).abs() / our.abs().clamp(min=1)).max()) for our, their in pairs)
    if not worst <= MAX_DIFFERENCE:
        raise EtagError(
            f"the exported model differs from PyTorch by {worst:.1e}, more than {MAX_DIFFERENCE:.0e}: not written."
        )
    return worst


def metadata(about: ModelInfo, takes: Takes) -> dict[str, str]:
    """What users of the file need to know: how its input is made, and what its outputs mean."""
    preprocess, resize = about.preprocess, about.preprocess.resize
    found = {
        "made_by": "etag",
        "classes": json.dumps([name_to_json(name) for name in about.classes]),
        "exif_orientation": "turn the photo upright first",
        "color": {1: "gray", 3: "RGB"}.get(about.channels, f"{about.channels} channels"),
        "size": str(preprocess.size),
        "shorter_side": str(resize.shorter_side),
        "filter": preprocess.interpolation,
        "antialias": "true, as Pillow's Image.resize with reducing_gap=2",
        "mean": json.dumps(preprocess.mean),
        "std": json.dumps(preprocess.std),
        "output": "probabilities: float32, (n, classes), in the order of `classes`; "
        "familiarity: float32, (n), below the threshold for images of no known class",
    }
    if about.threshold is not None:
        found["threshold"] = str(about.threshold)
    if resize.crop is None:
        found["resize"] = "squash: the whole photo becomes a square of `size` pixels per side"
    else:
        found["resize"] = "crop: the shorter side becomes `shorter_side` pixels, then a square is cut out of the center"
    return found | (_of_photos(about.channels) if takes == "photos" else _of_tensors(about))


def _of_photos(channels: int) -> dict[str, str]:
    depth = "3), RGB" if channels == 3 else "1 or 3), gray or RGB"
    return {
        "input": f"photos: uint8, (n, height, width, {depth}, from 0 to 255, decoded and turned upright; all photos of "
        "a batch have one height and one width",
        "value_range": "0 to 255",
        "inside": "resize, rounding to whole numbers, normalization with mean and std",
    }


def _of_tensors(about: ModelInfo) -> dict[str, str]:
    side = about.preprocess.size
    return {
        "input": f"images: float32, (n, {about.channels}, {side}, {side}), from 0 to 1: decoded, turned upright, "
        "resized, rounded to whole numbers from 0 to 255, and divided by 255",
        "value_range": "0 to 1",
        "inside": "normalization with mean and std",
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter, which mentions packages that are not needed here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.setLevel(level)
