"""etag with a failpoint: child.py POINT COUNT ARGUMENTS... kills itself when it reaches POINT the COUNT-th time."""

import os
import signal
import sys

from etag.cli import main
from etag.core import files
from etag.engine import training
from etag.engine.engine import Engine
from etag.learner import learner
from etag.learner.model_directory import ModelDirectory

POINT, COUNT = sys.argv[1], int(sys.argv[2])
hits = 0


def reach(point):
    global hits
    if point == POINT:
        hits += 1
        if hits == COUNT:
            os.kill(os.getpid(), signal.SIGKILL)


def before(owner, name, point):
    """Reach a point before each call."""
    call = getattr(owner, name)

    def wrapped(*arguments, **more):
        reach(point)
        return call(*arguments, **more)

    setattr(owner, name, wrapped)


class Calls:
    """`os` as core/files.py sees it."""

    def __getattr__(self, name):
        points = {"fsync": "between write and fsync", "replace": "between fsync and rename"}
        if name in points:
            reach(points[name])
        return getattr(os, name)


files.os = Calls()
before(files, "_flush_folder", "after rename")
before(learner, "evaluate", "in evaluation")
before(ModelDirectory, "save", "before a version is saved")
before(ModelDirectory, "drop_versions", "before old versions are removed")
before(ModelDirectory, "clear_unfinished", "before checkpoints are removed")
before(training.Training, "_step", "step")
results = Engine._results


def watched(self, data_pass, steps):
    for found in results(self, data_pass, steps):
        reach("in the evaluation pass" if data_pass.name == "evaluation" else "in a data pass")
        yield found


Engine._results = watched
sys.argv = ["etag", *sys.argv[3:]]
main()
