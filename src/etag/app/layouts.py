"""Where the class folders of a data set are: in the folder itself, in parts such as train/ and val/, or further down.

A folder that could mean several things is never guessed at: the user is asked, or an error says what to write.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etag.core.errors import EtagError
from etag.core.text import count_text, listing
from etag.data.folders import is_image, list_images, visible_entries

Ask = Callable[[str], bool]  # asks the user a question; returns whether the answer is yes

PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
PARTS |= {"test": "test", "testing": "test"}  # names of folders, in lower case, and the part that each is
WHOLE = ""  # the part of a data set that is not split
NAMED = 3  # folders that a sentence names


@dataclass(frozen=True)
class Layout:
    """The folders whose sub-folders are classes, by the part they are: `WHOLE`, or some of train, val and test."""

    parts: dict[str, Path]
    flat: tuple[Path, ...] = ()  # parts that hold images, but no class folders


def find_layout(folder: Path, *, nested: bool = False, ask: Ask | None = None, one_class: bool = False) -> Layout:
    """How a folder of images is laid out. With `nested`, its folders are the classes, whatever is in them. With
    `one_class` a single class would be enough."""
    inside = {name: found for name in visible_entries(folder)[0] if (found := _look_into(folder / name)).holds_images}
    if layout := _split(folder, inside, nested):
        own = {part: _confirmed(path, nested, ask) for part, path in layout.parts.items()}
        return Layout(own, layout.flat)
    return _unsplit(folder, inside, nested, ask, one_class)


@dataclass(frozen=True)
class _Inside:
    """What a folder holds."""

    images: bool  # directly
    folders: tuple[str, ...]  # that hold images somewhere

    @property
    def holds_images(self) -> bool:
        return self.images or bool(self.folders)


def _look_into(folder: Path) -> _Inside:
    folders, files = visible_entries(folder)
    return _Inside(any(map(is_image, files)), tuple(name for name in folders if _holds_images(folder / name)))


def _holds_images(folder: Path) -> bool:
    folders, files = visible_entries(folder)
    return any(map(is_image, files)) or any(bool(list_images(folder / name)) for name in folders)


def _split(folder: Path, inside: dict[str, _Inside], nested: bool) -> Layout | None:
    """The parts of a data set that is split; None if it is not."""
    parts = {name: PARTS[name.casefold()] for name in inside if _is_part(name)}
    split = [name for name in parts if inside[name].folders]
    others = [name for name in inside if name not in parts]
    if not split or len(parts) < 2 or (nested and others):
        return None
    if others:
        raise EtagError(
            f"'{folder}' holds {_quoted(list(parts))}, which look like the parts of one data set, and also "
            f"{_quoted(others)}: move the others elsewhere, or add --nested if all of these folders are classes."
        )
    for part in set(parts.values()):
        if len(same := [name for name, own in parts.items() if own == part]) > 1:
            raise EtagError(f"'{folder}' holds {_quoted(same)}, which both mean {part}: leave only one of them.")
    flat = [folder / name for name in parts if name not in split]
    return Layout({parts[name]: folder / name for name in split}, tuple(flat))


def _unsplit(folder: Path, inside: dict[str, _Inside], nested: bool, ask: Ask | None, one_class: bool) -> Layout:
    (first, found), *others = inside.items() or [("", _Inside(True, ()))]
    if nested or others or found.images:
        return Layout({WHOLE: _confirmed(folder, nested, ask, inside)})
    within, alone = folder / first, f", or add --nested if '{first}' is a class" if one_class else ""
    if len(found.folders) > 1 and all(map(_is_part, found.folders)):
        holds, question, advice = listing(found.folders), f"Use '{within}'?", f"pass '{within}'"
    else:
        holds = f"{count_text(len(found.folders), 'folder', 'folders')} of images"
        question = f"Are the folders in '{within}' the classes?"
        advice = f"pass '{within}' if the folders in it are the classes{alone}"
    holds = f"'{folder}' holds one folder, '{first}', with {holds}"
    if ask is not None and ask(f"{holds}. {question}"):
        return find_layout(within, ask=ask, one_class=one_class)
    raise EtagError(f"{holds}: {advice}.")


def _is_part(name: str) -> bool:
    return name.casefold() in PARTS


def _confirmed(folder: Path, nested: bool, ask: Ask | None, inside: dict[str, _Inside] | None = None) -> Path:
    """The folder, if its folders are classes: the user is asked where they hold only folders of images."""
    if inside is None:
        inside = {name: _look_into(folder / name) for name in visible_entries(folder)[0]}
    within = [found.folders for found in inside.values()]
    alike = len(set(within)) == 1 and len(within[0]) == 1  # cat/images, dog/images
    if nested or alike or not inside or any(found.images or not found.folders for found in inside.values()):
        return folder
    names, (first, found) = _quoted(list(inside)), next(iter(inside.items()))
    holds = f"the folders in '{folder}' ({names}) hold no images themselves, only folders such as '{first}/"
    holds += f"{found.folders[0]}'"
    if ask is not None and ask(f"{holds}. Are {names} the classes, with all images below them?"):
        return folder
    raise EtagError(
        f"{holds}: pass one of them, such as '{folder / first}', if the folders in it are the classes, or add --nested "
        f"if {names} are the classes."
    )


def _quoted(names: list[str]) -> str:
    return listing([f"'{name}'" for name in names], NAMED)
