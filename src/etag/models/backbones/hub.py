"""Backbones of Hugging Face transformers, taken apart into stages: ViT, DINOv2, ConvNeXt, ResNet and Swin.

transformers is imported only when such a backbone is built. Nothing is downloaded, and no code of a repository is run.
"""

from typing import Any

import torch
from torch import Tensor, nn

from etag.core.errors import EtagError
from etag.models.architecture import Architecture, ResNet, Swin, Tokens, ViT, read_architecture
from etag.models.backbone import BACKBONES, Backbone, ModelOptions, is_features
from etag.models.modules import ConvNorm, Modules

NAME = "transformers"
NO_RANDOMNESS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0}
# older name -> newer name. transformers renamed layers, but still writes files with the older names: both are read
NEW_NAMES = {
    "encoder.layer.": "layers.",
    "attention.attention.": "attention.",
    "attention.self.": "attention.",
    "attention.query.": "attention.q_proj.",
    "attention.key.": "attention.k_proj.",
    "attention.value.": "attention.v_proj.",
    "attention.output.dense.": "attention.o_proj.",
    "attention.relative_position_bias.": "attention.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
}


class ViTStem(nn.Module):
    """Embeddings of a ViT; positions are interpolated where images have another side than those of pre-training."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, images: Tensor) -> Tensor:
        """Tokens of shape (rows, 1 + patches, width)."""
        tokens: Tensor = self.embeddings(images, interpolate_pos_encoding=True)
        return tokens


class SwinStem(nn.Module):
    """Embeddings of a Swin."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, images: Tensor) -> Tensor:
        """The tokens as a map."""
        tokens, sides = self.embeddings(images)
        return _as_map(tokens, *sides)


