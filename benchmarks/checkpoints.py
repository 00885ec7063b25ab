"""What checkpoints cost: eTag's solver phase with a checkpoint in it, against the same phase without.

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py [--width 64] [--rounds 5]

Each round trains the same steps twice, once with a checkpointer that saves once and once without any,
alternating; the difference is the price of a checkpoint, and its share of the default interval is printed. The files
are really written and flushed. Run it while nothing else runs.
"""

import shutil
import statistics
import tempfile
from copy import deepcopy
from pathlib import Path

from engine_overhead import second_task
from etag.core.options import RuntimeOptions
from etag.engine import training
from etag.learner.checkpoints import TaskCheckpointer
from etag.learner.learner import print_nothing
from etag.learner.stopping import Stop
from measure import alternate, conditions, engine, parser, print_table, row


def main() -> None:
    options = parser(__doc__, width=64, size=32, batch=16, steps=6, rounds=5).parse_args()
    method, (_, task) = second_task(options.batch * options.steps, options.size, options.batch, options.width)
    start, ours = deepcopy(method.solver.state_dict()), engine()
    training.LOG_EVERY = options.steps // 2  # a chance to save in the middle
    runtime = RuntimeOptions(checkpoint_seconds=1e9, checkpoint_steps=options.steps // 2)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "checkpoints"

        def reset() -> None:
            method.solver.load_state_dict(start)
            shutil.rmtree(folder, ignore_errors=True)

        def with_one() -> None:
            checkpointer = TaskCheckpointer(folder, method, 1, runtime, True, Stop(), print_nothing)
            ours.train(next(method.phases(task)), checkpointer)

        contenders = {"without": lambda: ours.train(next(method.phases(task))), "with": with_one}
        times = alternate(contenders, options.rounds, reset)
        sizes = [file.stat().st_size for file in folder.rglob("*.*")]
    spent = [reduce(times["with"]) - reduce(times["without"]) for reduce in (min, statistics.median)]
    every = RuntimeOptions().checkpoint_seconds
    setting = f"width {options.width}, {options.size} px, batch {options.batch}, {conditions(options, ours)}"
    cells = row(setting, {name: times[name] for name in ("with", "without")})
    cells |= {"one checkpoint, s: minima (medians)": "{:.2f} ({:.2f})".format(*spent)}
    cells |= {f"share of {every:.0f} s": "{:.2f} % ({:.2f} %)".format(*(100 * each / every for each in spent))}
    print_table([cells | {"written": f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} files"}])


if __name__ == "__main__":
    main()
