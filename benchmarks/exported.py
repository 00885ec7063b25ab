"""Does an exported ONNX file, which resizes photos itself, predict what its model predicts?

    OMP_NUM_THREADS=1 python benchmarks/exported.py FOLDER MODEL...

FOLDER has one sub-folder of test photos per class. They are compared as they are, and cut to 4:3 or 3:4, enlarged, and
with noise, as PNG and JPEG. The file gets photos as Pillow decodes them: at full scale, or with `draft`, which lets the
decoder make a large JPEG smaller. Everything is computed in float32.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from PIL import Image, ImageOps

from etag.app.exporting import load_module
from etag.app.onnx_files import export_onnx
from etag.data.decode import decode
from etag.data.folders import list_classes
from measure import print_table

KINDS = {"as they are": None, "large PNG": ("png", (1.5, 6.0)), "large JPEG": ("jpg", (3.0, 9.0))}


def enlarged(photo: Path, number: int, ending: str, factors: tuple[float, float], folder: Path) -> Path:
    """The photo as a larger file: wide ones and tall ones take turns."""
    random = np.random.default_rng([number, len(ending)])
    image = Image.open(photo).convert("RGB")
    image = ImageOps.fit(
        image, (image.width, image.width * 3 // 4) if number % 2 else (image.height * 3 // 4, image.height)
    )
    factor = random.uniform(*factors)
    image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)
    pixels = np.asarray(image).astype(np.int16) + random.integers(-12, 13, (image.height, image.width, 3))
    file = folder / f"{number}.{ending}"
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, quality=92, compress_level=1)
    return file


@torch.no_grad()
def rows(model: Path, photos: list[tuple[str, Path]], folder: Path) -> Iterator[dict[str, object]]:
    """The rows of one model."""
    export_onnx(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    module, about = load_module(model)
    resize, labels = about.preprocess.resize, [about.classes.index(name) for name, _ in photos]
    for kind, larger in KINDS.items():
        found: dict[str, list[np.ndarray]] = {"model": [], "": [], ", `draft`": []}
        for number, (_, photo) in enumerate(photos):
            file = photo if larger is None else enlarged(photo, number, *larger, folder)
            pixels = torch.from_numpy(decode(file, resize, about.channels))[None]
            found["model"].append(module(pixels / 255)[0].numpy())
            for way in ("", ", `draft`"):
                with Image.open(file) as image:
                    if way:
                        image.draft("RGB", (resize.shorter_side, resize.shorter_side))
                    whole = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
                found[way].append(session.run(["probabilities"], {"photos": whole[None]})[0])
        ours = np.concatenate(found.pop("model"))
        for way, theirs in ((way, np.concatenate(values)) for way, values in found.items()):
            if way and kind != "large JPEG":
                continue
            best, other = ours.argmax(1), theirs.argmax(1)
            far = np.abs(ours - theirs).max(1)
            yield {
                "photos": kind + way,
                "side": resize.side,
                "same class as the model": f"{(best == other).sum()} of {len(photos)}",
                "right: file, model": f"{(other == labels).sum()}, {(best == labels).sum()}",
                "largest difference of a probability; of 95 %": f"{far.max():.2g}; {np.quantile(far, 0.95):.2g}",
            }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("models", type=Path, nargs="+")
    options = arguments.parse_args()
    photos = [(name, Path(file)) for name, files in list_classes(options.folder).items() for file in files]
    with tempfile.TemporaryDirectory() as folder:
        print_table([row for model in options.models for row in rows(model, photos, Path(folder))])


if __name__ == "__main__":
    main()
