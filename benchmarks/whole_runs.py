"""Whole runs in float32 and in bf16-mixed: accuracy and seconds; and eTag with the preset `fast` in bf16-mixed.

    ETAG_DATA=FOLDER python benchmarks/whole_runs.py [--recipe cifar100-cpu] [--methods etag gfr lwf lucir]
                                                     [--set data.order=null] [--seeds 5] [--first 0] [--jobs 2]
                                                     [--store FOLDER]

Each run is an `etag run` with one thread. Runs of a seed (a class order) follow each other, so that both precisions
have the same conditions. With a store, finished runs are not repeated, and interrupted ones are resumed.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from scipy.stats import t as student

from measure import counted, parser, print_table

PRECISIONS = {"float32": ["--set", "runtime.precision=32-true"], "bf16": ["--set", "runtime.precision=bf16-mixed"]}


def run(out: Path, words: list[str]) -> tuple[float, float]:
    """The accuracy A of a run in percent, and its seconds of training and testing."""
    command = [sys.executable, "-m", "etag.cli", "run", *words, "--out", str(out), "--no-report"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{out.name}: {done.stderr}")
    metrics = json.loads((out / "metrics.json").read_text())
    return 100 * metrics["A_weighted"], sum(metrics["train_seconds"]) + sum(metrics["test_seconds"])


def difference(pairs: list[float]) -> str:
    """The mean difference of pairs, and its 95 % interval (Student)."""
    center = statistics.mean(pairs)
    if len(pairs) < 2:
        return f"{center:+.2f}"
    half = student.ppf(0.975, len(pairs) - 1) * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return f"{center:+.2f} ({center - half:+.2f} to {center + half:+.2f})"


def compared(title: str, results: list[tuple[float, float]], reference: list[tuple[float, float]]) -> dict[str, str]:
    """A row of the table: runs, paired by seed with those in float32."""
    accuracies, seconds = zip(*results, strict=True)
    before, before_seconds = zip(*reference, strict=True)
    pairs = [after - earlier for after, earlier in zip(accuracies, before, strict=True)]
    times = [old / new for old, new in zip(before_seconds, seconds, strict=True)]
    return {
        "run": title,
        "A in float32": f"{statistics.mean(before):.2f}",
        "A": f"{statistics.mean(accuracies):.2f}",
        "difference (95 % interval)": difference(pairs),
        "differences by seed": ", ".join(f"{pair:+.2f}" for pair in pairs),
        "s in float32": f"{statistics.mean(before_seconds):.0f}",
        "s": f"{statistics.mean(seconds):.0f}",
        "time, float32 / this one: mean (by seed)": f"{sum(before_seconds) / sum(seconds):.2f} "
        f"({', '.join(f'{time:.2f}' for time in times)})",
    }


def main() -> None:
    arguments = parser(__doc__, seeds=5, first=0, jobs=2)
    arguments.add_argument("--recipe", default="cifar100-cpu")
    arguments.add_argument("--methods", nargs="+", default=["etag", "gfr", "lwf", "lucir"])
    arguments.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--store", type=Path, help="folder of the runs; by default a temporary one")
    options = arguments.parse_args()
    with TemporaryDirectory() as temporary:
        rows = all_runs(options, options.store or Path(temporary))
    print_table(rows)


def all_runs(options: argparse.Namespace, store: Path) -> list[dict[str, str]]:
    """Execute all runs; returns the rows of the table."""
    contenders = {(method, name): words for method in options.methods for name, words in PRECISIONS.items()}
    if "etag" in options.methods:
        contenders["etag", "fast, bf16"] = [*PRECISIONS["bf16"], "--preset", "fast"]
    set_words = [word for setting in options.set for word in ("--set", setting)]
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {}
        for seed, ((method, name), own) in product(
            range(options.first, options.first + options.seeds), contenders.items()
        ):
            words = [options.recipe, "--method", method, "--seed", str(seed), *set_words, *own]
            out = store / f"{method}-{name.replace(', ', '-')}-seed{seed}"
            waiting.setdefault((method, name), []).append(pool.submit(run, out, words))
        try:
            found = {contender: [result.result() for result in results] for contender, results in waiting.items()}
        finally:
            pool.shutdown(cancel_futures=True)  # after an error the runs that have not begun do not begin
    setting = " ".join([options.recipe, *options.set])
    return [
        compared(f"{method}, {name}: {setting}, {counted(options.seeds, 'seed')}", results, found[method, "float32"])
        for (method, name), results in found.items()
        if name != "float32"
    ]


if __name__ == "__main__":
    main()
