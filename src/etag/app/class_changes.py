"""Changes of a model that learn nothing: a class is forgotten or renamed, a threshold is set."""

from dataclasses import replace
from math import isfinite
from pathlib import Path

from etag.core.errors import EtagError, known_names
from etag.core.files import remove
from etag.core.text import count_text, now
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import Lesson, ModelInfo, Name
from etag.methods.abilities import CanForget


def forget_class(model: Path, name: Name) -> tuple[ModelInfo, str]:
    """Remove a class: what is stored of it alone is deleted, and so are older versions. Returns what the model is now,
    and in words what remains of the class."""
    directory = ModelDirectory(model)
    with directory.locked() as completed:
        directory.check_no_run()
        if completed and name not in directory.about().classes:
            return (
                directory.about(),
                "as was printed before, or see docs/models.md",
            )  # this very command was killed before it had deleted all older versions
        method, about = directory.load_method()
        check_known(model, about, name)
        if len(about.classes) <= 2:
            raise EtagError("a model needs at least two classes.")
        if not isinstance(method, CanForget):
            raise EtagError(f"{about.method} cannot forget a class: `etag methods` lists the methods that can.")
        remains = method.forget(about.classes.index(name))
        lesson = Lesson("forget", (), 0, 0.0, 0.0, now())
        history = tuple(replace(past, classes=_without(past.classes, name)) for past in about.history)
        left = replace(about, classes=_without(about.classes, name), history=history)
        about = left.with_lesson(lesson, task_sizes=tuple(method.task_sizes))
        remove(directory.pages)  # they name the class
        directory.save(method, about, keep=1)
        return about, remains


def _without(names: tuple[Name, ...], name: Name) -> tuple[Name, ...]:
    return tuple(known for known in names if known != name)


def what_forgetting_removes(model: Path, name: Name) -> str | None:
    """In words, for a question; None if the model does not know the class, or no longer."""
    directory = ModelDirectory(model)
    about = directory.about()
    if name not in about.classes:
        return None
    number, lesson = next(
        (number, past)
        for number, past in enumerate(about.history, start=1)
        if name in past.classes and past.kind == "learn"
    )
    older = count_text(len(directory.versions), "stored version", "stored versions")
    unfinished = (
        "" if directory.unfinished.lesson is None else f" and the unfinished lesson ({directory.unfinished.lesson})"
    )
    return (
        f"Everything that is stored of '{name}' alone (learned in lesson {number}, {lesson.date}) is removed from "
        f"'{model}', and {older}, which know it{unfinished}, are deleted."
    )


def rename_class(model: Path, old: Name, new: Name) -> ModelInfo:
    """Give a class another name, in a new version; returns what the model is now."""

    def renamed(about: ModelInfo) -> ModelInfo:
        check_known(model, about, old)
        if not str(new).strip():
            raise EtagError("the new name of a class cannot be empty.")
        if clash := [name for name in about.classes if name != old and str(name).casefold() == str(new).casefold()]:
            raise EtagError(f"'{model}' already knows a class '{clash[0]}': choose another name.")
        history = tuple(replace(past, classes=_replaced(past.classes, old, new)) for past in about.history)
        lesson = Lesson("rename", (new,), 0, 0.0, 0.0, now())
        return replace(about, classes=_replaced(about.classes, old, new), history=(*history, lesson))

    return ModelDirectory(model).revise(renamed)


def set_threshold(model: Path, value: str) -> ModelInfo:
    """Set the familiarity below which images are rejected; `none` rejects none. Later lessons leave it as it is."""
    try:
        number = None if value == "none" else float(value)
    except ValueError:
        raise EtagError(f"the threshold '{value}' is not a number: give a number, or none.") from None
    if number is not None and not isfinite(number):
        raise EtagError(f"the threshold '{value}' is not finite: give a number, or none.")
    return ModelDirectory(model).revise(lambda about: replace(about, threshold=number, threshold_chosen=True))


def check_known(model: Path, about: ModelInfo, name: Name) -> None:
    """Raise an error unless the model knows the class; it suggests a similar name."""
    if name not in about.classes:
        known = known_names(str(name), list(map(str, about.classes)))
        raise EtagError(f"'{model}' knows no class '{name}': {known}.")


def _replaced(names: tuple[Name, ...], old: Name, new: Name) -> tuple[Name, ...]:
    return tuple(new if name == old else name for name in names)
