"""Named random streams: every random number comes from a stream named by its purpose, never from a global generator.

Therefore a resumed run gives the same result as an uninterrupted one, a loss term of weight 0 the same as none, and
several processes the same as one: numbers are drawn for the whole (global) batch, and each process uses its own rows.
All numbers are drawn on the CPU, so that they do not depend on the device.
"""

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """A node in a tree of random streams; children have names, so a new child never changes another's numbers."""

    key: tuple[str | int, ...]

    @classmethod
    def root(cls, seed: int) -> "Stream":
        """Return the root stream of a run with this seed."""
        return cls((int(seed),))

    def child(self, *parts: str | int) -> "Stream":
        """Return the child stream whose name is extended by `parts`."""
        return Stream(self.key + parts)

    def torch_generator(self, *parts: str | int) -> torch.Generator:
        """Return a new generator at the start of this stream, or of the child named by `parts`."""
        digest = blake2b(repr(self.key + parts).encode(), digest_size=8).digest()
        # manual_seed takes 64 bits; the highest bit stays 0, so that no backend reads a negative seed
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """The device of this process, its rank, and the number of processes (`world`)."""

    device: torch.device = CPU
    rank: int = 0
    world: int = 1

    def own_rows(self, rows: int) -> slice:
        """Return the rows of a global batch that belong to this process; the counts of two processes differ by at most
        one."""
        size, extra = divmod(rows, self.world)
        start = self.rank * size + min(self.rank, extra)
        return slice(start, start + size + (self.rank < extra))


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step. `rows` is always the number of rows of the *global* batch; the result has the
    rows of this process only. The same `purpose` always gives the same numbers."""

    stream: Stream
    placement: Placement = Placement()

    def normal(self, purpose: str, rows: int, *shape: int) -> Tensor:
        """Return standard normal values of shape (own rows, *shape)."""
        return self._own(torch.randn(rows, *shape, generator=self.stream.torch_generator(purpose)))

    def uniform(self, purpose: str, rows: int, *shape: int) -> Tensor:
        """Return uniform values in [0, 1) of shape (own rows, *shape)."""
        return self._own(torch.rand(rows, *shape, generator=self.stream.torch_generator(purpose)))

    def integers(self, purpose: str, low: int, high: int, rows: int) -> Tensor:
        """Return uniform integers in [low, high), one per own row."""
        return self._own(torch.randint(low, high, (rows,), generator=self.stream.torch_generator(purpose)))

    def places_in_shuffle(self, purpose: str, rows: int) -> Tensor:
        """Return, for each own row, its place after all rows of the global batch are shuffled; on the CPU."""
        return torch.randperm(rows, generator=self.stream.torch_generator(purpose))[self.placement.own_rows(rows)]

    def _own(self, values: Tensor) -> Tensor:
        return values[self.placement.own_rows(len(values))].to(self.placement.device, non_blocking=True)
