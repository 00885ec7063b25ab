"""The classifier: what is evaluated, saved, loaded and exported. It needs no method and no training code."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from etag.models.backbone import Backbone, ModelOptions, new_backbone
from etag.models.familiarity import Familiarity
from etag.models.prediction import PredictionRule
from etag.models.structure import build_empty, describe


class Classifier(nn.Module):
    """A backbone and a prediction rule: normalized images in, log-probabilities over the seen classes out. `predict`
    also tells how familiar each image is."""

    def __init__(
        self,
        backbone: Backbone,
        rule: PredictionRule,
        model: ModelOptions,
        channels: int,
        size: int,
        temperature: float = 1.0,
        familiarity: Familiarity | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.rule, self.familiarity, self.temperature = backbone, rule, familiarity, temperature
        self._model, self._channels, self._size = model, channels, size

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities, one row per image, one column per class."""
        return self.classify(self.backbone(images))

    def classify(self, features: Tensor) -> Tensor:
        """Log-probabilities from pooled features."""
        scores: Tensor = self.rule(features)
        return (scores / self.temperature).log_softmax(1)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities, and how familiar each image is, one number per image: from class statistics
        (`Familiarity`), or else the highest probability."""
        return self.predict_from(self.backbone(images))

    def predict_from(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """As `predict`, from pooled features."""
        scores = self.classify(features)
        if self.familiarity is None:
            return scores, scores.amax(1).exp()
        return scores, self.familiarity(self.rule.transformed(features))

    @property
    def saved_parts(self) -> dict[str, nn.Module]:
        """The modules whose tensors are saved, each in a file of its own."""
        parts = {"backbone": self.backbone, "rule": self.rule, "familiarity": self.familiarity}
        return {name: part for name, part in parts.items() if part is not None}

    def describe(self) -> dict[str, Any]:
        """The structure as JSON values, from which `without_weights` builds the same classifier."""
        return {
            "model": self._model.model_dump(mode="json", exclude={"weights"}),
            "channels": self._channels,
            "size": self._size,
            "signed": self.backbone.signed,
            "original": self.backbone.original is not None,
            "branches": len(self.backbone.branches),
            "short_branches": self.backbone.short_branches,
            "rule": describe(self.rule),
            "familiarity": describe(self.familiarity),
            "temperature": self.temperature,
        }

    @classmethod
    def without_weights(cls, values: dict[str, Any]) -> Self:
        """A classifier of the described structure on the meta device: its tensors have shapes, but no memory. Load
        state dicts into it with `assign=True`."""
        model, channels, size = ModelOptions.model_validate(values["model"]), values["channels"], values["size"]
        with torch.device("meta"):
            backbone, rule = new_backbone(model, channels, size, values["signed"]), build_empty(values["rule"])
            if values["original"]:
                backbone.add_original()
            short, stages = values.get("short_branches", False), range(1, values.get("branches", 0) + 1)
            backbone.add_branches((backbone.branch(backbone.frozen + stage, short) for stage in stages), short)
            if not isinstance(rule, PredictionRule):
                raise ValueError("the saved classifier has no prediction rule")
            familiarity = build_empty(values.get("familiarity"))
            if not isinstance(familiarity, Familiarity | None):
                raise ValueError("the saved classifier has something else in the place of its familiarity")
            return cls(backbone, rule, model, channels, size, values["temperature"], familiarity).eval()
