"""The first phase of a run, which several runs of a grid have in common: most methods train the base task alike.

A phase is known by everything that its result depends on: the loss, the weights it starts with, the options of its
training, the images and the random numbers of its batches, and what rounds. Runs for which all of that is equal would
compute the same weights, bit for bit, so one of them trains and the others load its result.
"""

import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from etag.core.errors import EtagError
from etag.core.files import checksum, locked, read_file, write_atomically
from etag.core.work import Phase
from etag.data.batches import ImageBatches
from etag.data.images import content_keys
from etag.engine.runtime import Runtime
from etag.learner.tensors import UNREADABLE, TensorFiles, to_bytes

OWN = ("etag.", "torch.")  # modules whose code the key has


@dataclass(frozen=True)
class SharedPhase:
    """The result of a phase in a folder."""

    phase: Phase
    entry: Path  # the seconds that its training took, and the name of its tensors
    print_line: Callable[[str], None]

    def load(self) -> float | None:
        """Load it into the phase's module, and return the seconds that its training took; None if nobody has trained it
        yet, or if the file is damaged."""
        try:
            found = json.loads(read_file(self.entry))
            seconds, state = float(found["seconds"]), TensorFiles(self.entry.parent).read(found["tensors"])
        except UNREADABLE:
            return None
        own = self.phase.module.state_dict()
        if {name: value.shape for name, value in state.items()} != {name: value.shape for name, value in own.items()}:
            return None  # an entry that names another file
        self.phase.module.load_state_dict(state)
        self.print_line(f"phase '{self.phase.name}' was trained by another run: its weights are loaded.")
        return seconds

    def save(self, seconds: float) -> None:
        """Store the state of the phase's module, if the disk has room for it."""
        try:
            name = TensorFiles(self.entry.parent).write(self.phase.module.state_dict())
            write_atomically(self.entry, json.dumps({"seconds": seconds, "tensors": name}))
        except (EtagError, OSError) as error:
            self.print_line(f"phase '{self.phase.name}' cannot be shared with other runs: {error}")


class SharedPhases:
    """Finds the results of phases in a folder. Only runs in a single process share them."""

    def __init__(
        self, folder: Path, runtime: Runtime, print_line: Callable[[str], None], check_stop: Callable[[], None]
    ) -> None:
        self._folder, self._runtime = folder, runtime
        self._print_line, self._check_stop = print_line, check_stop

    @contextmanager
    def result(self, phase: Phase) -> Iterator[SharedPhase | None]:
        """The result of a phase, wherever it is trained: inside the `with` block no other run trains it. None if it
        cannot be shared."""
        key = self._key(phase)
        if key is None:
            yield None
            return
        with locked(self._folder / f"{key}.lock", None, self._check_stop):
            yield SharedPhase(phase, self._folder / f"{key}.json", self._print_line)

    def _key(self, phase: Phase) -> str | None:
        batches, placement = phase.batches, self._runtime.placement
        carries_state = any(group.optimizer_state is not None for group in phase.groups)
        if phase.identity is None or phase.validation is not None or carries_state or placement.world > 1:
            return None
        if not isinstance(batches, ImageBatches) or batches.images.holds_features:
            return None
        if not all(type(part).__module__.startswith(OWN) for part in phase.module.modules()):
            return None  # what networks of plug-ins and of other packages compute is not in the key
        names = {id(parameter): name for name, parameter in phase.module.named_parameters()}
        runtime = self._runtime.options
        facts = [
            phase.identity,
            phase.training.model_dump(),
            [[names[id(parameter)] for parameter in group.parameters] for group in phase.groups],
            [(group.interval, group.training and group.training.model_dump()) for group in phase.groups],
            phase.batch_norm,
            batches.facts,
            batches.images.labels.tolist(),
            # what rounds: not only the processor, also how many threads share a sum
            (runtime.precision, runtime.compile, torch.get_num_threads(), torch.__version__, platform.node()),
            torch.cuda.get_device_name(placement.device) if placement.device.type == "cuda" else "",
            _code(),
        ]
        images = b"".join(content_keys(batches.images))
        return checksum(b"".join([repr(facts).encode(), images, to_bytes(phase.module.state_dict())]))


@cache
def _code() -> str:
    """A checksum of this package: what another version of it trained is not taken over."""
    folder = Path(__file__).parents[1]
    return checksum(b"".join(file.read_bytes() for file in sorted(folder.rglob("*.py"))))
