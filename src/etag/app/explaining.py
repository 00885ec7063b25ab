"""Which places of an image decided for its predicted class: a heat map, and a picture of it for each image.

The last maps of the network are pooled to features, from which the prediction rule computes scores. Each place of a map
contributes its activations times the gradient of the class's log-odds, summed over channels. This needs nothing but a
rule that can be differentiated. For linear scores of pooled features it is exact: the contributions of all places add
up to the log-odds without the biases. Log-odds, because the gradient of a probability vanishes where it is near 1.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from etag.app.heat_pictures import draw, metadata
from etag.app.predicting import Prediction
from etag.core.errors import EtagError
from etag.core.files import checksum, make_folder, require_regular_file, safe_file_name, write_atomically
from etag.core.text import printable
from etag.data.decode import UnreadableImage, decode, decode_photo
from etag.learner.versions import ModelInfo
from etag.models.classifier import Classifier

SOURCE = "Source"  # the key under which a picture says of which image it is


def explain_files(
    classifier: Classifier, about: ModelInfo, predictions: Iterable[Prediction], folder: Path
) -> Iterator[Prediction]:
    """Write a picture for each prediction that names a class, into a folder that is created if it does not exist; yield
    the predictions with the files of their pictures."""
    require_maps(classifier)
    make_folder(folder)
    for prediction in predictions:
        if prediction.rejected or not prediction.classes:
            yield prediction
            continue
        try:
            content = _picture(classifier, about, prediction)
        except UnreadableImage as reason:  # since it was predicted
            yield Prediction(prediction.path, error=str(reason))
            continue
        file = _file(folder, prediction.path)
        write_atomically(file, content)
        yield replace(prediction, picture=str(file))


def require_maps(classifier: Classifier) -> None:
    """An error if the features of this network do not belong to places."""
    if not classifier.backbone.has_maps:
        raise EtagError(
            "this model cannot be explained: its network ends in features or tokens, not in a map whose places belong "
            "to places of the image. Networks of convolutions, and ConvNeXt and Swin, can."
        )


def evidence(classifier: Classifier, inputs: Tensor, places: Tensor) -> Tensor:
    """How much each place of normalized images speaks for a class, whose column is given per image: (images, height,
    width). Negative places speak against it. The mean over the places is the sum of all contributions."""
    with torch.no_grad():
        maps = classifier.backbone.last_maps(inputs)
    if all(each.shape[2:].numel() == 1 for each in maps):
        raise EtagError(
            f"this model cannot be explained: the last map of its network has a single place for images of "
            f"{inputs.shape[-1]} pixels. Learn a model with larger images (--set data.size=...)."
        )
    with torch.enable_grad():
        leaves = [each.detach().float().requires_grad_() for each in maps]
        odds = _log_odds(classifier.classify(classifier.backbone.features_of(leaves)), places)
        gradients = torch.autograd.grad(odds.sum(), leaves, allow_unused=True)
    height, width = (max(each.shape[axis] for each in maps) for axis in (2, 3))
    total = inputs.new_zeros(len(inputs), 1, height, width)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            # where an activation is 0 a power of it may have an infinite gradient
            shares = torch.where(leaf == 0, 0, leaf * gradient).sum(1, keepdim=True).detach()
            density = shares * shares.shape[2:].numel()
            total += functional.interpolate(density, (height, width), mode="bilinear", align_corners=False)
    return total[:, 0]


def _log_odds(log_probabilities: Tensor, places: Tensor) -> Tensor:
    """Of the class against all others together; if there is no other, its log-probability."""
    own = log_probabilities.gather(1, places[:, None])[:, 0]
    if log_probabilities.shape[1] == 1:
        return own
    others = log_probabilities.scatter(1, places[:, None], -torch.inf)
    return own - others.logsumexp(1)


def _picture(classifier: Classifier, about: ModelInfo, prediction: Prediction) -> bytes:
    """The content of the file of a picture."""
    resize, (name, *_), (probability, *_) = about.preprocess.resize, prediction.classes, prediction.probabilities
    pixels = torch.from_numpy(decode(prediction.path, resize, about.channels))
    device, number = next(classifier.parameters()).device, about.classes.index(name)
    inputs = about.preprocess.centered(pixels[None].to(device))
    found = evidence(classifier, inputs, torch.tensor([number], device=device))[0].clamp(min=0).cpu().numpy()
    picture = draw(Image.fromarray(decode_photo(prediction.path)), found, resize, str(name), number, probability)
    buffer = BytesIO()
    texts = {SOURCE: _source(prediction.path), "Title": f"{name}: {probability:.1%}", "Software": "etag"}
    picture.save(buffer, "PNG", pnginfo=metadata(texts))
    return buffer.getvalue()


def _file(folder: Path, image: str) -> Path:
    """Where the picture of an image is written: named after the image, and after a checksum of its path, because images
    of several folders may have one name. Only an earlier picture of the same image is replaced."""
    name = f"{printable(Path(image).stem)}-{_path_checksum(image)[:8]}.png"
    file = folder / safe_file_name(name)
    if os.path.lexists(file) and _source_of(file) != _source(image):
        raise EtagError(f"'{file}' exists, and is no picture of '{image}' by etag: choose another folder.")
    return file


def _source(image: str) -> str:
    """What a picture says of its image: the name and a checksum of the path, not the path itself."""
    return printable(f"{Path(image).name} {_path_checksum(image)}")


def _path_checksum(image: str) -> str:
    return checksum(os.fsencode(os.path.abspath(image)))


def _source_of(file: Path) -> str | None:
    """What a picture that an earlier command wrote says of its image; None if the file is something else."""
    try:
        require_regular_file(file)
        with Image.open(file, formats=("PNG",)) as picture:
            return str(picture.info.get(SOURCE)) if picture.info.get("Software") == "etag" else None
    except Exception:
        return None
