"""Data sources: a name, the folders that are searched for its files, and a function that loads them."""

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
from etag.data.images import Images

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the range of NumPy's legacy generator


class DataOptions(Options):
    """Which images are used, how many of them, and the order of their classes."""

    name: str = Field("digits", description="name of the data source; `etag data` lists them")
    path: str | None = Field(None, description="folder of its files; null: $ETAG_DATA/NAME, or NAME in the user cache")
    classes: PositiveInt | None = Field(None, description="number of classes to use, chosen by `subset`; null: all")
    subset: Seed | str | None = Field(
        None,
        description="which classes to use: a seed draws them, 'natural' takes the first, a file lists them; "
        "null: natural (imagenet-sub: seed 1993)",
    )
    first_classes: PositiveInt | None = Field(None, description="after ordering, use only the first N classes")
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training images used as the test set instead, for tuning; 0 uses the test images",
    )
    size: PositiveInt | None = Field(None, description="side of the network's input in pixels; null: the source's own")
    resized_crop: bool = Field(False, description="train on crops of random size and shape instead of shifted images")
    train_per_class: PositiveInt | None = Field(None, description="training images per class; null: all")
    draw: bool = Field(False, description="the run's seed draws the `train_per_class` images; else the first are taken")
    test_per_class: PositiveInt | None = Field(None, description="test images per class (the first); null: all")
    order: Seed | str | None = Field(
        None,
        description="class order: a seed, 'natural' (as the source numbers them), 'icarl' (iCaRL's for "
        "CIFAR-100), or a file that lists classes; null: the run's seed",
    )
    order_rule: Literal["position", "inverse"] = Field(
        "position",
        description="position: class permutation[k] gets label k; inverse: class c gets label permutation[c], "
        "as in the authors' release",
    )
    permutations: PositiveInt = Field(5, description="permuted-mnist only: number of pixel permutations")
    domains: bool = Field(
        False,
        description="permuted-mnist: every permutation is a task with the same ten classes, instead of ten new ones",
    )
    flip: bool | None = Field(None, description="mirror training images at random; null: not for handwritten digits")
    workers: NonNegativeInt = Field(1, description="processes that decode image files in advance; 0: none")
    memory: NonNegativeInt = Field(2048, description="MiB; if all images together need no more, files are decoded once")


@dataclass(frozen=True)
class Dataset:
    """The images of a source, labeled by the source's own class numbers."""

    train: Images
    test: Images
    classes: tuple[str, ...]
    size: int  # default side of the network's input in pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True  # whether a mirrored image is still of the same class
    augment: bool = True  # whether a slightly shifted image is still of the same class
    ordered: bool = False  # whether the default class order is that of the class numbers, not a random one
    domain_classes: tuple[str, ...] | None = None  # domain-incremental: class number n is n % len of these
    stored_ratio: float = 1.0  # side of the stored images / side of the network's input
    default_classes: int | None = None  # how many classes are used by default; None: all


Load = Callable[[Path, DataOptions], Dataset]


@dataclass(frozen=True)
class Source:
    """A registered data source. `files` lists the accepted layouts of its folder, each a tuple of names that must all
    exist; without any, the data needs no files."""

    name: str
    summary: str
    load: Load
    files: tuple[tuple[str, ...], ...] = ()
    downloads: tuple[Download, ...] = ()  # where its files can be downloaded
    needs_path: bool = False  # whether the user must give data.path
    folder: str | None = None  # name of its folder, if it differs from `name`

    def search_folders(self, path: str | None) -> list[Path]:
        """Return the folders that are searched, in order."""
        if path is not None:
            return [Path(os.path.expanduser(path))]
        roots = [Path(os.path.expanduser(os.environ["ETAG_DATA"]))] if os.environ.get("ETAG_DATA") else []
        return [root / (self.folder or self.name) for root in [*roots, user_cache()]]

    def find(self, path: str | None = None) -> Path | None:
        """Return the first folder that has all files of one layout, or None."""
        for folder in self.search_folders(path):
            if not self.files or any(all(os.path.exists(folder / file) for file in layout) for layout in self.files):
                return folder
        return None

    @property
    def required_files_text(self) -> str:
        """The accepted layouts as text, such as "a and b, or c"."""
        return ", or ".join(" and ".join(layout) for layout in self.files)

    def located(self, options: DataOptions) -> Path:
        """Return the folder of the data; an EtagError says what is missing."""
        if self.needs_path and options.path is None:
            raise EtagError(f"the data source '{self.name}' needs a folder: give --data DIR or --set data.path=DIR.")
        folder = self.find(options.path)
        if folder is None:
            searched = " or ".join(str(p) for p in self.search_folders(options.path))
            raise EtagError(
                f"data '{self.name}' was not found: {self.required_files_text} should be in {searched}; set "
                "another folder with --set data.path=DIR or the environment variable ETAG_DATA."
            )
        return folder

    def open(self, options: DataOptions) -> Dataset:
        """Find, load and check the data; an EtagError says what is missing."""
        folder = self.located(options)
        dataset = self.load(folder, options)
        for images in (dataset.train, dataset.test):
            invalid = images.labels[(images.labels < 0) | (images.labels >= len(dataset.classes))]
            if len(invalid):
                raise EtagError(f"{folder}: the label {int(invalid[0])} is none of the {len(dataset.classes)} classes.")
        return dataset

    def get(self, path: str | None, progress: Progress) -> Path:
        """Download its files into the first folder that is searched; return that folder."""
        if not self.downloads:
            built_in = not self.files and not self.needs_path
            reason = "comes with the package" if built_in else "cannot be downloaded automatically"
            raise EtagError(f"the data '{self.name}' {reason}.")
        folder = self.search_folders(path)[0]
        for download in self.downloads:
            file = fetch(download, folder, progress)
            if file.suffix == ".zip":
                unpack(file, folder)
        return folder


SOURCES: Registry[Source] = Registry("data source", "etag.data.sources")


def source(
    name: str,
    summary: str,
    *files: tuple[str, ...],
    downloads: Sequence[Download] = (),
    needs_path: bool = False,
    folder: str | None = None,
) -> Callable[[Load], Load]:
    """Return a decorator that registers a function which loads a folder as a data source."""

    def register(load: Load) -> Load:
        SOURCES.add(name)(Source(name, summary, load, files, tuple(downloads), needs_path, folder))
        return load

    return register
