"""A model's classifier as one file for other programs."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
Converted = tuple[bytes, Callable[[Tensor], Sequence[Tensor]]]  # the content of a file, and what it computes
ANY_BATCH = {"images": {0: torch.export.Dim("batch", min=1)}}


class _FromPixels(nn.Module):
    """From pixels between 0 and 1 to probabilities and familiarity; includes the normalization."""

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


def _metadata(about: ModelInfo) -> dict[str, str]:
    """What users of the file need to know."""
    size = about.preprocess.size
    threshold = {} if about.threshold is None else {"threshold": str(about.threshold)}
    return threshold | {
        "classes": json.dumps([name_to_json(name) for name in about.classes]),
        "input": f"images: float32, (n, {about.channels}, {size}, {size}), from 0 to 1, resized to {size}x{size}",
        "output": "probabilities: float32, (n, classes); familiarity: float32, (n), below the threshold for images of "
        "no known class",
        "made_by": "etag",
    }


def export_onnx(model: Path, out: Path) -> float:
    """Write ONNX for batches of any size, after comparing it with PyTorch; returns the greatest difference."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise EtagError("export to ONNX needs more packages: pip install 'etag-cil[export]'.") from error

    def convert(module: nn.Module, images: Tensor, metadata: dict[str, str]) -> Converted:
        names: dict[str, Any] = {"input_names": ["images"], "output_names": OUTPUTS}
        program = torch.onnx.export(module, (images,), dynamic_shapes=ANY_BATCH, dynamo=True, verbose=False, **names)
        assert program is not None
        proto = program.model_proto
        for key, value in metadata.items():
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.checker.check_model(proto)
        data = proto.SerializeToString()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        return data, lambda rows: [torch.from_numpy(found) for found in session.run(OUTPUTS, {"images": rows.numpy()})]

    return _export(model, out, convert)


def export_torch(model: Path, out: Path) -> float:
    """Write a torch.export program, to be loaded by torch.export.load; returns the greatest difference."""

    def convert(module: nn.Module, images: Tensor, metadata: dict[str, str]) -> Converted:
        buffer = io.BytesIO()
        program = torch.export.export(module, (images,), dynamic_shapes=ANY_BATCH)
        torch.export.save(program, buffer, extra_files=metadata)
        data = buffer.getvalue()
        return data, torch.export.load(io.BytesIO(data)).module()

    return _export(model, out, convert)


@torch.no_grad()
def _export(model: Path, out: Path, convert: Callable[[nn.Module, Tensor, dict[str, str]], Converted]) -> float:
    """Convert the classifier to the content of a file, and compare what the file computes with what we do."""
    classifier, about = ModelDirectory(model).load_classifier()
    module, side = _FromPixels(classifier, about).eval(), about.preprocess.size
    images = torch.rand(SAMPLES, about.channels, side, side, generator=torch.Generator().manual_seed(0))
    with _quiet():
        data, compute = convert(module, images, _metadata(about))
    worst = max(
        float(((ours - theirs).abs() / ours.abs().clamp(min=1)).max())
        for rows in (images, images[:1])
        for ours, theirs in zip(module(rows), compute(rows), strict=True)
    )
    if not worst <= MAX_DIFFERENCE:
        raise EtagError(
            f"the exported model differs from PyTorch by {worst:.1e}, more than {MAX_DIFFERENCE:.0e}: not written."
        )
    try:
        write_atomically(out, data)
    except OSError as error:
        raise EtagError(f"'{out}' cannot be written: {error.strerror}.") from error
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
