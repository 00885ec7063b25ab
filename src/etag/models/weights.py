"""Loading initial weights of a backbone from a file, written by this package or another library."""

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
    """How the tensors of a file fit a backbone.

    `matched` and `missing` are names in the backbone, the others are names in the file.
    """

    path: Path
    matched: tuple[str, ...]
    missing: tuple[str, ...]  # in the backbone, not in the file
    unused: tuple[str, ...]  # in the file, not of a backbone, such as a head
    foreign: tuple[str, ...]  # in the file, of a backbone with more layers
    wrong_shape: tuple[str, ...]  # in both, with different shapes; the text names both

    def __str__(self) -> str:
        unused = f", {len(self.unused)} ignored ({_few(self.unused)})" if self.unused else ""
        return f"loaded {len(self.matched)} tensors of the backbone from {self.path}{unused}"

    def check(self) -> None:
        """Raise an EtagError if the file does not fit; BatchNorm's step counters are not used and may be missing."""
        needed = [name for name in self.missing if not name.endswith(".num_batches_tracked")]
        if not self.matched and not self.wrong_shape:
            problem = f"it has {_few(self.unused + self.foreign)} instead of {_few(needed)}"
        elif self.wrong_shape:
            problem = _few(self.wrong_shape)
        elif needed:
            problem = f"it lacks {_few(needed)}"
        elif self.foreign:
            problem = f"it has tensors that this backbone does not have: {_few(self.foreign)}"
        else:
            return
        raise EtagError(
            f"the weights '{self.path}' do not fit the backbone: {problem}; check model.backbone, model.width and "
            "model.stem."
        )


def load_weights(backbone: Backbone, path: str) -> WeightsReport:
    """Load the tensors of a file into the backbone; if any does not fit, raise an EtagError and load none."""
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
    file: Path, own: Mapping[str, Tensor], loaded: Mapping[str, Tensor], names: Mapping[str, str]
) -> WeightsReport:
    """Compare the backbone's own tensors with loaded ones; `names` maps own names to those in the file."""
    both = [name for name in own if name in names]
    others = [name for name in names if name not in own]
    fits = {name: loaded[names[name]].shape == own[name].shape for name in both}
    return WeightsReport(
        path=file,
        matched=tuple(name for name in both if fits[name]),
        missing=tuple(name for name in own if name not in names),
        unused=tuple(names[name] for name in others if not name.startswith("stages.")),
        foreign=tuple(names[name] for name in others if name.startswith("stages.")),
        wrong_shape=tuple(
            f"{names[name]} has shape {_shape(loaded[names[name]])} instead of {_shape(own[name])}"
            for name in both
            if not fits[name]
        ),
    )


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file or a PyTorch state dict as tensors by name; code in the file is never run."""
    if not file.is_file():
        raise EtagError(f"the weights file '{file}' does not exist: correct model.weights.")
    try:
        return load_file(file)
    except OSError as error:
        raise EtagError(f"the weights '{file}' cannot be read: {error}.") from error
    except SafetensorError:
        pass  # it may be a PyTorch file
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)  # weights_only refuses pickled code
    except Exception as error:  # damaged or foreign files can make torch.load raise anything
        raise EtagError(
            f"'{file}' is damaged, or is neither a safetensors file nor a PyTorch state dict of tensors only: "
            "save the weights with safetensors, or with torch.save(network.state_dict(), file)."
        ) from error
    is_state_dict = isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )
    if not is_state_dict:
        raise EtagError(
            f"'{file}' does not contain tensors by name: save the state dict itself, not an object that contains it."
        )
    return dict(content)


def _few(items: Iterable[str], most: int = 3) -> str:
    """Return the first `most` items as text, and how many more there are."""
    all_items = list(items)
    more = f" and {len(all_items) - most} more" if len(all_items) > most else ""
    return (", ".join(all_items[:most]) or "nothing") + more


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"
