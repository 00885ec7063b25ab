"""What a bundle stores of the images it learned from, said plainly."""

from etag.app.bundle import Bundle
from etag.core.text import data_size
from etag.methods.registry import METHODS


def statement(bundle: Bundle) -> str:
    """For people."""
    about, sizes = bundle.about(), bundle.sizes()
    card = METHODS[about.config.method.name].card
    images = "images are stored (exemplars)" if card.exemplars else "no image is stored, and no feature of one"
    return (
        f"privacy: {images}. Stored are {data_size(sum(sizes.values()))}: {card.stores}; and the names of the "
        "classes. This is no guarantee: from weights and generators something of the images may be reconstructed, "
        "or it be found out whether an image was among them."
    )
