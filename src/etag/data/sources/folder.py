"""Any folder of images: `train/` and `val/` (or `test/`), or one folder that is split here."""

from pathlib import Path

from etag.core.errors import EtagError
from etag.data.folders import Listing, as_images, common_size, list_classes, split_off
from etag.data.source import DataOptions, Dataset, source

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as is usual for photographs


@source("folder", "your own images, a sub-folder a class: --data DIR, or data.path=DIR", needs_path=True)
def load(path: Path, options: DataOptions) -> Dataset:
    """List the files; they are decoded later."""
    train, test = parts(path)
    classes = tuple(train)
    size = options.size or common_size([file for part in (train, test) for files in part.values() for file in files])
    images = [as_images(part, classes, options.workers) for part in (train, test)]
    return Dataset(images[0], images[1], classes, size, MEAN, STD)


def parts(path: Path) -> tuple[Listing, Listing]:
    """Training and test files by class."""
    held_out = next((path / name for name in ("val", "test") if (path / name).is_dir()), None)
    if not _holds_classes(path / "train"):
        return split_off(list_classes(path))
    if held_out is None:
        raise EtagError(f"'{path}' has a folder train of classes, but neither val nor test beside it.")
    train, test = list_classes(path / "train"), list_classes(held_out)
    if missing := sorted(set(train) ^ set(test)):
        raise EtagError(f"'{path}': these classes are not in both train and {held_out.name}: {', '.join(missing)}.")
    return train, test


def _holds_classes(folder: Path) -> bool:
    """Whether this is a part with folders of its own; a class may be called `train` too."""
    return folder.is_dir() and any(entry.is_dir() and entry.name[0] != "." for entry in folder.iterdir())
