"""Other ways to predict with a frozen network than ours: torch.compile with frozen weights, ONNX Runtime, and int8.

    OMP_NUM_THREADS=1 python benchmarks/alternatives.py FOLDER [--size 128] [--images 240] [--rounds 3]

FOLDER has `train` and `test`, each with a folder of photos per class. `etag learn` learns the first; then all ways,
with the same number of threads, take turns at predicting the photos of the second from memory: ours and torch.compile
in the precision that `auto` means here, ONNX Runtime in float32 and int8. Run it while nothing else runs.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
import torch._inductor.config
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quant_pre_process, quantize_static
from torch import Tensor

from etag.app.exporting import export_onnx
from etag.app.predicting import predict_pixels, unlabeled_images
from etag.core.memory import images_at_a_time
from etag.engine.runtime import autocast
from etag.learner.model_directory import ModelDirectory
from measure import alternate, conditions, parser, print_table, row

CALIBRATION = 64  # training photos from which int8 gets its scales


class Calibration(CalibrationDataReader):
    def __init__(self, pixels: Tensor) -> None:
        self._rows = iter(pixels.float().div(255).split(8))

    def get_next(self) -> dict[str, object] | None:
        rows = next(self._rows, None)
        return None if rows is None else {"images": rows.numpy()}


def photos(folder: Path, model: Path, count: int) -> tuple[Tensor, Tensor]:
    """Pixels of the model's size, spread over all photos of a folder, and the places of their classes."""
    about = ModelDirectory(model).about()
    files = sorted(folder.glob("*/*"))
    files = [files[place] for place in torch.linspace(0, len(files) - 1, min(count, len(files))).long().tolist()]
    batches = unlabeled_images(list(map(str, files)), about, 1).decode_batches([torch.arange(len(files))])
    labels = torch.tensor([about.classes.index(file.parent.name) for file in files])
    return next(iter(batches))[1], labels


def session(file: Path, batch: int) -> Callable[[Tensor], Tensor]:
    """ONNX Runtime with as many threads as PyTorch, as a function of pixels."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    opened = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    return lambda pixels: torch.cat(
        [
            torch.from_numpy(opened.run(["probabilities"], {"images": piece.float().div(255).numpy()})[0])
            for piece in pixels.split(batch)
        ]
    )


def contenders(home: Path, options: argparse.Namespace) -> dict[str, Callable[[Tensor], Tensor]]:
    """By name: from pixels to probabilities."""
    model = home / "model"
    learn = [sys.executable, "-m", "etag.cli", "learn", str(model), str(options.folder / "train")]
    learn += ["--weights", "efficientnet_lite0", "--set", f"data.size={options.size}"]
    subprocess.run(learn, stdout=subprocess.DEVNULL, check=True)
    classifier, about = ModelDirectory(model).load_classifier()
    classifier = classifier.eval().to(memory_format=torch.channels_last)
    device = torch.device("cpu")
    batch = images_at_a_time(options.images, options.size, device)
    torch._inductor.config.freezing = True
    compiled = torch.compile(classifier.predict)

    @torch.no_grad()
    def freezing(pixels: Tensor) -> Tensor:
        with autocast(device):
            pieces = [compiled(about.preprocess.centered(piece))[0].exp() for piece in pixels.split(batch)]
        return torch.cat(pieces)

    export_onnx(model, home / "model.onnx")
    quant_pre_process(home / "model.onnx", home / "prepared.onnx", skip_symbolic_shape=True)
    reader = Calibration(photos(options.folder / "train", model, CALIBRATION)[0])
    quantize_static(home / "prepared.onnx", home / "int8.onnx", reader, QuantFormat.QDQ, per_channel=True)
    return {
        "etag": lambda pixels: predict_pixels(classifier, about, pixels)[0],
        "torch.compile": freezing,
        "ONNX Runtime": session(home / "model.onnx", batch),
        "ONNX Runtime, int8": session(home / "int8.onnx", batch),
    }


def main() -> None:
    arguments = parser(__doc__, size=128, images=240, rounds=3)
    arguments.add_argument("folder", type=Path)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as home:
        ways = contenders(Path(home), options)
        pixels, labels = photos(options.folder / "test", Path(home) / "model", options.images)
        times = alternate({name: lambda way=way: way(pixels) for name, way in ways.items()}, options.rounds)
        right = {name: (way(pixels).argmax(1) == labels).double().mean() for name, way in ways.items()}
    setting = f"{len(pixels)} photos of {options.folder.name}, {options.size} px, {conditions(options)}"
    accuracies = {f"{name}, accuracy": f"{100 * share:.1f} %" for name, share in right.items()}
    print_table([row(setting, times, len(pixels)) | accuracies])


if __name__ == "__main__":
    main()
