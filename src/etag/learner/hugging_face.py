"""Directories of Hugging Face transformers, and repositories of the Hugging Face Hub: what is read from them.

They are config.json (the network), preprocessor_config.json (its images) and one file of weights. All are checked, and
nothing else is read: a repository cannot bring code of its own.
"""

import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etag.core.errors import EtagError
from etag.core.images import ImageFormat, Interpolation
from etag.core.options import file_error
from etag.core.reading import read_text
from etag.core.text import brief
from etag.data.preprocess import MAX_SIDE
from etag.models.architecture import read_architecture

HUB = "hf:"
CONFIG, PROCESSOR, WEIGHTS, PICKLED = (
    "config.json",
    "preprocessor_config.json",
    "model.safetensors",
    "pytorch_model.bin",
)
PARTS = f"{WEIGHTS}.index.json", f"{PICKLED}.index.json"  # of weights that are split into several files
LIMIT = 1 << 24  # bytes of a JSON file; those with the names of 20,000 classes have two million
TIMEOUT = 10.0  # seconds for the Hub's first answer
ELSEWHERE = "set model.weights to a directory that has its files"


def read_config(folder: Path) -> dict[str, Any]:
    """The checked architecture in config.json, as JSON values."""
    return read_architecture(_read_json(folder / CONFIG), f"'{folder / CONFIG}'").model_dump(mode="json")


def weights_file(folder: Path) -> Path:
    """The file of weights in a directory."""
    for name in (WEIGHTS, PICKLED):
        if (folder / name).exists():
            return folder / name
    if any((folder / name).exists() for name in PARTS):
        raise EtagError(
            f"the weights in '{folder}' are split into several files: save them as one, with "
            "network.save_pretrained(folder, max_shard_size='100GB')."
        )
    raise EtagError(
        f"there are no weights in '{folder}': it needs {WEIGHTS} or {PICKLED}, as network.save_pretrained writes."
    )


def _read_json(file: Path) -> dict[str, Any]:
    text = read_text(file, LIMIT)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError too
        raise EtagError(f"'{file}' cannot be read: it is not valid JSON.") from error
    if not isinstance(content, dict):
        raise EtagError(f"'{file}' cannot be used: it is not a group of keys and values.")
    return content


# -- the images --------------------------------------------------------------------------------------------------------

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
# the numbers are Pillow's; where we have no such filter, the most similar one: bilinear for nearest (0), box (4) and
# hamming (5), bicubic for lanczos (1)
FILTERS: dict[int, Interpolation] = {
    0: "bilinear",
    1: "bicubic",
    2: "bilinear",
    3: "bicubic",
    4: "bilinear",
    5: "bilinear",
}
NO_CROP = 384  # from this side on, ConvNeXt's images are not cropped


class Sides(BaseModel):
    """The size of images: two sides, or the shorter one."""

    model_config = ConfigDict(strict=True)
    height: Side | None = None
    width: Side | None = None
    shortest_edge: Side | None = None

    @property
    def square(self) -> int | None:
        """The side of a square; None if only the shorter side is given."""
        if self.height != self.width:
            raise ValueError(f"images of {self.height}x{self.width} pixels are not square")
        return self.height


