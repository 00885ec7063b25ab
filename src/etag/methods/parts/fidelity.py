"""Choices by which the authors' release differs from the paper, in one group of options."""

from typing import Literal

from pydantic import Field, PositiveFloat

from etag.core.options import Options
from etag.core.scenario import Task


class FidelityOptions(Options):
    """Paper or release: every default is the paper's reading (docs/fidelity.md), recipes/code has the release's."""

    ratio: Literal["exact", "integer"] = Field(
        "exact", description="lambda of Eqs. (5), (9), (10): m_old / m_new, or the release's base // new + task - 1"
    )
    normalize_ce: bool = Field(False, description="divide Eq. (5) by 1 + lambda, as the release does")
    ce_new: Literal["seen", "new", "all"] = Field(
        "seen",
        description="classes in the cross-entropy on new images; new: the paper's letter, all: the release",
    )
    ce_replay: Literal["seen", "old", "all"] = Field(
        "seen",
        description="classes in the cross-entropy on generated features; old: Eq. (5), all: the release",
    )
    argmax: Literal["seen", "all"] = Field(
        "seen", description="classes that compete in a prediction; all includes unseen outputs of a fixed head"
    )
    l2_reduction: Literal["mean_norm", "frobenius"] = Field(
        "mean_norm", description="Eq. (3): mean over images of the norm, or the release's one norm of the whole batch"
    )
    l2_views: Literal["plain", "all"] = Field(
        "plain", description="Eq. (3) on the images, or on all their views as in the release"
    )
    aux_classes: Literal["base", "all"] = Field(
        "base", description="outputs of the auxiliary classifiers: the base classes, or all classes from the start"
    )
    aux_batch_norm: Literal["images", "views"] = Field(
        "images",
        description="BatchNorm statistics of the backbone follow the images, or all views as in the release (methods "
        "that use stage maps always take the images, those whose own terms use all views always the views)",
    )
    reconstruction: Literal["half", "whole"] = Field(
        "half", description="Eq. (6): half the squared error (unit Gaussian), or the release's whole squared error"
    )
    guide_input: Literal["prior", "reconstruction"] = Field(
        "prior", description="what the classifier guides: samples from the prior (Eq. 6), or reconstructions"
    )
    guide_classes: Literal["seen", "new", "all"] = Field(
        "seen", description="classes in the guiding cross-entropy; new is Eq. (6) to the letter, all the release"
    )
    guide_weight: Literal["one", "normalized"] = Field(
        "one", description="weight of the guidance: 1, or the release's 1 / (1 + lambda) after the base task"
    )
    guide_old: bool = Field(
        False, description="guide generated features of old classes too, with weight lambda / (1 + lambda)"
    )
    match_reduction: Literal["mean", "batch_sum"] = Field(
        "mean", description="Eq. (7): mean over features, or the release's squared error summed over the batch"
    )
    match_factor: PositiveFloat = Field(1.0, description="factor on lambda_vae in Eq. (10); 1e-3 in the release")

    def class_ratio(self, task: Task) -> float:
        """Old classes per new class: lambda of Eqs. (5), (9) and (10); 0 at the base task."""
        return task.old / task.new if self.ratio == "exact" else task.base // task.new + task.index - 1
