"""Data sources: a name, where its files are looked for, and how they are read."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from etag.core.errors import EtagError
from etag.core.files import user_cache
from etag.core.options import Options
from etag.core.registry import Registry
from etag.data.download import Download, Progress, fetch, unpack
from etag.data.images import FileImages, MemoryImages

Images = MemoryImages | FileImages


Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's legacy generator takes


class DataOptions(Options):
    """Which images, how many of them, in which order of classes."""

    name: str = "digits"
    path: str | None = Field(None, description="where the files are; else ETAG_DATA/<name>, else the user cache")
    classes: PositiveInt | None = Field(None, description="use only so many classes; see `subset`")
    subset: Seed | str | None = Field(
        None,
        description="which classes, where not all are used: a seed, 'natural' (the first), or a file as for `order`",
    )
    first: PositiveInt | None = Field(
        None, description="of the classes in their order only the first so many, such as those of a base task"
    )
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="judge on this share of each class's training images, which is not trained on, instead of the "
        "test images",
    )
    size: PositiveInt | None = Field(None, description="pixels a side of the network's input")
    resized_crop: bool = Field(False, description="train on windows of random size and shape, scaled to `size`")
    train_per_class: PositiveInt | None = Field(None, description="use only the first images of each class")
    test_per_class: PositiveInt | None = Field(None, description="the same for testing")
    order: Seed | str | None = Field(
        None,
        description="class order: a seed, 'natural', 'icarl' (the community's for CIFAR-100), or a file that lists "
        "classes by name or number; None takes the run's seed",
    )
    order_rule: Literal["position", "inverse"] = Field(
        "position",
        description="position: the k-th class of a seeded permutation gets label k; inverse: class c gets label "
        "permutation[c], as in the authors' release",
    )
    permutations: PositiveInt = Field(5, description="of permuted-mnist: how often the ten digits are learned")
    domains: bool = Field(
        False,
        description="of permuted-mnist: the digits are the same ten classes in every order of pixels, a domain a "
        "task; else they are ten new classes each time",
    )
    flip: bool | None = Field(None, description="mirror at random in training; None leaves it to the source")
    workers: NonNegativeInt = Field(1, description="processes that decode image files ahead of training")
    memory: NonNegativeInt = Field(
        2048, description="MiB; image files that need less are decoded once and kept there"
    )


@dataclass(frozen=True)
class Dataset:
    """A source's images, labeled by the source's own class numbers."""

    train: Images
    test: Images
    classes: tuple[str, ...]
    size: int  # pixels a side of the network's input, unless asked otherwise
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True  # whether a mirrored image still shows the same class
    crop: bool = True  # whether an image that is moved a little does
    ordered: bool = False  # whether classes arrive as they are numbered, unless asked otherwise
    shared: tuple[str, ...] | None = None  # the classes that every task shows, each group of so many being these
    margin: float = 1.0  # pixels a side that images are kept at, for one of the network's input
    used: int | None = None  # how many classes, unless asked otherwise; None is all


Load = Callable[[Path, DataOptions], Dataset]


@dataclass(frozen=True)
class Source:
    """A registered source.

    `files` are the ways its files may lie below its folder, each a tuple of names that must all exist; no way at all
    means embedded data.
    """

    name: str
    summary: str
    load: Load
    files: tuple[tuple[str, ...], ...] = ()
    downloads: tuple[Download, ...] = ()  # where its files can be had
    needs_path: bool = False  # has no place of its own
    folder: str | None = None  # where its files lie, if it is not named as it is itself

    def places(self, path: str | None) -> list[Path]:
        """Where its folder is looked for, in order."""
        if path is not None:
            return [Path(path).expanduser()]
        roots = [Path(os.environ["ETAG_DATA"]).expanduser()] if os.environ.get("ETAG_DATA") else []
        return [root / (self.folder or self.name) for root in [*roots, user_cache()]]

    def find(self, path: str | None = None) -> Path | None:
        """The first place that holds all the files; None if there is none."""
        for place in self.places(path):
            if not self.files or any(all((place / file).exists() for file in way) for way in self.files):
                return place
        return None

    @property
    def wanted(self) -> str:
        """Its files, in words."""
        return ", or ".join(" and ".join(way) for way in self.files)

    def open(self, options: DataOptions) -> Dataset:
        """Find, read and check the data."""
        if self.needs_path and options.path is None:
            raise EtagError(f"the data source '{self.name}' needs a folder: --data DIR, or --set data.path=DIR.")
        place = self.find(options.path)
        if place is None:
            looked = " or ".join(str(p) for p in self.places(options.path))
            raise EtagError(
                f"data '{self.name}' was not found: {self.wanted} should be in {looked}; name another folder with "
                "--set data.path=DIR or the environment variable ETAG_DATA."
            )
        return _checked(self.load(place, options), place)

    def get(self, path: str | None, progress: Progress) -> Path:
        """Fetch its files into the first place where they would be found."""
        if not self.downloads:
            embedded = not self.files and not self.needs_path
            reason = "comes with the package" if embedded else "cannot be fetched for you"
            raise EtagError(f"the data '{self.name}' {reason}.")
        place = self.places(path)[0]
        for download in self.downloads:
            file = fetch(download, place, progress)
            if file.suffix == ".zip":
                unpack(file, place)
        return place


def _checked(dataset: Dataset, place: Path) -> Dataset:
    """The data, if every image is of a known class."""
    for images in (dataset.train, dataset.test):
        strange = images.labels[(images.labels < 0) | (images.labels >= len(dataset.classes))]
        if len(strange):
            raise EtagError(f"{place}: the label {int(strange[0])} is none of the {len(dataset.classes)} classes.")
    return dataset


SOURCES: Registry[Source] = Registry("data source", "etag.data.sources")


def source(
    name: str,
    summary: str,
    *files: tuple[str, ...],
    downloads: Sequence[Download] = (),
    needs_path: bool = False,
    folder: str | None = None,
) -> Callable[[Load], Load]:
    """Decorator: register a function that reads a folder as a source."""

    def register(load: Load) -> Load:
        SOURCES.add(name)(Source(name, summary, load, files, tuple(downloads), needs_path, folder))
        return load

    return register
