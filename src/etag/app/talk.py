"""How the app talks to whoever called it: lines, questions, progress."""

from collections.abc import Callable
from dataclasses import dataclass

from etag.core.errors import EtagError
from etag.engine.lesson_progress import Progress
from etag.learner.learner import print_nothing


@dataclass(frozen=True)
class Talk:
    """What to do with what people should see. Without `ask`, nobody can answer a question."""

    print_line: Callable[[str], None] = print_nothing
    ask: Callable[[str], bool] | None = None  # a question that is answered by yes or no
    on_progress: Callable[[Progress], None] | None = None
    shows_progress: bool = False  # a live line on a terminal, else a line every 30 seconds
    verbose: bool = False  # phases and loss terms, too

    def confirm(self, question: str, otherwise: str) -> None:
        """Ask whether to go on; the error says what to do otherwise. A program, which cannot answer, gets the error."""
        if self.ask is None or not self.ask(question):
            raise EtagError(otherwise)
