"""The model directory: the one format of saved models. `etag run` ends with one, `etag learn` creates one.

    current                       the number of the current version, and the checksum of its about.json
    versions/N/about.json         configuration, classes, history, structure, and the names of its tensor files
    tensors/CHECKSUM.safetensors  tensors; versions share files with equal content
    pages/lesson-N.html           what people may want to know of a lesson
    unfinished/                   a task that is being learned: its checkpoints, and what it is

A version has two parts: the classifier (what predicts) and the learner (the rest of the method, to learn more). It is
written completely before `current` names it, and never altered: a reader sees the model as it was before or as it is
after. What a killed process left undone is completed by the next command that changes the model (`recover`).
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from etag.core.errors import EtagError
from etag.core.files import is_partial, locked, make_folder, move, read_file, remove, remove_partial, write_atomically
from etag.core.random import CPU, Placement
from etag.core.registry import PLUGIN_PREFIX
from etag.learner.tensors import TensorFiles
from etag.learner.unfinished import UnfinishedTask
from etag.learner.versions import FORMAT, ModelInfo, SavedVersion, learning_tensors, seal
from etag.models.classifier import Classifier

if TYPE_CHECKING:
    from etag.methods.base import AnyMethod

VERSIONS = 3  # how many are stored, by default
LOCK = ".lock"
NUMBER = r"[1-9][0-9]{0,18}"  # of a version
T = TypeVar("T")


class ModelDirectory:
    """A model on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._current, self._versions = self.path / "current", self.path / "versions"
        self._tensors = TensorFiles(self.path / "tensors")
        self.unfinished = UnfinishedTask(self.path / "unfinished")
        self.pages = self.path / "pages"  # of lessons, for people

    def exists(self) -> bool:
        """Whether there is a version to predict with."""
        return self._current.exists()

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep other processes from changing the model meanwhile; the directory is created if it does not exist. Yields
        whether a killed command had to be completed first (see `recover`)."""
        existed = self._versions.is_dir()
        if not existed and self.content():
            raise EtagError(f"'{self.path}' exists and is not a model directory: choose another directory.")
        self.check_links()
        try:
            with locked(self.path / LOCK, f"another process is changing '{self.path}': wait until it is done."):
                make_folder(self._versions)
                yield self.recover()
        finally:
            if not existed and not self.exists() and not self.unfinished.exists() and self.path.is_dir():
                remove(self.path)  # nothing was learned

    def content(self) -> list[Path]:
        """What is in it, except the lock and files that a killed process did not finish; a file is its own content."""
        if not self.path.is_dir():
            return [self.path] if self.path.exists() else []
        return [path for path in self.path.iterdir() if path.name != LOCK and not is_partial(path)]

    def check_links(self) -> None:
        """Raise an error if a part of the directory is a link: writing there would change files outside."""
        parts = (
            self._current,
            self._versions,
            self.path / "tensors",
            self.unfinished.folder,
            self.pages,
            self.path / LOCK,
        )
        if links := [path.name for path in parts if path.is_symlink()]:
            raise EtagError(
                f"'{self.path}' cannot be changed: {', '.join(links)} is a link to somewhere else. Copy the model "
                "(cp -rL), and change the copy."
            )

    def recover(self) -> bool:
        """Complete what a killed process began; returns whether it removed something of older versions. The caller has
        the lock."""
        folders = (self.path, self.path / "tensors", self.unfinished.folder, self.pages, self._versions)
        left = [remove_partial(folder) for folder in folders]
        if not self.exists():
            return False
        if self.unfinished.exists() and self.unfinished.version != self.version:
            self.unfinished.clear()  # its task was finished, and its version saved
        if self.current().info.keep_versions != 1:
            return False
        # no older version should be left; a newer one is there after a rollback
        older = [number for number in self.versions if number < self.version and not self._is_protected(number)]
        for number in older:
            remove(self._versions / str(number))
        return self._remove_unused_tensors() or bool(older) or left[-1]

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the current version."""
        return self._read_current()[0]

    @property
    def version_or_zero(self) -> int:
        """The number of the current version; 0 if nothing was learned yet."""
        return self.version if self.exists() else 0

    def _read_current(self) -> tuple[int, str]:
        """The number of the current version, and the checksum of its about.json."""
        try:
            number, _, digest = read_file(self._current).decode().strip().partition(" ")
        except (OSError, ValueError) as error:
            raise self._no_model() from error
        if not re.fullmatch(NUMBER, number):
            raise self._no_model()
        return int(number), digest

    def _no_model(self) -> EtagError:
        if (lesson := self.unfinished.lesson) is not None:
            return EtagError(
                f"'{self.path}' has learned nothing yet: its first lesson was interrupted ({lesson}). Repeat the "
                "command to resume it."
            )
        return EtagError(
            f"'{self.path}' is not a model directory: `etag learn` creates one, and a finished `etag run` is one."
        )

    @property
    def versions(self) -> list[int]:
        """The numbers of all stored versions, oldest first."""
        folders = [path for path in self._versions.iterdir() if path.is_dir()] if self._versions.is_dir() else []
        return sorted(int(path.name) for path in folders if re.fullmatch(NUMBER, path.name))

    def current(self) -> SavedVersion:
        """The current version."""
        number, digest = self._read_current()
        version = SavedVersion.read(self.path, number)
        if version.content["checksum"] != digest:
            raise EtagError(f"the model '{self.path}' cannot be read: the file 'current' is damaged.")
        return version

    def read(self, use: Callable[[SavedVersion], T]) -> T:
        """What `use` reads from the current version. If another process replaces that version meanwhile, its files may
        be gone: then `use` is called again with the new one."""
        while True:
            number = self.version
            try:
                return use(self.current())
            except EtagError:
                if self.version == number:
                    raise

    def about(self) -> ModelInfo:
        """Everything about the current version except its tensors."""
        return self.read(lambda version: version.info)

    def load_classifier(self, device: torch.device = CPU) -> tuple[Classifier, ModelInfo]:
        """What predicts, in evaluation mode."""
        return self.read(lambda version: version.load_classifier(device))

    def load_method(self, placement: Placement | None = None) -> "tuple[AnyMethod, ModelInfo]":
        """The method as it was after its last lesson, ready to learn more."""
        return self.read(lambda version: version.load_method(placement))

    def sizes(self) -> dict[str, int]:
        """Bytes on disk of the current version: what predicts, and what only learning needs."""
        return self.read(SavedVersion.sizes)

    # -- changing: the caller holds the lock ---------------------------------------------------------------------------

    def save(self, method: "AnyMethod", about: ModelInfo, keep: int = VERSIONS) -> int:
        """Add a version and make it current; returns its number. Keeps `keep` versions: the new one, the one that it
        was learned from, and so on; deletes the others, and the checkpoints."""
        classifier = method.classifier()
        classifier.temperature = about.temperature
        parts = classifier.saved_parts
        learning = learning_tensors(method, classifier)
        content = about.to_json() | {
            "code": _foreign_code(method, *parts.values()),
            "structure": classifier.describe(),
            "tensors": {
                "classifier": {name: self._tensors.write(part.state_dict()) for name, part in parts.items()},
                "learner": {role: self._tensors.write(values) for role, values in learning.items()},
            },
        }
        return self._add(content, keep)

    def _add(self, content: dict[str, Any], keep: int) -> int:
        """Add a version with this about.json, and make it current."""
        number = max([0, *self.versions]) + 1
        parent = self.version_or_zero or None
        content = seal(content | {"format": FORMAT, "parent": parent, "keep_versions": keep})
        aside = self._versions / f".{number}.part"
        remove(aside)
        make_folder(aside)
        write_atomically(aside / "about.json", json.dumps(content, indent=1))
        move(aside, self._versions / str(number))
        self._make_current(number, content)
        self.unfinished.clear()
        self.drop_versions(keep)  # last: what is left of it tells `recover` that the command was killed
        return number

    def _make_current(self, number: int, content: dict[str, Any]) -> None:
        write_atomically(self._current, f"{number} {content['checksum']}")

    def drop_versions(self, keep: int = 1) -> None:
        """Keep `keep` versions: the current one, the one that it was learned from, and so on. Delete the others, and
        tensors that no version uses."""
        kept = self._ancestors()[:keep]
        for number in self.versions:
            if number not in kept and not self._is_protected(number):
                remove(self._versions / str(number))
        self._remove_unused_tensors()

    def _ancestors(self) -> list[int]:
        """The current version, the one it was learned from, and so on, as far as they are stored and readable."""
        number, stored, ancestors = self.version, self.versions, []
        while number in stored and number not in ancestors:
            ancestors.append(number)
            version = self._try_read(number)
            number = 0 if version is None else version.info.parent or 0
        return ancestors

    def _is_protected(self, number: int) -> bool:
        """Whether it is the result of a finished run, which stays as it is."""
        version = self._try_read(number) if self._is_finished_run else None
        return version is not None and version.info.pinned

    def _try_read(self, number: int) -> SavedVersion | None:
        """A version, or None if it cannot be read."""
        try:
            version = SavedVersion.read(self.path, number)
            _ = version.info, version.tensor_names
        except EtagError:
            return None
        return version

    def _remove_unused_tensors(self) -> bool:
        """Delete tensor files that no version uses; returns whether there were any."""
        versions = [self._try_read(number) for number in self.versions]
        readable = [version for version in versions if version is not None]
        if len(readable) < len(versions):
            return False  # a file may belong to the version that cannot be read
        return self._tensors.remove_all_but(set().union(*(version.tensor_names for version in readable)))

    @property
    def _is_finished_run(self) -> bool:
        return (self.path / "metrics.json").is_file()

    def check_no_run(self) -> None:
        """Raise an error if it is the directory of a finished run, whose result is never altered."""
        if self._is_finished_run:
            raise EtagError(
                f"'{self.path}' holds the result of a run, which is never altered: copy the directory without its "
                "metrics.json and config.yaml, and change the copy."
            )

    # -- whole commands ------------------------------------------------------------------------------------------------

    def rollback(self, number: int | None = None) -> int:
        """Return to a stored version, by default to the one that the current one was learned from; returns its
        number."""
        with self.locked():
            if number is None:
                number = self.about().parent
                if number is None or number not in self.versions:
                    raise EtagError(f"'{self.path}' has no version before {self.version} to return to.")
            elif number not in self.versions:
                stored = ", ".join(map(str, self.versions))
                raise EtagError(f"'{self.path}' has no version {number}: stored are {stored}.")
            try:
                version = SavedVersion.read(self.path, number)
                version.check()
            except EtagError as error:
                raise EtagError(f"version {number} is damaged, so version {self.version} stays: {error}") from error
            self._make_current(number, version.content)
            self.unfinished.clear()  # the checkpoints continue from the version that we leave
            return number

    def revise(self, change: Callable[[ModelInfo], ModelInfo]) -> ModelInfo:
        """Add a version with the same tensors, about which other things are said; returns them."""
        with self.locked():
            current = self.current()
            about = replace(change(current.info), pinned=False)
            self._add(current.content | about.to_json(), max(about.keep_versions, VERSIONS))
            return about

    def stored(self) -> list[SavedVersion]:
        """All stored versions that can be read, oldest first."""
        return [version for number in self.versions if (version := self._try_read(number)) is not None]

    def strip(self) -> None:
        """Delete everything that only learning needs: the model predicts, but learns no more."""
        with self.locked():
            current = self.current()
            if current.info.pinned:
                self.check_no_run()
            self._add(current.content | {"tensors": current.content["tensors"] | {"learner": {}}}, keep=1)

    def copy_to(self, path: Path) -> None:
        """Write the current version as a new model directory."""
        target = ModelDirectory(path)
        with target.locked():
            content = self.read(lambda version: self._copied(version, target))
            target._add(content, VERSIONS)

    @staticmethod
    def _copied(version: SavedVersion, target: "ModelDirectory") -> dict[str, Any]:
        version.check()
        for name in version.tensor_names:
            target._tensors.write(version.files.read(name))
        return version.content | {"pinned": False}


def _foreign_code(*parts: object) -> list[str]:
    """The plug-ins that define these objects: names of files or packages, for people."""
    modules = {type(part).__module__ for part in parts} - {"torch"}
    foreign = {name for name in modules if not name.startswith("etag.")}
    return sorted(
        f"{name.removeprefix(PLUGIN_PREFIX)}.py" if name.startswith(PLUGIN_PREFIX) else name for name in foreign
    )
