"""What `etag predict` adds to a bare forward pass of its network, and whether decoding keeps up.

    OMP_NUM_THREADS=1 python benchmarks/predicting.py [--images 10000] [--size 32] [--width 16] [--rounds 3]

A model with an untrained network predicts images in memory (uint8 to calibrated probabilities), against the backbone
alone on float tensors in the same precision; the same images as files, against decoding them without predicting. All
four take turns.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from etag.app.lesson_config import first_lesson
from etag.app.predicting import BATCH, predict_files, predict_pixels, unlabeled_images
from etag.core.random import Placement
from etag.engine.runtime import autocast
from etag.learner.config import create_method
from measure import alternate, conditions, parser, print_table, row


def main() -> None:
    options = parser(__doc__, images=10_000, size=32, width=16, rounds=3).parse_args()
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
        with autocast(inputs.device):
            for piece in torch.split(inputs, BATCH):
                for stage in method.solver.backbone.stages:
                    piece = stage(piece)

    with tempfile.TemporaryDirectory() as home:
        files = [str(Path(home) / f"{place}.png") for place in range(options.images)]
        for image, file in zip(pixels.permute(0, 2, 3, 1).numpy(), files, strict=True):
            Image.fromarray(np.ascontiguousarray(image)).save(file)
        batches = torch.split(torch.arange(len(files)), BATCH)
        contenders = {
            "backbone": bare,
            "predict": lambda: predict_pixels(classifier, about, pixels),
            "decoding files": lambda: list(unlabeled_images(files, about, 1).decode_batches(batches)),
            "predict from files": lambda: list(predict_files(classifier, about, files, workers=1)),
        }
        times = alternate(contenders, options.rounds)
    setting = f"{options.images} images of {options.size} px, width {options.width}, {conditions(options)}"
    print_table([row(setting, times, options.images)])


if __name__ == "__main__":
    main()
