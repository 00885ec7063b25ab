"""Data sources: a name, where its files are looked for, and how they are read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from etag.core.errors import EtagError
from etag.core.options import Options
from etag.core.registry import Registry
from etag.data.images import MemoryImages


class DataOptions(Options):
    """Which images, how many of them, in which order of classes."""

    name: str = "digits"
    path: str | None = Field(None, description="where the files are; else ETAG_DATA/<name>, else the user cache")
    size: PositiveInt | None = Field(None, description="resize to this many pixels a side")
    train_per_class: PositiveInt | None = Field(None, description="use only the first images of each class")
    test_per_class: PositiveInt | None = Field(None, description="the same for testing")
    order: Annotated[int, Field(ge=0, lt=2**32)] | str | None = Field(
        None,
        description="class order: a seed (1993 is the iCaRL order on CIFAR-100), 'natural', or a file that lists "
        "classes by name or number; None takes the run's seed",
    )
    order_rule: Literal["position", "inverse"] = Field(
        "position",
        description="position: the k-th class of a seeded permutation gets label k; inverse: class c gets label "
        "permutation[c], as in the authors' release",
    )
    flip: bool | None = Field(None, description="mirror at random in training; None leaves it to the source")


@dataclass(frozen=True)
class Dataset:
    """A source's images, labelled by the source's own class numbers."""

    train: MemoryImages
    test: MemoryImages
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True  # whether a mirrored image still shows the same class


@dataclass(frozen=True)
class Source:
    """A registered source. `files` are what must exist below its folder; none for embedded data."""

    name: str
    summary: str
    load: Callable[[Path], Dataset]
    files: tuple[str, ...] = ()

    def places(self, path: str | None) -> list[Path]:
        """Where its folder is looked for, in order."""
        if path is not None:
            return [Path(path).expanduser()]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etag"
        roots = [Path(os.environ["ETAG_DATA"]).expanduser()] if os.environ.get("ETAG_DATA") else []
        return [root / self.name for root in [*roots, cache]]

    def find(self, path: str | None = None) -> Path | None:
        """The first place that holds all the files; None if there is none."""
        for place in self.places(path):
            if all((place / file).is_file() for file in self.files):
                return place
        return None

    def open(self, path: str | None) -> Dataset:
        """Find and read the data."""
        place = self.find(path)
        if place is None:
            looked = " or ".join(str(p) for p in self.places(path))
            raise EtagError(
                f"data '{self.name}' was not found: {' and '.join(self.files)} should be in {looked}; "
                "name another folder with --set data.path=DIR or the environment variable ETAG_DATA."
            )
        return self.load(place)


SOURCES: Registry[Source] = Registry("data source", "etag.data.sources")


def source(
    name: str, summary: str, files: tuple[str, ...] = ()
) -> Callable[[Callable[[Path], Dataset]], Callable[[Path], Dataset]]:
    """Decorator: register a function that reads a folder as a source."""

    def register(load: Callable[[Path], Dataset]) -> Callable[[Path], Dataset]:
        SOURCES.add(name)(Source(name, summary, load, files))
        return load

    return register
