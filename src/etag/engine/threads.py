"""How many CPU threads to compute with."""

import os
import statistics
import time
from dataclasses import dataclass

import torch
from torch.nn import functional

ROUNDS = 5
STEPS = 4  # convolutions per measurement, which takes some milliseconds


@dataclass(frozen=True)
class ThreadChoice:
    """The faster number of threads, and how many times as fast all threads are as one."""

    threads: int
    ratio: float

    def __str__(self) -> str:
        if self.threads > 1:
            return f"computing with {self.threads} threads: {self.ratio:.1f} times as fast as one."
        return f"computing with one thread: all cores together are {self.ratio:.1f} times as fast."


def measure_threads() -> ThreadChoice | None:
    """Compare one thread with all cores, in turn. Where other programs compute, all cores can be many times slower than
    one, because each waits for the others. None if there is nothing to choose: one core, or $OMP_NUM_THREADS is set."""
    everything = torch.get_num_threads()
    if everything == 1 or "OMP_NUM_THREADS" in os.environ:
        return None
    images = torch.ones(32, 32, 32, 32).to(memory_format=torch.channels_last)
    kernel = torch.ones(32, 32, 3, 3).to(memory_format=torch.channels_last)
    seconds: dict[int, list[float]] = {1: [], everything: []}
    for _ in range(ROUNDS):
        for threads, times in seconds.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            for _ in range(STEPS):
                functional.conv2d(images, kernel, padding=1)
            times.append(time.perf_counter() - start)
    torch.set_num_threads(everything)
    ratio = statistics.median(seconds[1]) / statistics.median(seconds[everything])
    return ThreadChoice(everything if ratio > 1 else 1, ratio)
