"""Exemplars: images of old classes that some methods store, and how they are chosen."""

from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt, field_validator
from torch import Tensor

from etag.core.options import Options
from etag.core.scenario import ImageSet, Task
from etag.data.images import MemoryImages, concat_images
from etag.data.rows import first_rows_per_class
from etag.models.modules import StoredTensors


class ExemplarOptions(Options):
    """How many images are stored, and which."""

    per_class: PositiveInt = Field(20, description="images stored per class")
    total: PositiveInt | None = Field(None, description="images in all, shared by the classes; replaces `per_class`")
    selection: Literal["herding", "random"] = Field("herding", description="nearest to the class mean, or random")

    @field_validator("per_class", "total", mode="before")
    @classmethod
    def _reject_zero(cls, value: Any) -> Any:
        if value == 0:
            raise ValueError("this method needs exemplars: store at least one per class, or choose another method")
        return value


class ExemplarMemory(StoredTensors):
    """Stored images, class by class, in the order in which they were chosen."""

    pixels: Tensor
    labels: Tensor

    def __init__(self, options: ExemplarOptions) -> None:
        super().__init__()
        self.options = options
        self.store(pixels=torch.empty(0, dtype=torch.uint8), labels=torch.empty(0, dtype=torch.long))

    @property
    def images(self) -> MemoryImages:
        """The stored images as a set."""
        return MemoryImages(self.pixels.cpu(), self.labels.cpu())

    def joined_to(self, images: ImageSet) -> ImageSet:
        """These images and the stored ones."""
        return concat_images(images, self.images) if len(self.labels) else images

    def images_per_class(self, classes: int) -> int:
        """Images stored per class when there are `classes` classes."""
        total = self.options.total
        return self.options.per_class if total is None else total // classes

    def add(self, task: Task, features: Tensor, generator: torch.Generator) -> None:
        """Store some images of the task, whose features are given; with a fixed total, old classes drop those chosen
        last."""
        count, labels = self.images_per_class(task.num_seen), task.train.labels
        chosen = []
        for label in range(task.num_old, task.num_seen):
            rows = (labels == label).nonzero().flatten()
            if self.options.selection == "herding":
                chosen.append(rows[herding(features[rows.to(features.device)], count).cpu()])
            else:
                chosen.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
        rows = torch.cat(chosen)
        (pixels,) = task.train.read([rows])
        kept = first_rows_per_class(self.labels.cpu(), count)
        device = self.labels.device
        old = self.pixels[kept] if len(self.labels) else pixels[:0].to(device)
        self.store(
            pixels=torch.cat([old, pixels.to(device)]), labels=torch.cat([self.labels[kept], labels[rows].to(device)])
        )


def herding(features: Tensor, count: int) -> Tensor:
    """Rows of one class, best first (Rebuffi et al., 2017): each brings the mean of the chosen rows as near as possible
    to the mean of all; features are scaled to unit length."""
    features = torch.nn.functional.normalize(features.double())
    mean, summed = features.mean(0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen: list[Tensor] = []
    for number in range(1, min(count, len(features)) + 1):
        distances = torch.linalg.vector_norm(mean - (summed + features) / number, dim=1)
        best = distances.where(free, torch.inf).argmin()
        free[best] = False
        summed += features[best]
        chosen.append(best)
    return torch.stack(chosen)
