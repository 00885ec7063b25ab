"""A folder of labeled images, whatever its layout and wherever its labels come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etag.app.labeling import labeled_by
from etag.app.layouts import WHOLE, Ask, Layout, find_layout
from etag.core.errors import EtagError
from etag.data.folders import BESIDE, Listing, is_image, list_classes, list_images, visible_entries
from etag.data.not_read import NotRead


@dataclass(frozen=True)
class FolderOptions:
    """How the user wants a folder of images to be read."""

    labels: str | None = None  # a CSV file, or "names"; None: the names of folders
    nested: bool = False  # the folders are the classes, whatever is in them
    ask: Ask | None = None  # asks the user; None where nobody can be asked


AS_IT_IS = FolderOptions()


@dataclass(frozen=True)
class LabeledFolder:
    """The images of a folder by part and by class, and what else it holds."""

    parts: dict[str, Listing]  # `WHOLE`, or some of train, val and test
    paths: dict[str, Path]  # of all parts that there are, also of those that are not listed
    not_read: NotRead
    unlabeled: tuple[Path, ...] = ()  # parts of a split that hold images, but no class folders

    @property
    def is_split(self) -> bool:
        """Whether the user has split the images into parts."""
        return WHOLE not in self.paths

    @property
    def remarks(self) -> list[str]:
        """Lines about what is not read."""
        lines = [f"'{path}' is not used: its images have no labels." for path in self.unlabeled]
        return [*lines, str(self.not_read)] if self.not_read.kinds else lines


Wanted = Sequence[Sequence[str]]  # parts of a split folder: of each group the first that there is


def read_folder(
    folder: Path,
    options: FolderOptions = AS_IT_IS,
    *,
    fewest: int = 1,
    wanted: Wanted = (("train",), ("val",), ("test",)),
) -> LabeledFolder:
    """List a folder's images; fewer than `fewest` classes to learn are an error."""
    not_read = NotRead(folder)
    if options.labels is not None:
        images = labeled_by(options.labels, folder, not_read)
        if len(images) < fewest:
            raise EtagError(
                f"with --labels {options.labels}, '{folder}' holds {len(images) or 'no'} class"
                f"{'es' * (not images)}: at least {fewest} {'class is' if fewest == 1 else 'classes are'} needed."
            )
        return LabeledFolder({WHOLE: images}, {WHOLE: folder}, not_read)
    layout = find_layout(folder, nested=options.nested, ask=options.ask, one_class=fewest == 1)
    chosen = [next((name for name in group if name in layout.parts), None) for group in [[WHOLE], *wanted]]
    listings = {
        name: _list_part(layout.parts[name], 1 if name in ("val", "test") else fewest, not_read)
        for name in chosen
        if name is not None
    }
    _count_the_rest(folder, layout, not_read)
    return LabeledFolder(listings, layout.parts, not_read, layout.flat)


def _list_part(folder: Path, fewest: int, not_read: NotRead) -> Listing:
    if not visible_entries(folder)[0] and (images := list_images(folder)):
        raise EtagError(
            f"'{folder}' holds no classes, but {len(images)} images: pass the folder above it if '{folder.name}' is a "
            "class, or give the labels with --labels FILE.csv or --labels names."
        )
    return list_classes(folder, fewest, not_read)


def _count_the_rest(folder: Path, layout: Layout, not_read: NotRead) -> None:
    """Count what lies beside the parts of a folder."""
    parts = [*layout.parts.values(), *layout.flat]
    if folder in parts:
        return  # counted with its classes
    folders, files = visible_entries(folder)
    for file in files:
        not_read.add(str(folder / file), BESIDE if is_image(file) else None)
    for name in folders:
        if not any(path.is_relative_to(folder / name) for path in parts):
            list_images(folder / name, not_read)  # it holds no images
