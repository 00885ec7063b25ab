"""Run the speed benchmarks one after the other and write their tables into docs/performance.md.

    ETAG_DATA=FOLDER python benchmarks/all.py [NAME ...] [--quick] [--force]

Without names all are run, which takes two hours: leave the machine alone. Each table replaces what is between the
markers `<!-- NAME -->` and `<!-- end -->` of the page, together with the command, the machine, the date, the commit and
the version of PyTorch. FOLDER holds the data sets of the benchmarks that need images. `--quick` runs
tiny settings and prints the tables instead: their figures mean nothing.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from etag.engine.runtime import computes_in_bfloat16

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
END = "<!-- end -->"
BUSY = 0.1  # share of the processor's time that others may use
TINY = "--width 4 --size 8 --batch 8 --rounds 1"
# by name: the options of every run, whose rows make one table, and those of --quick. What follows a hyphen is not part
# of the script's name
BENCHMARKS = {
    "engine_overhead": (["", "--precision 32-true", "--size 8 --images 512 --rounds 9"], f"{TINY} --images 16"),
    "checkpoints": (["--rounds 3", "--width 16 --size 16 --batch 24"], TINY),
    "features": ([""], "--images 8 --size 32 --rounds 1"),
    "alternatives": (["{data}/flowers12"], "{data}/flowers12 --size 32 --images 12 --rounds 1"),
    "learning": ([""], "--images 40 --size 32 --rounds 1"),
    "exact_mode": (["", "--width 16", "--width 16 --task 0"], f"{TINY} --images 16"),
    "precision": (
        ["", "--width 64 --batch 16 --images 48", "--method lwf --batch 128 --images 512"],
        f"{TINY} --images 16",
    ),
    "peers": ([""], "--methods fine --images 32 --batch 16 --rounds 1"),
    "whole_runs": (["--set data.order=null"], "--recipe digits --methods fine --set train.epochs=1 --seeds 2"),
    "whole_runs-100": (  # a tenth of everything that is trained
        [
            "--recipe cifar100-100 --methods etag --seeds 2 --set train.length_factor=0.1 "
            "method.generator.train.epochs=4 method.generator.feature_passes=1"
        ],
        "--recipe digits --methods fine --set train.epochs=1 --seeds 1",
    ),
    "profile_etag": (["--width 16 --batch 32"], TINY),
    "flat_cost": (["--rounds 5 --out docs/images/flat-cost.png"], f"{TINY} --steps 1"),
    "scale": ([""], "--methods ridge --classes 8 --images 4 --lesson 4 --size 32"),
    "likelihood": (["--rounds 3"], "--images 2 --classes 3 --rounds 1"),
    "predicting": ([""], "--images 20 --size 8 --width 4 --rounds 1"),
    "before": (  # the commit before bfloat16 became the default where it is fast
        ["961d242 predicting"],
        "HEAD predicting --rounds 1 --images 20 --size 8 --width 4",
    ),
    "decoding": (
        [
            "{data}/imagenet-mini --batch 16",
            "{data}/imagenet-mini --method fine",
            "{data}/imagenet-mini --method fine --width 4 --size 64",
        ],
        "{data}/imagenet-mini --method fine --width 4 --size 16 --rounds 1",
    ),
}
NEEDED = {
    "alternatives": "flowers12",
    "learning": "cifar100",
    "whole_runs": "cifar100",
    "whole_runs-100": "cifar100",
    "decoding": "imagenet-mini",
}  # data


def replaced(page: str, name: str, block: str) -> str:
    """The page with another text between the markers of a benchmark."""
    before, marker, rest = page.partition(f"<!-- {name} -->\n")
    if not marker:
        raise SystemExit(f"docs/performance.md has no marker <!-- {name} -->: add it, and {END} below it.")
    old, end, after = rest.partition(END)
    if not end or "<!--" in old:
        raise SystemExit(f"docs/performance.md has no {END} after <!-- {name} -->: add it below the table.")
    return f"{before}{marker}\n{block}\n{end}{after}"


def merged(tables: list[str]) -> str:
    """The first table, with what it is preceded by, and the rows of the others below it."""
    return tables[0] + "".join(table.split(" --- |\n")[-1] for table in tables[1:])


def measured(name: str, quick: bool) -> str:
    """The table of a benchmark."""
    settings, tiny = BENCHMARKS[name]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    tables = []
    for setting in [tiny] if quick else settings:
        words = [word.format(data=os.environ.get("ETAG_DATA")) for word in setting.split()]
        print(f"{name} {setting}", file=sys.stderr, flush=True)
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name.partition('-')[0]}.py"), *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"benchmarks/{name}.py {setting} failed: see above.")
        tables.append(done.stdout)
    return merged(tables)


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """The commit that is measured; changes that are not committed are an error."""
    if changed := [line.split()[-1] for line in git("status", "--porcelain", "src", "benchmarks").splitlines()]:
        raise SystemExit(f"the page names the commit that was measured: commit {', '.join(changed)} first.")
    return git("rev-parse", "--short", "HEAD")


def machine() -> str:
    """The processor, its cores, and whether it computes in bfloat16."""
    model = platform.processor() or platform.machine()
    if (file := Path("/proc/cpuinfo")).exists():
        named = [line.partition(":")[2].strip() for line in file.read_text().splitlines() if "model name" in line]
        model = named[0] if named else model
    units = "with" if computes_in_bfloat16("cpu") else "without"
    return f"{os.cpu_count()} cores of {model}, {units} bf16 units"


def busy_share(seconds: float = 1.0) -> float:
    """The share of the processor's time that is used while this process waits; elsewhere than on Linux, the load."""
    file = Path("/proc/stat")
    if not file.exists():
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    reads = []
    for wait in (seconds, 0.0):
        reads.append([int(word) for word in file.read_text().splitlines()[0].split()[1:]])
        time.sleep(wait)
    used = [after - before for before, after in zip(*reads, strict=True)]
    return 1 - (used[3] + used[4]) / max(1, sum(used))  # idle, or waiting for a disk


