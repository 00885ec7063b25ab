import platform
import subprocess
import sys

import pytest
import torch

from etag.core.memory import FEWEST, images_at_a_time

PAGE_FAULTS = """
import resource, torch
from etag.core.memory import reuse_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(16 << 20)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
assert reuse_freed_memory()
faults()  # the heap grows
print(usual, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns freed blocks that can be reused")
def test_freed_memory_is_not_asked_for_again():
    printed = subprocess.run([sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True).stdout
    usual, reused = map(int, printed.split())
    assert usual > 100
    assert reused < usual / 10


@pytest.mark.parametrize(
    ("most", "side", "device", "expected"),
    [
        (512, 32, "cpu", 512),
        (512, 128, "cpu", 64),
        (512, 1024, "cpu", FEWEST),
        (8, 224, "cpu", 8),
        (512, 224, "cuda", 512),
    ],
)
def test_large_images_pass_in_small_batches_on_a_cpu(most, side, device, expected):
    assert images_at_a_time(most, side, torch.device(device)) == expected
