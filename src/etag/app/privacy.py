"""What a model stores of the images it was trained on, in plain words."""

from etag.core.text import data_size
from etag.learner.model_directory import ModelDirectory
from etag.methods.registry import METHODS


def privacy_statement(directory: ModelDirectory) -> str:
    """A paragraph for people."""
    about, sizes = directory.about(), directory.sizes()
    info = METHODS[about.method].info
    images = (
        "images are stored (exemplars)" if info.exemplars else "neither images nor features of single images are stored"
    )
    return (
        f"privacy: {images}. {data_size(sum(sizes.values()))} are stored: {info.stores}; and class names. "
        "This is no guarantee: it may be possible to reconstruct something of the images from weights and "
        "generators, or to find out whether an image was among them."
    )
