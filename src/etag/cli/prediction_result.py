"""What `etag predict` prints."""

import csv
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etag.cli.printing import echo, echo_json

if TYPE_CHECKING:
    from etag.app.predicting import Prediction

NONE_OF_THESE = "(none of these)"


@dataclass
class PredictionCounts:
    """What came of the predictions."""

    read: int = 0
    rejected: int = 0
    failed: "list[Prediction]" = field(default_factory=list)


def print_predictions(predictions: Iterable["Prediction"], form: str, pictures: bool) -> PredictionCounts:
    """Print predictions, except those whose file could not be read; with `pictures` also the files of their
    pictures."""
    from etag.core.text import csv_cell

    counts, rows = PredictionCounts(), csv.writer(sys.stdout, lineterminator="\n")
    for prediction in predictions:
        if prediction.error is not None:
            counts.failed.append(prediction)
            continue
        if form == "csv" and not counts.read:
            rows.writerow(["path", "class", "probability", "rejected", "guess", *(["picture"] if pictures else [])])
        counts.read += 1
        counts.rejected += prediction.rejected
        guesses = list(zip(prediction.classes, prediction.probabilities, strict=True))
        picture = [prediction.picture or ""] if pictures else []
        if form == "json":
            values = [{"class": name, "probability": round(value, 6)} for name, value in guesses]
            result = {"class": prediction.name, "rejected": prediction.rejected, "predictions": values}
            echo_json({"path": prediction.path} | result | ({"picture": prediction.picture} if pictures else {}))
        elif form == "csv":
            rejected = "true" if prediction.rejected else "false"
            for name, value in guesses:
                chosen = "" if prediction.rejected else name
                rows.writerow(map(csv_cell, [prediction.path, chosen, f"{value:.6f}", rejected, name, *picture]))
        else:
            echo(_line(prediction, picture))
    return counts


def _line(prediction: "Prediction", picture: list[str]) -> str:
    """A prediction in one line."""
    from etag.core.text import printable

    pairs = zip(prediction.classes, prediction.probabilities, strict=True)
    words = [f"{value:6.1%}  {name}" for name, value in pairs]
    if prediction.rejected:
        words = [f"        {NONE_OF_THESE}, at most: {words[0].strip()}"]
    return "\t".join(map(printable, [prediction.path, *words, *picture]))
