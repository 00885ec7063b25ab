"""Lessons that were interrupted: what is known of them, and whether they are resumed or given up."""

import time
from collections.abc import Mapping
from dataclasses import replace

from etag.app.folders import LessonImages
from etag.app.talk import Talk
from etag.core.scenario import Task
from etag.engine.lesson_progress import Progress, ProgressListener
from etag.learner.learner import describe_task
from etag.learner.model_directory import ModelDirectory
from etag.learner.unfinished import UnfinishedLesson, UnfinishedTask
from etag.learner.versions import ModelInfo

RECORD_SECONDS = 5.0  # between two records of how far the lesson is


def resume_or_discard(
    directory: ModelDirectory, about: ModelInfo, images: LessonImages, precision: str, talk: Talk, discard: bool
) -> None:
    """If a lesson was interrupted, say that it is resumed. If this is another one, ask whether to discard the first."""
    unfinished, lesson = directory.unfinished, directory.unfinished.lesson
    if lesson is None:
        return
    task = describe_task(about, len(about.task_sizes), images.fingerprint, precision)
    if unfinished.is_of(directory.version_or_zero, task):
        talk.print_line(f"resuming {lesson}.")
    elif discard:
        talk.print_line(f"discarding what was left of {lesson}.")
    else:
        check_discard(directory, talk, "this is another lesson, or its images or options have changed")


def check_discard(directory: ModelDirectory, talk: Talk, why: str, option: str = "--discard") -> None:
    """Ask before an interrupted lesson is given up; `why` says what would end it, `option` how to agree beforehand."""
    lesson = directory.unfinished.lesson
    if lesson is None:
        return
    was = f"'{directory.path}' has an unfinished lesson ({lesson})"
    resume = "repeat its command to resume it"
    if lesson.folder:
        resume = f"`etag learn {directory.path} {lesson.folder}{' --update' if lesson.update else ''}` resumes it"
    talk.confirm(
        f"{was}, and {why}. Discard the unfinished lesson?", f"{was}, and {why}: {resume}, {option} gives it up."
    )


class LessonRecorder(ProgressListener):
    """Writes down which lesson is being learned and how far it is, for the case that it is interrupted."""

    def __init__(self, unfinished: UnfinishedTask, lesson: UnfinishedLesson) -> None:
        self._unfinished, self._lesson, self._recorded = unfinished, lesson, time.perf_counter()

    def on_task_begin(self, task: Task, saved_steps: Mapping[str, int | None]) -> None:  # noqa: ARG002
        """Write down the lesson; what is known of its beginning stays if it is resumed."""
        before = self._unfinished.lesson
        if before is not None:
            self._lesson = replace(self._lesson, began=before.began, done=before.done)
        self._unfinished.record_lesson(self._lesson)

    def tell(self, progress: Progress) -> None:
        """Write down how far it is, if it is time."""
        now = time.perf_counter()
        if now - self._recorded >= RECORD_SECONDS and progress.done > self._lesson.done:
            self._recorded, self._lesson = now, replace(self._lesson, done=progress.done)
            self._unfinished.record_lesson(self._lesson)
