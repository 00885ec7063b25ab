"""A benchmark as it was at an earlier commit and as it is now: did anything become slower?

    OMP_NUM_THREADS=1 python benchmarks/before.py COMMIT NAME [--rounds 5] [OPTION ...]

Both versions of `benchmarks/NAME.py`, with the code of their commits, run in turn, one round at a time, each in
processes of its own. The table has what both print in images per second.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import counted, parser, print_table, row

ROOT = Path(__file__).resolve().parents[1]


def speeds(tree: Path, name: str, words: list[str]) -> dict[str, float]:
    """The images per second of every contender in one round of a benchmark."""
    command = [sys.executable, str(tree / "benchmarks" / f"{name}.py"), "--rounds", "1", *words]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name}.py {' '.join(words)} failed in {tree}: see above.")
    titles, _, cells = ([cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()[:3])
    found = zip((re.fullmatch(r"(.+), images/s: .+", title) for title in titles), cells, strict=True)
    return {match[1]: float(cell.split()[0]) for match, cell in found if match}


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("commit")
    arguments.add_argument("name")
    options, words = arguments.parse_known_args()
    with TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, options.commit], cwd=ROOT, check=True)
        try:
            rounds = [
                {when: speeds(folder, options.name, words) for when, folder in (("before", tree), ("now", ROOT))}
                for _ in range(options.rounds)
            ]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    title, rows = f"{options.name}, {counted(options.rounds, 'round')}", []
    for contender in sorted(rounds[0]["before"].keys() & rounds[0]["now"].keys()):
        times = {when: [1 / measured[when][contender] for measured in rounds] for when in ("before", "now")}
        cells = row("", times, images=1)  # seconds per image
        rows.append({title: contender} | {name: cell for name, cell in cells.items() if name != "setting"})
    print_table(rows)


if __name__ == "__main__":
    main()
