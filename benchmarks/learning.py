"""How long a whole `etag learn` takes, with one thread and with all cores: a frozen EfficientNet-Lite0.

    ETAG_DATA=FOLDER python benchmarks/learning.py [--images 2000] [--size 128] [--rounds 3]

The images are of 20 classes of CIFAR-100, enlarged and written as PNG files. Commands alternate; each one starts
Python, creates a new model, and computes in the precision that `auto` means here. Run it while nothing else runs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PIL import Image

from etag.app.sources import source_folders
from etag.core.options import RuntimeOptions
from etag.engine.runtime import resolve_precision
from measure import alternate, counted, parser, print_table, row

CLASSES = 20


def command(model: Path, folder: Path, size: int, threads: int) -> Callable[[], object]:
    """`etag learn` in a process of its own, as a function to call."""
    words = [sys.executable, "-m", "etag.cli", "learn", str(model), str(folder), "--weights", "efficientnet_lite0"]
    for setting in (f"data.size={size}", "runtime.precision=auto", "runtime.accelerator=cpu"):
        words += ["--set", setting]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return lambda: subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    options = parser(__doc__, images=2000, size=128, rounds=3).parse_args()
    with tempfile.TemporaryDirectory() as home:
        model, folder = Path(home) / "model", Path(home) / "images"
        count, _ = source_folders("cifar100", folder, f"0-{CLASSES - 1}", options.images // CLASSES)
        for file in folder.rglob("*.png"):
            Image.open(file).resize((options.size, options.size)).save(file)
        contenders = {
            counted(threads, "thread"): command(model, folder, options.size, threads)
            for threads in (1, len(os.sched_getaffinity(0)))
        }
        reset = partial(shutil.rmtree, model, ignore_errors=True)
        times = alternate(contenders, options.rounds, reset, warm_up=0)  # each command is a new process
    precision = resolve_precision(RuntimeOptions(accelerator="cpu", precision="auto")).precision
    setting = f"{count} images, {CLASSES} classes, {options.size} px, {precision}, {counted(options.rounds, 'round')}"
    print_table([row(setting, times)])


if __name__ == "__main__":
    main()