class Processor(BaseModel):
    """The keys of preprocessor_config.json that decide what a network sees; others are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    size: Sides
    crop_size: Sides | None = None
    do_center_crop: bool = False
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = None
    resample: Annotated[int, Field(ge=0, le=5)]
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: list[float] = []
    image_std: list[Annotated[float, Field(gt=0)]] = []

    def image_format(self, channels: int) -> ImageFormat:
        """The same as our options; a ValueError says what they cannot express."""
        if not self.do_rescale or not math.isclose(self.rescale_factor, 1 / 255, rel_tol=1e-3):
            raise ValueError("its pixels are not divided by 255 (do_rescale, rescale_factor)")
        mean, std = (self.image_mean, self.image_std) if self.do_normalize else ([0.0] * channels, [1.0] * channels)
        if not len(mean) == len(std) == channels:
            raise ValueError(f"image_mean and image_std need {channels} numbers each")
        size, crop = self._size()
        return ImageFormat(size=size, mean=tuple(mean), std=tuple(std), interpolation=FILTERS[self.resample], crop=crop)

    def _size(self) -> tuple[int, float | None]:
        """The side, and the share of the shorter side that is left after cropping."""
        edge = self.size.shortest_edge
        cut = self.crop_size.square if self.do_center_crop and self.crop_size is not None else None
        if edge is None:
            side = self.size.square
            if side is None:
                raise ValueError("size has neither height and width nor shortest_edge")
            if cut not in (None, side):
                raise ValueError("it squeezes images into a square before it crops them, which etag does not do")
            return side, None
        if self.crop_pct is not None:
            return edge, None if edge >= NO_CROP else edge / int(edge / self.crop_pct)
        side = cut or edge
        if side > edge:
            raise ValueError(f"crop_size={side} is larger than shortest_edge={edge}")
        return side, side / edge


def read_images(folder: Path, architecture: dict[str, Any]) -> ImageFormat:
    """The images that the weights in a directory expect."""
    file = folder / PROCESSOR
    try:
        if not file.exists():
            raise EtagError(f"'{file}' is missing")
        values = _complete(_read_json(file), architecture["model_type"])
        try:
            return Processor.model_validate(values).image_format(architecture["num_channels"])
        except ValidationError as error:
            raise file_error(error, f"'{file}'") from error
        except ValueError as error:
            raise EtagError(f"'{file}' cannot be used: {error}") from error
    except EtagError as error:
        raise EtagError(
            f"{str(error).rstrip('.')}: it tells which images the weights expect. Copy or correct it, or set "
            "model.images, such as model.images={size: 224, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}."
        ) from error


def _complete(values: dict[str, Any], model_type: str) -> dict[str, Any]:
    """What a file leaves out depends on the kind of its processor; without one, on the family of the network."""
    values = {key: value for key, value in values.items() if value is not None}
    kind = str(values.get("image_processor_type", values.get("feature_extractor_type", "")))
    convnext = kind.startswith("ConvNext") or (not kind and model_type in ("convnext", "resnet"))
    bit = kind.startswith("Bit") or (not kind and model_type.startswith("dinov2"))
    for key in ("size", "crop_size"):
        if type(side := values.get(key)) is int:  # an older form
            is_edge = key == "size" and (convnext or bit)
            values[key] = {"shortest_edge": side} if is_edge else {"height": side, "width": side}
    return {
        "resample": 3 if convnext or bit else 2,
        **({"crop_pct": 224 / 256} if convnext else {}),
        **({"do_center_crop": True} if bit else {}),
    } | values


# -- the Hub -----------------------------------------------------------------------------------------------------------


def download(source: str) -> Path:
    """The directory of a repository `hf:OWNER/NAME@REVISION` in the cache of the Hugging Face Hub; what is not in the
    cache, or has changed, is downloaded. With HF_HUB_OFFLINE=1 the network is not used."""
    match = re.fullmatch(r"(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(\w[\w./-]{0,199}))?", source.removeprefix(HUB), re.ASCII)
    if match is None:
        raise EtagError(f"{brief(source)} does not have the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION.")
    name, revision = match.groups()
    try:
        from huggingface_hub import HfApi, errors, snapshot_download
    except ImportError as error:
        raise EtagError("names that begin with hf: need one more package: pip install 'etag-cil[hub]'.") from error
    wanted: dict[str, Any] = {"revision": revision, "allow_patterns": [CONFIG, PROCESSOR, WEIGHTS, PARTS[0]]}
    known = (
        (errors.GatedRepoError, "its owner admits only some users", "ask for access on its page, then `hf auth login`"),
        (errors.RepositoryNotFoundError, "there is no such public repository", "correct the name, or `hf auth login`"),
        (errors.RevisionNotFoundError, f"it has no revision {revision}", "correct the part after @"),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set", f"unset it, or {ELSEWHERE}"),
        (Exception, None, f"check the network connection, or {ELSEWHERE}"),
    )
    try:
        HfApi().model_info(name, revision=revision, timeout=TIMEOUT)  # snapshot_download alone might wait forever
        return Path(snapshot_download(name, **wanted))
    except Exception as error:  # whatever a network can do
        _, reason, advice = next(row for row in known if isinstance(error, row[0]))
        if not isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
            with suppress(Exception):  # maybe it was downloaded before
                folder = Path(snapshot_download(name, local_files_only=True, **wanted))
                if (folder / WEIGHTS).exists():
                    return folder
        reason = reason or (str(error) or type(error).__name__).splitlines()[0].rstrip(".:")[:200]
        raise EtagError(f"{name} cannot be loaded from the Hugging Face Hub ({reason}): {advice}.") from error
