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
    """What was loaded from a file."""

    path: Path
    loaded: tuple[str, ...]  # names in the backbone
    unused: tuple[str, ...]  # names in the file that are not of a backbone, such as those of a head

    def __str__(self) -> str:
        unused = f", {len(self.unused)} ignored ({_few(self.unused)})" if self.unused else ""
        return f"loaded {len(self.loaded)} tensors of the backbone from {self.path}{unused}"


def load_weights(backbone: Backbone, path: str | Path) -> WeightsReport:
    """Load the tensors of a file into the backbone; if any does not fit, raise an EtagError and load none."""
    file = Path(path).expanduser()
    tensors, own = read_tensors(file), backbone.state_dict()
    named = {backbone.translate_name(name.removeprefix("solver.").removeprefix("backbone.")): name for name in tensors}
    both = {name: tensors[named[name]] for name in own if name in named}
    # BatchNorm's step counters are not used and may be missing
    missing = [name for name in own if name not in named and not name.endswith(".num_batches_tracked")]
    others = [name for name in named if name not in own]
    deeper = [named[name] for name in others if name.startswith("stages.")]  # of a backbone with more layers
    unused = [named[name] for name in others if not name.startswith("stages.")]
    wrong_shape = [
        f"{named[name]} has shape {_shape(tensor)} instead of {_shape(own[name])}"
        for name, tensor in both.items()
        if tensor.shape != own[name].shape
    ]
    problem = None
    if not both:
        problem = f"it has {_few(unused + deeper)} instead of {_few(missing)}"
    elif wrong_shape:
        problem = _few(wrong_shape)
    elif missing:
        problem = f"it lacks {_few(missing)}"
    elif deeper:
        problem = f"it has tensors that this backbone does not have: {_few(deeper)}"
    if problem is not None:
        raise EtagError(
            f"the weights '{file}' do not fit the backbone: {problem}; check model.backbone, model.width and "
            "model.stem."
        )
    backbone.load_state_dict(both, strict=False)
    return WeightsReport(file, tuple(both), tuple(unused))


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
