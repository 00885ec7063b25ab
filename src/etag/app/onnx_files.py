"""A model's classifier as an ONNX file, which takes photos as they are or images that are resized already."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from etag.app.exporting import (
    ANY_BATCH,
    OUTPUTS,
    FromPixels,
    Takes,
    difference,
    load_module,
    metadata,
    quiet,
    random_images,
)
from etag.app.photo_graph import photo_graph
from etag.core.errors import EtagError
from etag.core.files import write_atomically
from etag.core.images import Resize
from etag.data.decode import Pixels, UnreadableImage, decode, decode_photo
from etag.data.images import unreadable_error
from etag.learner.versions import ModelInfo

# (height, width) of the photos that are compared before a file is written, besides those of the model's own size
PHOTO_SIZES = ((60, 80), (240, 320), (640, 480), (1200, 1601))
MAX_LEVELS = 0.5  # of 255, in the mean: how far pixels that the file resized may be from Pillow's
Run = Callable[[np.ndarray[Any, Any]], list[Tensor]]  # a session: from its only input to its outputs


@dataclass(frozen=True)
class Agreement:
    """How the model and the file, which resizes photos itself, agree on photos in files."""

    photos: int
    same_class: int
    difference: float  # the greatest of all probabilities


@dataclass(frozen=True)
class OnnxExport:
    """How an ONNX file differs from the model."""

    difference: float  # of the outputs, for the same resized images
    resizing: float | None = None  # of the probabilities, for synthetic photos that each resizes itself
    agreement: Agreement | None = None  # on the photos that were given


def export_onnx(model: Path, out: Path, takes: Takes = "photos", photos: Sequence[str] = ()) -> OnnxExport:
    """Write ONNX for batches of any size, after comparing it with the model. The file takes photos of any size, or
    `tensors`: resized images. With `photos` it is also compared on these files."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise EtagError("export to ONNX needs more packages: pip install 'etag-cil[export]'.") from error
    if photos and takes == "tensors":
        raise EtagError("a file that takes tensors cannot be compared on photos: leave out --photos or --input.")
    module, about = load_module(model)
    content, front = onnx_model(module, about, takes)
    data = content.SerializeToString()
    export = _compared(module, about, data, front, photos)
    write_atomically(out, data)
    return export


def onnx_model(module: FromPixels, about: ModelInfo, takes: Takes) -> tuple[Any, Any]:
    """The model of ONNX, and the part of it that turns photos into resized images, if it has one."""
    import onnx

    if takes == "photos" and about.channels not in (1, 3):
        raise EtagError(
            f"this model takes images of {about.channels} channels, and photos have 3 or 1: export it with "
            "--input tensors."
        )
    names: dict[str, Any] = {"input_names": ["images"], "output_names": OUTPUTS}
    with torch.no_grad(), quiet():
        program = torch.onnx.export(
            module, (random_images(about),), dynamic_shapes=ANY_BATCH, dynamo=True, verbose=False, **names
        )
    assert program is not None
    content, front = program.model_proto, None
    if takes == "photos":
        opset = next(each.version for each in content.opset_import if not each.domain)
        front = photo_graph(about.preprocess.resize, about.channels, content.ir_version, opset)
        inner = onnx.compose.add_prefix(front, "preprocess/", rename_inputs=False, rename_outputs=False)
        content = onnx.compose.merge_models(inner, content, io_map=[("resized", "images")])
    onnx.helper.set_model_props(content, metadata(about, takes))
    onnx.checker.check_model(content)
    return content, front


def _session(data: bytes, outputs: list[str]) -> Run:
    """What the content of an ONNX file computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return lambda rows: [torch.from_numpy(found) for found in session.run(outputs, {taken.name: rows})]


@torch.no_grad()
def _compared(module: FromPixels, about: ModelInfo, data: bytes, front: Any, photos: Sequence[str]) -> OnnxExport:
    """Compare what the file computes with what the model computes."""
    run, images = _session(data, OUTPUTS), random_images(about)
    if front is None:
        return OnnxExport(max(difference(module(rows), run(rows.numpy())) for rows in (images, images[:1])))
    resize, worst, resizing = _session(front.SerializeToString(), ["resized"]), 0.0, 0.0
    side = about.preprocess.size
    for height, width in ((side, side), *PHOTO_SIZES):
        batch = _synthetic_photos(height, width)
        (resized,), outputs = resize(batch), run(batch)
        worst = max(worst, difference(module(resized), outputs))
        ours = _resized_by_pillow(batch, about.preprocess.resize, about.channels)
        _require_equal_pixels(ours, resized)
        resizing = max(resizing, float((module(ours)[0] - outputs[0]).abs().max()))
    return OnnxExport(worst, resizing, _agreement(module, about, run, photos) if photos else None)


def _synthetic_photos(height: int, width: int) -> Pixels:
    """Two photos of smooth random colors with a little noise."""
    numbers = np.random.default_rng([height, width])
    rough = numbers.integers(40, 216, (2, 2 + height // 16, 2 + width // 16, 3), dtype=np.uint8)
    smooth = [np.asarray(Image.fromarray(each).resize((width, height)), dtype=np.int16) for each in rough]
    noise = numbers.integers(-8, 9, (2, height, width, 3))
    return (np.stack(smooth) + noise).clip(0, 255).astype(np.uint8)


def _resized_by_pillow(photos: Pixels, resize: Resize, channels: int) -> Tensor:
    """Photos as `etag predict` would decode them from files, with pixels between 0 and 1."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "photo.bmp"
        rows = []
        for photo in photos:
            Image.fromarray(photo).save(file)
            rows.append(torch.from_numpy(decode(file, resize, channels)))
    return torch.stack(rows).float() / 255


def _require_equal_pixels(ours: Tensor, theirs: Tensor) -> None:
    """Refuse a runtime that resizes otherwise than Pillow. Single pixels may differ: Pillow 13 resizes tall photos
    along their height first, older versions (and the file) along their width."""
    import onnxruntime

    levels = float((ours - theirs).abs().mean()) * 255
    if levels > MAX_LEVELS:
        raise EtagError(
            f"onnxruntime {onnxruntime.__version__} resizes photos otherwise than Pillow, by {levels:.1f} of 255 "
            "levels in the mean: update it, or export with --input tensors."
        )


@torch.no_grad()
def _agreement(module: FromPixels, about: ModelInfo, run: Run, files: Sequence[str]) -> Agreement:
    """How model and file agree on photos in files; an error lists those that cannot be read."""
    same, worst, unreadable = 0, 0.0, []
    for file in files:
        try:
            pixels = decode(file, about.preprocess.resize, about.channels)
            photo = decode_photo(file)
        except UnreadableImage as reason:
            unreadable.append(f"{file} ({reason})")
            continue
        ours, theirs = module(torch.from_numpy(pixels)[None].float() / 255)[0], run(photo[None])[0]
        same += int(ours.argmax() == theirs.argmax())
        worst = max(worst, float((ours - theirs).abs().max()))
    if unreadable:
        raise unreadable_error(unreadable)
    return Agreement(len(files), same, worst)
