"""etag with a failpoint: child.py POINT COUNT ARGUMENTS... kills itself when it comes to POINT the COUNT-th time."""

import os
import signal
import sys

from etag.cli import main
from etag.core import files
from etag.engine import training
from etag.engine.engine import Engine
from etag.experiments import run

POINT, COUNT = sys.argv[1], int(sys.argv[2])
hits = 0


def come_to(point):
    global hits
    if point == POINT:
        hits += 1
        if hits == COUNT:
            os.kill(os.getpid(), signal.SIGKILL)


def before(owner, name, point):
    """Come to a point before each call."""
    call = getattr(owner, name)

    def wrapped(*arguments, **more):
        come_to(point)
        return call(*arguments, **more)

    setattr(owner, name, wrapped)


class Calls:
    """`os` as core/files.py sees it."""

    def __getattr__(self, name):
        points = {"fsync": "between write and fsync", "replace": "between fsync and rename"}
        if name in points:
            come_to(points[name])
        return getattr(os, name)


files.os = Calls()
before(files, "_flush_folder", "after rename")
before(run, "judge", "in evaluation")
before(run.RunDirectory, "keep", "at a task boundary, before")
before(run.TaskCheckpointer, "clear", "at a task boundary, after")
before(training.Training, "_step", "step")
visits = Engine._visits


def watched(self, data_pass, steps):
    for found in visits(self, data_pass, steps):
        come_to("in evaluation's sweep" if data_pass.name == "evaluation" else "in a sweep")
        yield found


Engine._visits = watched
sys.argv = ["etag", *sys.argv[3:]]
main()
