"""Folders of images: learn the classes of one, then those of another, then predict the classes of a third.

python examples/folders.py [FIRST SECOND LABELED]     without folders, digits are written as folders and learned
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from etag import IncrementalClassifier
from etag.app.sources import source_folders


def main(first: Path, second: Path, labeled: Path) -> None:
    """Learn two folders, then predict the classes of a third."""
    short = {"method.generator.train.steps": 200, "method.refit.steps": 200}  # for an example: seconds, not minutes
    model = IncrementalClassifier(steps=100, size=16, width=8, settings=short, verbose=True).fit(first)
    model.partial_fit(second)  # no image of the first folder is needed any more
    print(f"{', '.join(model.classes_)}: {model.score(labeled):.1%} right")
    for name, likely in zip(model.predict(labeled)[:3], model.predict_proba(labeled).max(1), strict=False):
        print(f"{likely:6.1%}  {name}")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(*map(Path, sys.argv[1:]))
    else:
        with TemporaryDirectory() as home:
            folders = [Path(home, name) for name in ("first", "second", "labeled")]
            for folder, classes, part in zip(folders, ("0-2", "3-4", "0-4"), ("train", "train", "test"), strict=True):
                source_folders("digits", folder, classes, part=part)
            main(*folders)
