"""What a model stores of the images it was trained on, in plain words."""

from etag.core.roles import ROLES
from etag.core.text import data_size
from etag.learner.versions import SavedVersion


def privacy_statement(version: SavedVersion) -> str:
    """A paragraph for people, from the files themselves and not from what somebody wrote into the model."""
    roles = [role for role in version.content["tensors"]["learner"] if role in ROLES]
    images = "images are stored" if "exemplars" in roles else "neither images nor features of single images are stored"
    if single := version.classes_of_one_image():
        names = ", ".join(map(str, single))
        images = f"no image is stored, but the mean of a class of one image, which is that image's feature: {names}"
    parts = [ROLES["solver"], *(ROLES[role] for role in roles if role != "solver")]
    return (
        f"privacy: {images}. {data_size(sum(version.sizes().values()))} are stored: {'; '.join(parts)}; class names. "
        "This is no guarantee: it may be possible to reconstruct something of the images from weights and "
        "generators, or to find out whether an image was among them."
    )
