"""What bfloat16 gains: epochs of a solver phase in float32, against the same in bf16-mixed.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--method etag|fine|ewc|lwf|lucir] [--width 16] [--batch 32]

eTag has ResNet-18 and four views of every image, the others ResNet-32 (--width is for eTag only). Epochs of the base
task alternate, then those of a later task. Run it while nothing else runs.
"""

import argparse
from collections.abc import Callable

from engine_overhead import second_task
from etag.core.memory import reuse_freed_memory
from etag.core.work import Phase
from etag.engine.runtime import computes_in_bfloat16
from measure import alternate, conditions, engine, parser, print_table, row
from peers import TRAINING, prepared

PRECISIONS = {"float32": "32-true", "bf16-mixed": "bf16-mixed"}


def phase_of(begun: int, options: argparse.Namespace) -> Phase:
    """The solver phase of the base task (0) or of the one after it (1)."""
    if options.method != "etag":
        training = TRAINING.model_copy(update={"batch_size": options.batch})
        return prepared(options.method, begun, options.images, training)[2]
    method, tasks = second_task(options.images, options.size, options.batch, options.width, begun + 1)
    return next(method.phases(tasks[-1]))


def epoch(phase: Phase, precision: str) -> Callable[[], None]:
    ours = engine(precision=precision)
    return lambda: ours.train(phase)


def main() -> None:
    arguments = parser(__doc__, width=16, size=32, batch=32, images=128, rounds=5)
    arguments.add_argument("--method", default="etag")
    options = arguments.parse_args()
    reuse_freed_memory()  # as every run does
    if not computes_in_bfloat16("cpu"):
        print("This processor has no units for bfloat16: it emulates them.\n")
    network = (
        f"ResNet-18 of width {options.width}, {options.size} px" if options.method == "etag" else "ResNet-32, 32 px"
    )
    rows = []
    for begun, task in enumerate(("base task", "later task")):
        phases = {name: phase_of(begun, options) for name in PRECISIONS}
        times = alternate({name: epoch(phase, PRECISIONS[name]) for name, phase in phases.items()}, options.rounds)
        images = len(phases["float32"].batches) * options.batch
        rows.append(
            row(f"{options.method}, {task}, {network}, batch {options.batch}, {conditions(options)}", times, images)
        )
    print_table(rows)


if __name__ == "__main__":
    main()
