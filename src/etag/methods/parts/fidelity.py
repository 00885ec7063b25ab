"""Choices by which the authors' release differs from the paper, in one group of options."""

from typing import Literal

from pydantic import Field, PositiveFloat

from etag.core.options import Options
from etag.core.scenario import Task


class FidelityOptions(Options):
    """Where the authors' published code (the release) differs from the paper. The defaults are our reading of the paper
    (docs/fidelity.md has the reasons); recipes/code follows the release."""

    ratio: Literal["exact", "integer"] = Field(
        "exact", description="lambda: old / new classes; release: base // new + task index - 1"
    )
    normalize_ce: bool = Field(False, description="divide Eq. (5) by 1 + lambda, as the release does")
    ce_new: Literal["seen", "new", "all"] = Field(
        "seen", description="classes in the cross-entropy on new images; release: all"
    )
    ce_replay: Literal["seen", "old", "all"] = Field(
        "seen", description="classes in the cross-entropy on generated features; release: all"
    )
    argmax: Literal["seen", "all"] = Field("seen", description="classes that compete in a prediction; all: any output")
    l2_reduction: Literal["mean_norm", "frobenius"] = Field(
        "mean_norm", description="Eq. (3): mean of norms; release: one norm of the batch"
    )
    l2_views: Literal["plain", "all"] = Field("plain", description="Eq. (3) on the images; release: on all views")
    aux_classes: Literal["base", "all"] = Field(
        "base", description="outputs of auxiliaries: base classes, or all from the start"
    )
    backbone_batch_norm: Literal["images", "views"] = Field(
        "images",
        description="BatchNorm of the backbone in training: images and other views are normalized as two batches, and "
        "only the images update the running statistics; release: as one batch",
    )
    reconstruction: Literal["half", "whole"] = Field(
        "half", description="Eq. (6): half the squared error; release: the whole"
    )
    guide_input: Literal["prior", "reconstruction"] = Field(
        "prior", description="features that are guided: samples (Eq. 6); release: reconstructions"
    )
    guide_classes: Literal["seen", "new", "all"] = Field(
        "seen", description="classes in the guiding cross-entropy; release: all"
    )
    guide_weight: Literal["one", "normalized"] = Field(
        "one", description="weight of the guidance after the base task; release: 1 / (1 + lambda)"
    )
    guide_old: bool = Field(False, description="also guide old classes, with weight lambda / (1 + lambda)")
    match_reduction: Literal["mean", "batch_sum"] = Field(
        "mean", description="Eq. (7): mean over rows; release: sum over the batch"
    )
    match_factor: PositiveFloat = Field(1.0, description="factor on lambda_vae in Eq. (10); 1e-3 in the release")

    def class_ratio(self, task: Task) -> float:
        """Old classes per new class: lambda of Eqs. (5), (9) and (10); 0 at the base task."""
        return task.num_old / task.num_new if self.ratio == "exact" else task.num_base // task.num_new + task.index - 1
