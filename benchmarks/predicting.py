"""What `etag predict` adds to a bare forward pass of its network, and whether decoding keeps up.

    python benchmarks/predicting.py [--images 10000] [--size 32] [--width 16] [--rounds 3] [--files 500]

A model with an untrained network predicts images in memory (uint8 to calibrated probabilities), against the backbone
alone on float tensors, alternating. Then it predicts files, against decoding them without predicting.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from etag.app.lessons import first_lesson
from etag.app.predicting import BATCH, predict_files, predict_pixels, unlabeled_images
from etag.core.random import Placement
from etag.learner.config import create_method


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    about, _ = first_lesson(options.images, {"data.size": options.size, "model.width": options.width})
    method = create_method(about.learner_config(), Placement(), about.preprocess, channels=about.channels)
    method.build_after([10])
    about = replace(about, classes=tuple(range(10)), task_sizes=(10,))
    classifier = method.classifier().eval()
    shape = (options.images, 3, options.size, options.size)
    pixels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).byte()
    inputs = about.preprocess.centered(pixels)

    @torch.inference_mode()
    def bare() -> None:
        for piece in torch.split(inputs, BATCH):
            for stage in method.solver.backbone.stages:
                piece = stage(piece)

    times: dict[str, list[float]] = {"bare": [], "predict": []}
    for _ in range(options.rounds):
        times["bare"].append(seconds(bare))
        times["predict"].append(seconds(lambda: predict_pixels(classifier, about, pixels)))
    fastest = {name: min(values) for name, values in times.items()}
    middle = {name: statistics.median(values) for name, values in times.items()}
    share = fastest["bare"] / fastest["predict"], middle["bare"] / middle["predict"]
    print(f"{options.images} images of {options.size} px, width {options.width}, one thread, {options.rounds} rounds")
    print(f"images a second: backbone {options.images / fastest['bare']:.0f}, ", end="")
    print(f"predict {options.images / fastest['predict']:.0f}")
    print(f"predict / backbone throughput: {share[0]:.3f} (medians {share[1]:.3f})")

    with tempfile.TemporaryDirectory() as home:
        files = [str(Path(home) / f"{place}.png") for place in range(options.files)]
        for place, file in enumerate(files):
            Image.fromarray(np.ascontiguousarray(pixels[place % len(pixels)].permute(1, 2, 0).numpy())).save(file)
        batches = torch.split(torch.arange(len(files)), BATCH)
        decoding = seconds(lambda: list(unlabeled_images(files, about, 1).decode_batches(batches)))
        predicting = seconds(lambda: list(predict_files(classifier, about, files, workers=1)))
        alone = fastest["predict"] * options.files / options.images
    print(f"{options.files} files: decoding alone {decoding:.2f} s, predictions alone {alone:.2f} s, ", end="")
    print(f"both {predicting:.2f} s")


if __name__ == "__main__":
    main()
