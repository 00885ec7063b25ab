"""What checkpoints cost: eTag's solver phase with a checkpoint in it, against the same phase without.

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py [--width 64] [--rounds 5]

Each round trains the same steps twice, once with a checkpointer that saves once and once without any,
alternating; the difference is the price of a checkpoint, and its share of the default interval is printed. The files
are really written and flushed. Run it while nothing else runs.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from copy import deepcopy
from pathlib import Path

from lightning_fabric import Fabric

from engine_overhead import second_task
from etag.core.options import RuntimeOptions
from etag.engine import training
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from etag.learner.checkpoints import TaskCheckpointer
from etag.learner.stopping import Stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    method, (_, task) = second_task(options.batch * options.steps, options.size, options.batch, options.width)
    start = deepcopy(method.solver.state_dict())
    engine = Engine(Runtime(Fabric(accelerator="cpu", devices=1)))
    training.LOG_EVERY = options.steps // 2  # a chance to save in the middle
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    files = written = 0
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds + 1):  # the first one warms up
            for name, times in seconds.items():
                method.solver.load_state_dict(start)
                checkpointer = None
                if name == "with":
                    runtime_options = RuntimeOptions(checkpoint_seconds=1e9, checkpoint_steps=options.steps // 2)
                    checkpointer = TaskCheckpointer(
                        Path(folder) / "checkpoints", method, 1, runtime_options, True, Stop(), print
                    )
                began = time.perf_counter()
                engine.train(next(method.phases(task)), checkpointer)
                if turn:
                    times.append(time.perf_counter() - began)
                if checkpointer is not None:
                    sizes = [file.stat().st_size for file in Path(folder).rglob("*.*")]
                    files, written = len(sizes), sum(sizes)
                    shutil.rmtree(Path(folder) / "checkpoints")
    for name, times in seconds.items():
        print(f"{name:>8}: minimum {min(times):.3f} s, median {statistics.median(times):.3f} s")
    every = RuntimeOptions().checkpoint_seconds
    least = min(seconds["with"]) - min(seconds["without"])
    middle = statistics.median(seconds["with"]) - statistics.median(seconds["without"])
    print(
        f"a checkpoint of {written / 1e6:.1f} MB in {files} files: {least:.3f} s (minima), {middle:.3f} s (medians); "
        f"every {every:.0f} s that is {100 * least / every:.2f} % and {100 * middle / every:.2f} % of the time"
    )


if __name__ == "__main__":
    main()
