"""A task that is being learned: its checkpoints, and what is known of it if it is interrupted."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from etag.core.errors import EtagError
from etag.core.files import checksum, make_folder, read_file, remove, write_atomically
from etag.core.options import RuntimeOptions
from etag.core.text import count_text

MAX_BYTES = 1 << 20  # of a file here


@dataclass(frozen=True)
class UnfinishedLesson:
    """A lesson that was interrupted, as people know it."""

    folder: str  # of its images, as it was given; empty if they were not in a folder
    classes: Annotated[int, Field(gt=0)]
    update: bool
    began: str  # date and time
    minutes: float | None = None  # how long it was to take, if somebody said so
    steps: int | None = None  # what the minutes were converted to
    done: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of its work

    def __str__(self) -> str:
        kind = "an update of" if self.update else "learning"
        classes = count_text(self.classes, "class", "classes")
        where = f" from '{self.folder}'" if self.folder else ""
        return f"{kind} {classes}{where}, begun {self.began}, about {self.done:.0%} done"


_LESSON = TypeAdapter(UnfinishedLesson)


class UnfinishedTask:
    """The folder of a task that is not finished. It is deleted when the task is saved as a version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints, self.features = folder / "checkpoints", folder / "features"
        self._task, self._runtime, self._lesson = folder / "task", folder / "runtime.json", folder / "lesson.json"

    def exists(self) -> bool:
        """Whether a task was begun and not finished."""
        return self.folder.exists()

    def clear(self) -> None:
        """Delete it."""
        remove(self.folder)

    def prepare(self, version: int, description: Any) -> None:
        """Make the folder ready for a task that continues from a version; another task that is here is deleted."""
        if not self.is_of(version, description):
            self.clear()
            make_folder(self.folder)
            write_atomically(self._task, _fingerprint(version, description))

    def is_of(self, version: int, description: Any) -> bool:
        """Whether what is here is the beginning of this task, so that it will be resumed."""
        return self._read(self._task) == _fingerprint(version, description).encode()

    @property
    def version(self) -> int | None:
        """The version that the task continues from; None where that cannot be read."""
        try:
            return int((self._read(self._task) or b"").split()[0])
        except (ValueError, IndexError):
            return None

    @property
    def runtime(self) -> RuntimeOptions | None:
        """Where and in which precision the task began; None if there is none, or if that cannot be read."""
        try:
            return RuntimeOptions.model_validate_json(self._read(self._runtime) or b"")
        except ValueError:
            return None

    def record_runtime(self, options: RuntimeOptions) -> None:
        """Store where and in which precision the task computes."""
        write_atomically(self._runtime, options.model_dump_json())

    @property
    def lesson(self) -> UnfinishedLesson | None:
        """What is known of the lesson; None if the task is none, or if that cannot be read."""
        try:
            return _LESSON.validate_json(self._read(self._lesson) or b"")
        except ValidationError:
            return None

    def record_lesson(self, lesson: UnfinishedLesson) -> None:
        """Store what people should know if it is interrupted."""
        write_atomically(self._lesson, json.dumps(asdict(lesson)))

    def _read(self, path: Path) -> bytes | None:
        try:
            return read_file(path, MAX_BYTES)
        except (OSError, EtagError):
            return None


def _fingerprint(version: int, description: Any) -> str:
    return f"{version} {checksum(json.dumps(description, sort_keys=True).encode())}"