class SwinStage(nn.Module):
    """A stage of a Swin, from map to map."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, maps: Tensor) -> Tensor:
        """A map of half the side; the last stage does not change it."""
        height, width = maps.shape[2:]
        tokens = self.layers(maps.flatten(2).transpose(1, 2).contiguous(), (height, width))[0]
        if self.layers.downsample is not None:
            height, width = (height + 1) // 2, (width + 1) // 2
        return _as_map(tokens, height, width)


def _as_map(tokens: Tensor, height: int, width: int) -> Tensor:
    """Tokens (rows, places, channels) as a map in channels_last order, without a copy."""
    rows, _, channels = tokens.shape
    return tokens.transpose(1, 2).view(rows, channels, height, width)


class Pooling(nn.Module):
    """From the last stage's output to features, as transformers does it: the normalized class token of tokens, the mean
    of normalized places (`norm_first`), or the normalized mean."""

    def __init__(self, norm: nn.Module, norm_first: bool) -> None:
        super().__init__()
        self.norm, self.norm_first = norm, norm_first

    def forward(self, maps: Tensor) -> Tensor:
        """Features, one row per image."""
        if maps.ndim == 3:
            inputs = maps[:, 0]
        elif self.norm_first:
            places: Tensor = self.norm(maps.permute(0, 2, 3, 1))
            return places.mean((1, 2))
        else:
            inputs = maps.mean((2, 3))
        features: Tensor = self.norm(inputs)
        return features


class TransformersBackbone(Backbone):
    """A network of transformers. Its stages are the blocks of a ViT or DINOv2, and the stages of other families."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.widths, self.min_side = architecture.widths, architecture.min_side
        self.has_maps, self.signed, self.feature_size = architecture.has_maps, architecture.signed, self.widths[-1]
        model = _new_model(architecture)
        self.stages = _take_apart(model, architecture)
        norm = nn.Identity() if isinstance(architecture, ResNet) else model.layernorm
        self.final = Pooling(norm, norm_first=isinstance(architecture, Swin))
        self._prefix = f"{architecture.model_type}."  # of names in files of networks with a head
        own = {id(tensor): name for name, tensor in self.state_dict(keep_vars=True).items()}
        theirs = {name: own.get(id(tensor)) for name, tensor in model.state_dict(keep_vars=True).items()}
        self._names = {_new_name(name): name for name in own.values()}
        self._names |= {_new_name(name): ours for name, ours in theirs.items() if ours is not None}

    def pool(self, maps: Tensor) -> Tensor:
        """The features of the last stage's output; features are returned as they are."""
        features: Tensor = maps if is_features(maps) else self.final(maps)
        return features

    @property
    def _stages_to_copy(self) -> list[nn.Sequential]:
        """The final normalization is trained, so it is copied too; `pool` does not change what it returns."""
        return [*super()._stages_to_copy, nn.Sequential(self.final)]

    def new_stage(self, number: int, short: bool = False) -> nn.Sequential:  # noqa: ARG002
        """A small block to the width of that stage: two convolutions for maps, two linear layers for tokens."""
        return self._block(self.widths[number - 2], self.widths[min(number, len(self.widths)) - 1])

    def branch(self, stage: int, short: bool = False) -> nn.Module:  # noqa: ARG002
        """One small block to the size of features: twelve more blocks of a ViT would cost too much."""
        return self._block(self.widths[stage - 1], self.feature_size)

    def _block(self, before: int, after: int) -> nn.Sequential:
        layers: tuple[nn.Module, ...]
        if self.has_maps:
            layers = (ConvNorm(before, before, 3, 2, before), nn.ReLU(), ConvNorm(before, after, 1), nn.ReLU())
        else:
            layers = (nn.LayerNorm(before), nn.Linear(before, after), nn.GELU(), nn.Linear(after, after), nn.Identity())
        return nn.Sequential(*layers)

    def translate_name(self, name: str) -> str:
        """Return the name here of a tensor in a file of transformers; names that are ours are returned unchanged. A
        name that belongs to a layer that this network lacks becomes an unknown one of ours."""
        plain = _new_name(name.removeprefix(self._prefix))
        if plain in self._names:
            return self._names[plain]
        computed = plain.endswith("relative_position_index")  # older files of Swin have it
        return f"stages.{plain}" if plain.startswith(("layers.", "encoder.")) and not computed else name

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Read also what was saved with another version of transformers, whose names differ."""
        own = {_new_name(name): name for name in self.state_dict()}
        for name in [name for name in state_dict if name.startswith(prefix)]:
            rest = name.removeprefix(prefix)
            if (ours := own.get(_new_name(rest), rest)) != rest:
                state_dict[prefix + ours] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _new_name(name: str) -> str:
    for old, new in NEW_NAMES.items():
        name = name.replace(old, new)
    return name


def _new_model(architecture: Architecture) -> Any:
    """The network as transformers builds it, with random weights."""
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError as error:
        raise EtagError(
            "backbones of Hugging Face transformers need that package: pip install 'etag-cil[transformers]'."
        ) from error
    config = AutoConfig.for_model(**architecture.model_dump(), **NO_RANDOMNESS)
    return AutoModel.from_config(config, dtype=torch.float32)


def _take_apart(model: Any, architecture: Architecture) -> Modules[nn.Sequential]:
    """The stages: the first begins with the embeddings, each ends in an activation or an identity."""
    stem: Any = model.embedder if isinstance(architecture, ResNet) else model.embeddings
    # the list of blocks or stages; its name depends on the family, and on the version of transformers
    parts: list[Any] = list(next(part for part in model.modules() if isinstance(part, nn.ModuleList)))
    ends: list[nn.Module] = [nn.Identity() for _ in parts]
    if isinstance(architecture, Tokens):
        stem.mask_token = None  # for pre-training only
    if isinstance(architecture, ViT):
        stem = ViTStem(stem)
    elif isinstance(architecture, ResNet):  # the last activation of a stage becomes its end
        for number, part in enumerate(parts):
            last = part.layers[-1]
            ends[number], last.activation = last.activation, nn.Identity()
    elif isinstance(architecture, Swin):
        _set_relative_positions(model, architecture.window_size)
        stem, parts = SwinStem(stem), [SwinStage(part) for part in parts]
    return Modules(
        nn.Sequential(*([] if number else [stem]), part, end)
        for number, (part, end) in enumerate(zip(parts, ends, strict=True))
    )


def _set_relative_positions(model: nn.Module, window: int) -> None:
    """Set the table of relative positions within a window. It is computed and never saved, so it needs its values even
    where the network is built on the meta device, to be filled from a file."""
    places = torch.arange(window, device="cpu")
    steps = places[:, None] - places[None, :] + window - 1
    index = (2 * window - 1) * steps[:, None, :, None] + steps[None, :, None, :]
    for part in model.modules():
        if isinstance(old := getattr(part, "relative_position_index", None), Tensor):
            part.register_buffer("relative_position_index", index.reshape(old.shape), persistent=False)


@BACKBONES.add(NAME)
def from_transformers(options: ModelOptions, channels: int, _size: int) -> Backbone:
    """Return the backbone that `model.architecture` describes; `model.width` and `model.stem` do not apply to it."""
    if options.architecture is None:
        raise EtagError(
            f"model.backbone={NAME} needs to know which network: set model.weights to a directory of Hugging Face "
            "transformers, or to hf:OWNER/NAME."
        )
    architecture = read_architecture(options.architecture, "model.architecture")
    if architecture.num_channels != channels:
        raise EtagError(
            f"the weights expect images of {architecture.num_channels} channels, and these have {channels}: choose "
            "other weights."
        )
    return TransformersBackbone(architecture)
