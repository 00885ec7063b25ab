"""Looking at all files before anything is learned from them, with a progress bar on a terminal."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from etag.app.folders import LessonFiles
from etag.app.surprises import class_lines, surprises
from etag.data.inspection import Inspection, inspect_files
from etag.learner.versions import Name


def inspect_all(files: Sequence[str], workers: int | None = None, *, verbose: bool = True) -> Inspection:
    """Decode files completely, in one process per core unless `workers` is given."""
    console = Console(stderr=True)  # the output of a command stays its result alone
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not (verbose and console.is_terminal)) as bars:
        bar = bars.add_task("checking images", total=len(files))
        return inspect_files(files, workers, lambda done: bars.update(bar, completed=done))


def checked(
    files: LessonFiles,
    known: Sequence[Name],
    update: bool,
    skip_damaged: bool,
    by_others: bool,
    print_line: Callable[[str], None],
) -> LessonFiles:
    """The files that a lesson can learn; prints what they are, and what is remarkable. Where others read the files (the
    workers of a cluster), they find the damaged ones, unless these are skipped."""
    for line in (*files.split, *files.left_out):
        print_line(line)
    if skip_damaged or not by_others:
        files = without_damaged(files, skip_damaged, print_line)
    for line in (*class_lines(files.train), *([] if update else surprises(files.train, known))):
        print_line(line)
    return files


def without_damaged(files: LessonFiles, skip: bool, print_line: Callable[[str], None]) -> LessonFiles:
    """The files of a lesson, if all of them can be decoded; with `skip`, those that can."""
    found = inspect_all(files.all)
    if not skip:
        found.check(", or add --skip-damaged")
    if not found.unreadable:
        return files
    which = ", ".join(f"{file} ({reason})" for file, reason in found.unreadable.items())
    print_line(f"left out, because they cannot be read: {len(found.unreadable)} of {len(files.all)} files: {which}.")
    return files.without(found.unreadable)
