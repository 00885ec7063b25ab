"""The classifier: what is evaluated, saved, loaded and exported. It needs no method and no training code."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from etag.models.backbone import Backbone, ModelOptions, new_backbone
from etag.models.prediction import PredictionRule
from etag.models.structure import build_empty, describe


class Classifier(nn.Module):
    """A backbone and a prediction rule: normalized images in, log-probabilities over the seen classes out."""

    def __init__(
        self,
        backbone: Backbone,
        rule: PredictionRule,
        model: ModelOptions,
        channels: int,
        size: int,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.backbone, self.rule, self.temperature = backbone, rule, temperature
        self._model, self._channels, self._size = model, channels, size

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities, one row per image, one column per class."""
        return self.classify(self.backbone(images))

    def classify(self, features: Tensor) -> Tensor:
        """Log-probabilities from pooled features."""
        scores: Tensor = self.rule(features)
        return (scores / self.temperature).log_softmax(1)

    def describe(self) -> dict[str, Any]:
        """The structure as JSON values, from which `without_weights` builds the same classifier."""
        return {
            "model": self._model.model_dump(mode="json", exclude={"weights"}),
            "channels": self._channels,
            "size": self._size,
            "signed": self.backbone.signed,
            "original": self.backbone.original is not None,
            "rule": describe(self.rule),
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
            if not isinstance(rule, PredictionRule):
                raise ValueError("the saved classifier has no prediction rule")
            return cls(backbone, rule, model, channels, size, values["temperature"]).eval()
