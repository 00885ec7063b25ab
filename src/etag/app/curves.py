"""What a lesson's page shows of its training."""

from collections.abc import Mapping

from etag.core.work import Callback


class CurveRecorder(Callback):
    """Remembers loss terms and training accuracy for the page of a lesson."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, dict[str, float]]] = []  # phase, step, loss terms
        self.accuracy: list[tuple[int, float]] = []  # step of training the network, share of right images
        self._phase = ""
        self._newest: float | None = None

    def on_phase_begin(self, name: str, steps: int, epochs: int) -> None:  # noqa: ARG002
        """Remember the phase."""
        self._phase, self._newest = name, None

    def on_accuracy(self, accuracy: float) -> None:
        """Remember the accuracy until its step is known."""
        self._newest = accuracy

    def on_step(self, step: int, epoch: int, lr: float, terms: Mapping[str, float], rows: int) -> None:  # noqa: ARG002
        """Remember the terms; data passes have none."""
        if terms:
            self.steps.append((self._phase, step, dict(terms)))
        if self._newest is not None and self._phase == "solver":
            self.accuracy.append((step, self._newest))
