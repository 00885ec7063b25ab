"""What the preset `fast` costs and saves: whole runs of eTag with and without it, and of GFR and Lucir.

    python benchmarks/fast_mode.py --store FOLDER [--seeds 5] [--jobs 2] [--out docs/images/fast-mode.png]

Every run is an `etag run` of one thread in a folder of the store, so what was cut goes on and what is done is not
done again. Runs of a seed (a class order) are made side by side. The last contender is eTag without the preset, cut
to the seconds that the preset takes. Printed are accuracies, seconds, and differences paired by seed with their 95 %
interval.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
from scipy.stats import t as student

from etag.report.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION

RECIPE = "cifar100-cpu"
CONTENDERS = {
    "exact": ["--method", "etag"],
    "fast": ["--method", "etag", "--preset", "fast"],
    "gfr": ["--method", "gfr"],
    "lucir": ["--method", "lucir", "--set", "method.exemplars.per_class=20"],
}
LOOKS = {
    "exact": ("eTag", BLUE, "o"),
    "fast": ("eTag, fast", VERMILION, "D"),
    "cut": ("eTag, cut to the same seconds", PURPLE, "v"),
    "gfr": ("GFR", GREEN, "s"),
    "lucir": ("Lucir (20 exemplars a class)", ORANGE, "^"),
}


def run(store: Path, name: str, seed: int, words: list[str]) -> dict[str, float]:
    """A run's accuracy and its seconds of training and testing."""
    out = store / f"{name}-seed{seed}"
    command = [sys.executable, "-m", "etag.cli", "run", RECIPE, "--set", "data.order=null", *words]
    command += ["--seed", str(seed), "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr}")
    metrics = json.loads((out / "metrics.json").read_text())
    return {"A": 100 * metrics["A_weighted"], "seconds": sum(metrics["train_seconds"]) + sum(metrics["test_seconds"])}


def all_runs(store: Path, seeds: int, jobs: int) -> dict[str, list[dict[str, float]]]:
    """By contender, a result a seed."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {
            (name, seed): pool.submit(run, store, name, seed, words)
            for seed in range(seeds)
            for name, words in CONTENDERS.items()
        }
        found = {name: [waiting[name, seed].result() for seed in range(seeds)] for name in CONTENDERS}
        share = mean(found["fast"], "seconds") / mean(found["exact"], "seconds")
        words = ["--method", "etag", "--set", f"train.length_factor={share:.2f}"]
        cut = [pool.submit(run, store, f"cut{share:.2f}", seed, words) for seed in range(seeds)]
        return found | {"cut": [result.result() for result in cut]}


def mean(results: list[dict[str, float]], key: str) -> float:
    return statistics.mean(result[key] for result in results)


def difference(left: list[dict[str, float]], right: list[dict[str, float]]) -> str:
    """Of accuracies paired by seed: mean and 95 % interval (Student)."""
    pairs = [one["A"] - other["A"] for one, other in zip(left, right, strict=True)]
    center, count = statistics.mean(pairs), len(pairs)
    each = ", ".join(f"{pair:+.2f}" for pair in pairs)
    if count < 2:
        return f"{center:+.2f}"
    half = student.ppf(0.975, count - 1) * statistics.stdev(pairs) / math.sqrt(count)
    return f"{center:+.2f}, 95 % interval [{center - half:+.2f}, {center + half:+.2f}] ({each})"


def draw(found: dict[str, list[dict[str, float]]], out: Path) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    for name, (label, color, mark) in LOOKS.items():
        seconds, accuracies = ([result[key] for result in found[name]] for key in ("seconds", "A"))
        axes.scatter(seconds, accuracies, color=color, marker=mark, s=14, alpha=0.45, linewidths=0)
        axes.errorbar(
            statistics.mean(seconds),
            statistics.mean(accuracies),
            color=color,
            marker=mark,
            markersize=9,
            linestyle="none",
            label=label,
        )
    axes.set(xlabel="seconds of a whole run, one thread", ylabel="A_weighted, %")
    axes.set_title(f"{RECIPE}: large marks are means over {len(found['fast'])} class orders", fontsize=10)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/images/fast-mode.png"))
    options = parser.parse_args()
    found = all_runs(options.store, options.seeds, options.jobs)
    print(f"{RECIPE}, {options.seeds} class orders, {options.jobs} runs beside each other, one thread each\n")
    print("| run | A_weighted: mean (std) | by seed | seconds: mean | eTag's seconds / its own |")
    print("|---|---|---|---|---|")
    exact = mean(found["exact"], "seconds")
    for name, (label, _, _) in LOOKS.items():
        results = found[name]
        accuracies, seconds = [result["A"] for result in results], mean(results, "seconds")
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        by_seed = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        middle = f"{mean(results, 'A'):.2f} ({spread:.2f})"
        print(f"| {label} | {middle} | {by_seed} | {seconds:.0f} | {exact / seconds:.2f} |")
    for other in ("exact", "cut", "gfr"):
        print(f"\nfast - {other}: {difference(found['fast'], found[other])}")
    draw(found, options.out)
    print(f"\npicture: {options.out}")


if __name__ == "__main__":
    main()
