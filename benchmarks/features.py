"""What it gains to reuse freed memory, and to pass large images in small batches: features of a frozen backbone.

    python benchmarks/features.py [--backbone efficientnet_lite0] [--size 128] [--images 512] [--rounds 3]

The same images pass the same network, with random weights, in processes that alternate: large batches as the allocator
of the C library treats them by default, the same with freed memory reused, and both as `etag` does it. Run it while
nothing else runs.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch

from etag.core.memory import images_at_a_time, reuse_freed_memory
from etag.models.backbone import ModelOptions, new_backbone

LARGE = 512  # images per batch
CONTENDERS = ("large batches", "memory reused", "as etag")


@torch.inference_mode()
def measure(contender: str, options: argparse.Namespace) -> float:
    """Images per second in this process, after a first batch that does not count."""
    torch.set_num_threads(1)
    if contender != "large batches":
        reuse_freed_memory()
    backbone = new_backbone(ModelOptions(backbone=options.backbone, stem="imagenet", train="head"), 3, options.size)
    backbone = backbone.eval().to(memory_format=torch.channels_last)
    images = torch.randn(options.images, 3, options.size, options.size).to(memory_format=torch.channels_last)
    batch = images_at_a_time(LARGE, options.size, images.device) if contender == "as etag" else LARGE
    backbone(images[:batch])
    start = time.perf_counter()
    for piece in torch.split(images, batch):
        backbone(piece)
    return options.images / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)  # the process of one contender
    options = parser.parse_args()
    if options.only:
        print(measure(options.only, options))
        return
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(options.rounds):
        for name, found in rates.items():
            command = [sys.executable, *sys.argv, "--only", name]
            found.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    first = rates[CONTENDERS[0]]
    print(f"{options.backbone}, {options.size} px, {options.images} images, one thread, {options.rounds} rounds")
    print("| | images/s: best (median) | ratio: best (medians) |\n|---|---|---|")
    for name, found in rates.items():
        best, middle = max(found), statistics.median(found)
        ratio = f"{best / max(first):.2f} ({middle / statistics.median(first):.2f})"
        print(f"| {name} | {best:.1f} ({middle:.1f}) | {ratio} |")


if __name__ == "__main__":
    main()
