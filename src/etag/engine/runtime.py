"""Devices, precision and processes, through Lightning Fabric."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from pydantic import ValidationError
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.memory import reuse_freed_memory
from etag.core.options import RuntimeOptions
from etag.core.random import Placement
from etag.engine.threads import measure_threads


class Runtime:
    """The devices of one process. Everything that differs between one CPU and many GPUs is here."""

    def __init__(self, fabric: Fabric, options: RuntimeOptions | None = None) -> None:
        self.fabric, self.options = fabric, options or RuntimeOptions()
        # the scale of gradients in half precision: every phase starts with it, also one that a new process starts
        self.first_scale = fabric.strategy.precision.state_dict()

    @property
    def placement(self) -> Placement:
        """The device of this process, and its share of every batch."""
        return Placement(self.fabric.device, self.fabric.global_rank, self.fabric.world_size)

    @property
    def leader(self) -> bool:
        """Whether this process writes files and prints."""
        return bool(self.fabric.is_global_zero)

    def gather(self, results: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The results of all processes, joined entry by entry in the order of the processes."""
        if self.fabric.world_size == 1:
            return results
        everyone: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(everyone, [{k: v.cpu() for k, v in entry.items()} for entry in results])
        return [
            {name: torch.cat([part[name] for part in parts]).to(self.fabric.device) for name in parts[0]}
            for parts in zip(*everyone, strict=True)
        ]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.fabric.world_size == 1:
            return value
        total = self.fabric.all_reduce(value, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def max_over_processes(self, value: int) -> int:
        """The largest value of all processes."""
        if self.fabric.world_size == 1:
            return value
        largest = torch.tensor(value, device=self.fabric.device)
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return int(largest)


@contextmanager
def compiled(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the `with` block, these modules are compiled by torch.compile. Modules of the same structure share
    compiled code, so networks of later tasks are not compiled again as long as these parts do not grow."""
    if parts:
        # each stage in each mode is compiled separately
        torch._dynamo.config.recompile_limit = max(256, torch._dynamo.config.recompile_limit)
    for part in parts:
        part.compile()
    try:
        yield
    finally:
        for part in parts:
            part._compiled_call_impl = None


def resolve_runtime(
    options: RuntimeOptions, recorded: RuntimeOptions | None = None, print_line: Callable[[str], None] | None = None
) -> RuntimeOptions:
    """The options with a precision that is not `auto` and, on a CPU, a number of threads: those that were recorded when
    the work began, else what suits this machine. What was chosen is printed, except float32."""
    asked, options = options.precision, resolve_precision(options, recorded.precision if recorded else None)
    if print_line is not None and asked == "auto" and options.precision != "32-true":
        print_line(f"computing in {options.precision}; --set runtime.precision=32-true computes in float32.")
    if options.threads is not None or options.devices > 1 or uses_gpu(options.accelerator):
        return options
    if recorded is not None and recorded.threads is not None:
        return options.model_copy(update={"threads": recorded.threads})
    choice = measure_threads()
    if choice is not None and print_line is not None:
        print_line(str(choice))
    return options.model_copy(update={"threads": torch.get_num_threads() if choice is None else choice.threads})


def resolve_precision(options: RuntimeOptions, recorded: str | None = None) -> RuntimeOptions:
    """The options with a precision that is not `auto`: the one that was recorded when the work began, else
    $ETAG_PRECISION, else bfloat16 if the device computes in it, else float32."""
    if options.precision != "auto":
        return options
    chosen = (None if recorded == "auto" else recorded) or os.environ.get("ETAG_PRECISION") or "auto"
    if chosen == "auto":
        chosen = "bf16-mixed" if computes_in_bfloat16(options.accelerator) else "32-true"
    try:
        return RuntimeOptions.model_validate(options.model_dump() | {"precision": chosen})
    except ValidationError:
        raise EtagError(f"ETAG_PRECISION={chosen!r} is not a precision: set 32-true, bf16-mixed or 16-mixed.") from None


def autocast(device: torch.device) -> torch.autocast:
    """The precision that `auto` means on a device, for work outside of an engine: a context manager."""
    precision = resolve_precision(RuntimeOptions(accelerator=device.type, precision="auto")).precision
    dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "32-true")


def uses_gpu(accelerator: str) -> bool:
    """Whether the work is done on a GPU."""
    if accelerator == "auto":
        return torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerator != "cpu"


def computes_in_bfloat16(accelerator: str) -> bool:
    """Whether the device has units for bfloat16 (AVX-512 BF16, AMX, ARM's BF16, GPUs from Ampere on). Others emulate
    it, which is slower than float32."""
    if accelerator in ("auto", "cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_capability() >= (8, 0)
    if accelerator == "mps" or (accelerator == "auto" and torch.backends.mps.is_available()):
        return False
    features: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of PyTorch do not tell
    return any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def is_follower() -> bool:
    """Whether this process was started beside a leader (by Fabric or torchrun) and must not print or write."""
    return any(os.environ.get(name, "0") != "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))


def launch(options: RuntimeOptions, work: Callable[..., None], *args: Any, strategy: str = "auto") -> None:
    """Run `work(runtime, *args)` in as many processes as there are devices. Nothing is returned: Fabric's spawning
    launcher waits forever for a result that does not fit into a pipe. The leader writes results to files."""
    options = resolve_runtime(options)
    if options.accelerator == "cuda" and not torch.cuda.is_available():
        raise EtagError("runtime.accelerator=cuda is set, but PyTorch finds no CUDA device: choose auto or cpu.")
    devices, nodes = _processes(options)
    if devices * nodes > 1 and strategy == "auto":
        strategy = "ddp"
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # etag prints this itself
    fabric = Fabric(
        accelerator=options.accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision=None if options.precision == "auto" else options.precision,  # resolved above; the test is for mypy
    )
    fabric.launch(_Entry(work, options, args))


def _processes(options: RuntimeOptions) -> tuple[int, int]:
    """Processes per machine, and machines: as set, unless torchrun has started them already."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return options.devices, options.num_nodes
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return local, world // local


class _Entry:
    """What each process calls; a class, so that it can be sent to spawned processes."""

    def __init__(self, work: Callable[..., None], options: RuntimeOptions, args: tuple[Any, ...]) -> None:
        self._work, self._options, self._args = work, options, args

    def __call__(self, fabric: Fabric) -> None:
        reuse_freed_memory()
        before = torch.get_num_threads()
        torch.set_num_threads(self._options.threads or before)
        try:
            self._work(Runtime(fabric, self._options), *self._args)
            fabric.barrier()  # nobody exits before the leader has written
        finally:
            torch.set_num_threads(before)  # a program that calls this computes as before