def check_data(names: list[str]) -> None:
    """Missing images are an error before anything is started."""
    for name, data in NEEDED.items():
        if name in names and not (Path(os.environ.get("ETAG_DATA", "")) / data).is_dir():
            raise SystemExit(f"{name} needs $ETAG_DATA/{data}: set ETAG_DATA, or name the benchmarks to run.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="print tables of tiny settings, write nothing")
    parser.add_argument("--force", action="store_true", help="measure even while other processes are running")
    options = parser.parse_args()
    names = options.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark '{unknown[0]}': choose from {', '.join(BENCHMARKS)}.")
    check_data(names)
    for name in names:
        replaced(PAGE.read_text(), name, "")  # a missing marker is an error now, not after an hour
    load = 0.0 if options.quick else busy_share()
    source = git("rev-parse", "--short", "HEAD") if options.quick else commit()
    busy = ""
    if load > BUSY:
        busy = f", while other processes used {load:.0%} of the processor"
        message = f"other processes use {load:.0%} of the processor"
        if not options.force:
            raise SystemExit(f"{message}; wait until they are finished, or measure with --force.")
        print(f"{message}; the page will say so.", file=sys.stderr)
    for name in names:
        table = measured(name, options.quick)
        command = f"python benchmarks/all.py {name}{' --quick' * options.quick}"
        when = f"{datetime.now(UTC):%Y-%m-%d}, commit {source}, PyTorch {torch.__version__}"
        block = f"{table}\n`{command}`: {machine()}, {when}{busy}.\n"
        if options.quick:
            print(f"<!-- {name} -->\n\n{block}\n{END}", flush=True)
            continue
        if commit() != source:
            raise SystemExit(f"another commit was checked out while {name} was measured: measure it again.")
        PAGE.write_text(replaced(PAGE.read_text(), name, block))


if __name__ == "__main__":
    main()
