"""What makes the features of a frozen backbone fast: memory that is reused, small batches, and fewer passes over maps.

    OMP_NUM_THREADS=1 python benchmarks/features.py [--backbone efficientnet_lite0] [--size 128] [--images 512]

The same images pass the same network, with random weights, in processes that alternate: large batches as the allocator
of the C library treats them by default, the same with freed memory reused, that in small batches, and convolution,
BatchNorm and activation in one step as `etag` does it. Run it while nothing else runs.
"""

import argparse
from collections.abc import Callable

import torch

from etag.core.memory import images_at_a_time, reuse_freed_memory
from etag.models import convolution
from etag.models.backbone import ModelOptions, new_backbone
from measure import alternate_processes, conditions, parser, print_table, row

LARGE = 512  # images per batch
CONTENDERS = ("large batches", "memory reused", "small batches", "as etag")


def forward_passes(contender: str, options: argparse.Namespace) -> Callable[[], None]:
    """One pass over all images, as a function to call."""
    if contender != "large batches":
        reuse_freed_memory()
    if contender != "as etag":
        convolution._can_fuse = lambda _: False
    backbone = new_backbone(ModelOptions(backbone=options.backbone, stem="imagenet", train="head"), 3, options.size)
    backbone = backbone.eval().to(memory_format=torch.channels_last)
    images = torch.randn(options.images, 3, options.size, options.size).to(memory_format=torch.channels_last)
    batch = images_at_a_time(LARGE, options.size, images.device) if contender in CONTENDERS[2:] else LARGE

    @torch.inference_mode()
    def work() -> None:
        for piece in torch.split(images, batch):
            backbone(piece)

    return work


def main() -> None:
    arguments = parser(__doc__, size=128, images=512, rounds=3)
    arguments.add_argument("--backbone", default="efficientnet_lite0")
    options = arguments.parse_args()
    times = alternate_processes(forward_passes, CONTENDERS, options.rounds, options)
    print_table([row(f"{options.backbone}, {options.size} px, {conditions(options)}", times, options.images)])


if __name__ == "__main__":
    main()
