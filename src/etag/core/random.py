"""Addressed randomness: every draw comes from a stream named by its purpose, never from a global generator.

That is what makes a resumed run equal to an uninterrupted one, a term of weight 0 equal to no term at all, and
several processes equal to one: draws are made for the whole (global) batch and each process keeps its own rows.
All draws are made on the CPU, so that they do not depend on the device either.
"""

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """A node in a tree of random streams; children are named, so adding one never shifts another."""

    key: tuple[str | int, ...]

    @classmethod
    def root(cls, seed: int) -> "Stream":
        """The stream of a run."""
        return cls((int(seed),))

    def child(self, *parts: str | int) -> "Stream":
        """The stream with a longer name."""
        return Stream(self.key + parts)

    def generator(self, *parts: str | int) -> torch.Generator:
        """A fresh generator at the start of this stream (or of the named child)."""
        digest = blake2b(repr(self.key + parts).encode(), digest_size=8).digest()
        # manual_seed takes 64 bits; the sign bit is dropped for the sake of older back ends
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """Where this process computes, and which share of every batch is its own."""

    device: torch.device = CPU
    rank: int = 0
    world: int = 1

    def share(self, rows: int) -> slice:
        """The rows of a global batch that belong to this process (shares differ by one row at most)."""
        size, extra = divmod(rows, self.world)
        start = self.rank * size + min(self.rank, extra)
        return slice(start, start + size + (self.rank < extra))


@dataclass(frozen=True)
class Draws:
    """The random draws of one step; `rows` is always the number of rows of the *global* batch."""

    stream: Stream
    placement: Placement = Placement()

    def normal(self, purpose: str, rows: int, *shape: int) -> Tensor:
        """Standard normal values, this process's rows of them."""
        return self._own(torch.randn(rows, *shape, generator=self.stream.generator(purpose)))

    def uniform(self, purpose: str, rows: int, *shape: int) -> Tensor:
        """Values in [0, 1), this process's rows of them."""
        return self._own(torch.rand(rows, *shape, generator=self.stream.generator(purpose)))

    def integers(self, purpose: str, low: int, high: int, rows: int) -> Tensor:
        """Integers in [low, high), this process's rows of them."""
        return self._own(torch.randint(low, high, (rows,), generator=self.stream.generator(purpose)))

    def order(self, purpose: str, rows: int) -> Tensor:
        """The places that this process's rows have in a random order of all. They stay on the CPU, to be counted."""
        return torch.randperm(rows, generator=self.stream.generator(purpose))[self.placement.share(rows)]

    def _own(self, values: Tensor) -> Tensor:
        return values[self.placement.share(len(values))].to(self.placement.device, non_blocking=True)
