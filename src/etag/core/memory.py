"""Memory on a CPU: what is freed is used again, and activation maps stay small enough for that."""

import ctypes

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
LARGEST_REUSED = 256 << 20  # bytes; larger blocks, such as whole data sets, go back to the system
NEVER = 2**31 - 1
PIXELS = 1 << 20  # of the images that pass a network at a time on a CPU: their maps are below LARGEST_REUSED
FEWEST = 16


def reuse_freed_memory() -> bool:
    """Make glibc reuse freed memory; returns whether that can be set here. By default it returns large blocks to the
    system, which fills every new one with zeros: that takes half of the time of a forward pass."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, LARGEST_REUSED) and mallopt(TRIM_THRESHOLD, NEVER))


def images_at_a_time(most: int, side: int, device: torch.device) -> int:
    """How many images of `side` pixels per side should pass a network at a time when no gradients are held: `most`,
    or fewer if a CPU computes."""
    return most if device.type != "cpu" else min(most, max(FEWEST, PIXELS // side**2))
