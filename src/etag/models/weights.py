"""Weights a backbone begins with, from a file of our own or of another library."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from etag.core.errors import EtagError
from etag.models.backbone import Backbone


@dataclass(frozen=True)
class WeightsReport:
    """How the tensors of a file fit a backbone: `matched` and `missing` are our names, the others the file's."""

    path: Path
    matched: tuple[str, ...]
    missing: tuple[str, ...]  # in the backbone, not in the file
    unused: tuple[str, ...]  # in the file, of no backbone: heads and the like
    foreign: tuple[str, ...]  # in the file, of another backbone
    wrong_shape: tuple[str, ...]  # in both, with the two shapes

    def __str__(self) -> str:
        unused = f", {len(self.unused)} left aside ({_few(self.unused)})" if self.unused else ""
        return f"the backbone begins with {len(self.matched)} tensors of {self.path}{unused}"

    def check(self) -> None:
        """Refuse what does not fit. BatchNorm's counters may be missing: nothing is computed from them."""
        lacking = [name for name in self.missing if not name.endswith(".num_batches_tracked")]
        if not self.matched and not self.wrong_shape:
            problem = f"it has {_few(self.unused + self.foreign)} where {_few(lacking)} are needed"
        elif self.wrong_shape:
            problem = _few(self.wrong_shape)
        elif lacking:
            problem = f"it lacks {_few(lacking)}"
        elif self.foreign:
            problem = f"it has more than this one: {_few(self.foreign)}"
        else:
            return
        raise EtagError(
            f"the weights '{self.path}' do not fit the backbone: {problem}; check model.backbone, model.width and "
            "model.stem."
        )


def load_weights(backbone: Backbone, path: str) -> WeightsReport:
    """Put the tensors of a file into the backbone, all of it or nothing."""
    file = Path(path).expanduser()
    tensors = read_tensors(file)
    names = {
        backbone.translate_name(name.removeprefix("solver.").removeprefix("backbone.")): name for name in tensors
    }
    report = _compare(file, backbone.state_dict(), tensors, names)
    report.check()
    backbone.load_state_dict({name: tensors[names[name]] for name in report.matched}, strict=False)
    return report


def _compare(
    file: Path, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], names: Mapping[str, str]
) -> WeightsReport:
    """`names` leads from our names to those in the file."""
    both = [name for name in wanted if name in names]
    others = [name for name in names if name not in wanted]
    fits = {name: found[names[name]].shape == wanted[name].shape for name in both}
    return WeightsReport(
        path=file,
        matched=tuple(name for name in both if fits[name]),
        missing=tuple(name for name in wanted if name not in names),
        unused=tuple(names[name] for name in others if not name.startswith("stages.")),
        foreign=tuple(names[name] for name in others if name.startswith("stages.")),
        wrong_shape=tuple(
            f"{names[name]} is {_shape(found[names[name]])} where {_shape(wanted[name])} is needed"
            for name in both
            if not fits[name]
        ),
    )


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or a PyTorch state dict, by name. Nothing in the file is ever executed."""
    if not file.is_file():
        raise EtagError(f"there is no file '{file}': correct model.weights.")
    try:
        return load_file(file)
    except OSError as error:
        raise EtagError(f"the weights '{file}' cannot be read: {error}.") from error
    except SafetensorError:
        pass  # it may still be a PyTorch file
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)  # tensors only, no pickled code
    except Exception as error:  # a file of any other kind can fail in any way
        raise EtagError(
            f"'{file}' is damaged, or neither a safetensors file nor a PyTorch state dict of nothing but tensors: "
            "save the weights with safetensors, or with torch.save(network.state_dict(), file)."
        ) from error
    named = isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )
    if not named:
        raise EtagError(f"'{file}' does not hold tensors by name: save the state dict itself, and nothing around it.")
    return dict(content)


def _few(items: Iterable[str], most: int = 3) -> str:
    """The first of them, and how many more there are."""
    all_items = list(items)
    more = f" and {len(all_items) - most} more" if len(all_items) > most else ""
    return (", ".join(all_items[:most]) or "nothing") + more


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
