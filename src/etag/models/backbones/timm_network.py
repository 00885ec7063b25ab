"""Backbones of timm. Each is one stage, because timm has no general way to take a network apart.

timm is imported only when such a backbone is built. Nothing is downloaded here, and a name that leads to a file or to a
repository is refused.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.core.text import brief
from etag.models.backbone import BACKBONES, Backbone, ModelOptions
from etag.models.initial import require_memory
from etag.models.modules import Modules

NAME = "timm"
# an architecture and maybe a tag, such as resnet50.a1_in1k; no colon and no slash, as hf-hub: and local-dir: have
PATTERN = re.compile(r"[a-z][a-z0-9_]{0,99}(\.[a-z0-9_]{1,100})?", re.ASCII)


def import_timm() -> Any:
    """The package timm; an EtagError says why it cannot be imported."""
    try:
        import timm
        import timm.data  # with which it finds out what images a network expects
    except Exception as error:  # a torchvision for another torch raises a RuntimeError
        if isinstance(error, ModuleNotFoundError) and error.name == NAME:
            raise EtagError("backbones of timm need that package: pip install 'etag-cil[timm]'.") from error
        raise EtagError(
            f"timm is installed but cannot be imported ({reason(error)}): install the torchvision that belongs to "
            f"torch {torch.__version__}, or choose other weights."
        ) from error
    return timm


def reason(error: Exception) -> str:
    """The first sentence of an error's text, cut to a length that fits into one of ours."""
    return re.split(r"[.:]?\s*(?:\n|$|\.\s)", str(error).strip() or type(error).__name__)[0][:200]


def checked_name(name: Any, origin: str) -> str:
    """The name of a network of timm; an error if it has another form. `origin` tells where the name comes from."""
    if not isinstance(name, str) or not PATTERN.fullmatch(name):
        raise EtagError(
            f"{origin} cannot be used: {brief(name)} is not the name of a network of timm, such as resnet50.a1_in1k."
        )
    return name


def new_network(name: str, device: str = "cpu", **options: Any) -> Any:
    """The network without its last layer, as timm builds it with random weights, but without dropout and stochastic
    depth: their random numbers come from PyTorch's global generator, so that a resumed run would not repeat them."""
    timm = import_timm()
    try:
        with torch.random.fork_rng(devices=[]), torch.device(device):
            network = timm.create_model(checked_name(name, "model.architecture"), num_classes=0, **options)
    except RuntimeError as error:
        raise EtagError(
            f"timm {timm.__version__} cannot build {name} ({reason(error)}): correct the name, or update timm."
        ) from error
    for part in network.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for key in ("drop", "drop_prob", "drop_rate", "drop_path_rate"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)
    return network


class TimmBackbone(Backbone):
    """A network of timm as a single stage, from images to the features before timm's last layer."""

    has_maps, signed = False, True

    def __init__(self, name: str, size: int) -> None:
        super().__init__()
        options: dict[str, Any] = {}
        network = new_network(name, "meta")  # without memory: maybe it is too large, or wrong
        side = network.pretrained_cfg["input_size"][-1]
        try:
            if network.pretrained_cfg.get("fixed_input_size") and size != side:
                options = {"dynamic_img_size": True}  # positions are interpolated; some networks do not accept it
                network = new_network(name, "meta", **options)
            _, self.feature_size = network.eval()(torch.zeros(1, 3, size, size, device="meta")).shape
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise EtagError(
                f"{name} of timm does not accept images of {size}x{size} pixels: set data.size={side}."
            ) from error
        self.min_side = max([row["reduction"] for row in getattr(network, "feature_info", [])], default=1)
        if torch.get_default_device().type != "meta" or _has_computed_tensors(network):
            require_memory(network)
            network = new_network(name, **options)
        self.stages = Modules([nn.Sequential(network, nn.Identity())])
        self._names = set(self.state_dict())

    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:  # noqa: ARG002
        """Two linear layers from features to features."""
        size = self.feature_size
        return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.GELU(), nn.Linear(size, size), nn.Identity())

    def translate_name(self, name: str) -> str:
        """Return the name here of a tensor of timm; other names are returned unchanged."""
        return ours if (ours := f"stages.0.0.{name}") in self._names else name


def _has_computed_tensors(network: nn.Module) -> bool:
    """Whether it has tensors that its constructor computes and that are never saved: they need their values even where
    the other tensors are filled from a file."""
    saved = {id(tensor) for tensor in network.state_dict(keep_vars=True).values()}
    everything = (value for part in network.modules() for value in (*part._buffers.values(), *vars(part).values()))
    return any(isinstance(value, Tensor) and id(value) not in saved for value in everything)


@BACKBONES.add(NAME)
def from_timm(options: ModelOptions, channels: int, size: int) -> Backbone:
    """Return the network that `model.architecture` names; `model.width` and `model.stem` do not apply to it."""
    if options.architecture is None:
        raise EtagError(f"model.backbone={NAME} needs to know which network: set model.weights to timm:NAME.")
    name = checked_name(options.architecture.get("name"), "model.architecture")
    if channels != 3:
        raise EtagError(f"the weights expect images of 3 channels, and these have {channels}: choose other weights.")
    return TimmBackbone(name, size)
