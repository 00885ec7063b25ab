"""A model's classifier as one file for other programs."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.learner.model_directory import About, ModelDirectory, plain_name
from etag.models.classifier import Classifier

AGREE = 1e-4  # how far the exported probabilities may be from ours
SAMPLES = 5


class _FromPixels(nn.Module):
    """From pixels between 0 and 1 to probabilities; includes the normalization."""

    def __init__(self, classifier: Classifier, about: About) -> None:
        super().__init__()
        self.classifier = classifier
        shape = (1, about.channels, 1, 1)
        self.register_buffer("mean", torch.tensor(about.preprocess.mean).view(shape))
        self.register_buffer("std", torch.tensor(about.preprocess.std).view(shape))

    mean: Tensor
    std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities, one row per image."""
        log_probabilities: Tensor = self.classifier((images - self.mean) / self.std)
        return log_probabilities.exp()


def _ready(model: Path) -> tuple[nn.Module, About, Tensor]:
    classifier, about = ModelDirectory(model).load_classifier()
    generator = torch.Generator().manual_seed(0)
    size = about.preprocess.size
    return (
        _FromPixels(classifier, about).eval(),
        about,
        torch.rand(SAMPLES, about.channels, size, size, generator=generator),
    )


def _metadata(about: About) -> dict[str, str]:
    """What users of the file need to know."""
    size = about.preprocess.size
    return {
        "classes": json.dumps([plain_name(name) for name in about.classes]),
        "input": f"images: float32, (n, {about.channels}, {size}, {size}), from 0 to 1, resized to {size}x{size}",
        "output": "probabilities: float32, (n, classes)",
        "threshold": str(about.threshold),
        "made_by": "etag",
    }


@torch.no_grad()
def export_onnx(model: Path, out: Path) -> float:
    """Write ONNX for batches of any size, after comparing it with PyTorch; returns the greatest difference."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise EtagError("export to ONNX needs more packages: pip install 'etag-cil[export]'.") from error
    module, about, images = _ready(model)
    with _quiet():
        program = torch.onnx.export(
            module,
            (images,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for key, value in _metadata(about).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(proto)
    data = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows in (images, images[:1]):
        (found,) = session.run(None, {"images": rows.numpy()})
        worst = max(worst, _difference(module, rows, torch.from_numpy(found)))
    _write(out, data, worst)
    return worst


@torch.no_grad()
def export_torch(model: Path, out: Path) -> float:
    """Write a torch.export program, to be loaded by torch.export.load; returns the greatest difference."""
    module, about, images = _ready(model)
    with _quiet():
        program = torch.export.export(
            module, (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}}
        )
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files=_metadata(about))
    data = buffer.getvalue()
    loaded: Any = torch.export.load(io.BytesIO(data)).module()
    worst = max(_difference(module, rows, loaded(rows)) for rows in (images, images[:1]))
    _write(out, data, worst)
    return worst


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which mentions packages that are not needed here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.setLevel(level)


def _difference(module: nn.Module, images: Tensor, found: Tensor) -> float:
    return float((module(images) - found).abs().max())


def _write(out: Path, data: bytes, worst: float) -> None:
    if not worst <= AGREE:
        raise EtagError(
            f"the exported model differs from PyTorch by {worst:.1e}, more than {AGREE:.0e}: not written."
        )
    try:
        write_atomically(out, data)
    except OSError as error:
        raise EtagError(f"'{out}' cannot be written: {error.strerror}.") from error
