"""Terms by which a solver takes over what its teacher says."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from etag.core.outputs import Need, Outputs, require
from etag.core.scenario import Task
from etag.core.work import Step, Term
from etag.losses.distillation import (
    attention_distance,
    class_activation_map,
    cosine_distance,
    gradient_activation_map,
    logit_distillation,
    pod_spatial,
)
from etag.losses.embedding import feature_distance
from etag.models.solver import Solver, Teacher


def logits_term(task: Task, tau: float, weight: float) -> Term:
    """LwF's: the outputs of old classes, all heads' together."""

    def compute(step: Step) -> Tensor:
        student, teacher = require(step.student.logits), require(step.teacher.logits)
        return logit_distillation(student[:, : task.old], teacher[:, : task.old], tau)

    return Term("kd", compute, weight, student=Need.LOGITS, teacher=Need.LOGITS)


def features_term(
    name: str, distance: Callable[[Tensor, Tensor], Tensor], weight: float, views: Literal["plain", "all"] = "plain"
) -> Term:
    """A distance of the pooled features, of the images or of all their views."""
    need = Need.FEATURE if views == "plain" else Need.VIEW_FEATURES

    def compute(step: Step) -> Tensor:
        said = (step.student, step.teacher)
        student, teacher = (require(s.feature if views == "plain" else s.view_features) for s in said)
        return distance(student, teacher)

    return Term(name, compute, weight, student=need, teacher=need)


def l2_term(reduction: Literal["mean_norm", "frobenius"], views: Literal["plain", "all"], weight: float) -> Term:
    """Eq. (3)."""
    return features_term("l2", lambda student, teacher: feature_distance(student, teacher, reduction), weight, views)


def cosine_term(name: str, weight: float) -> Term:
    """Lucir's less-forget constraint; PODNet's POD-flat."""
    return features_term(name, cosine_distance, weight)


def pod_term(weight: float) -> Term:
    """PODNet's POD-spatial, of every stage's map before its activation."""

    def compute(step: Step) -> Tensor:
        return pod_spatial(step.student.raw_stages, step.teacher.raw_stages)

    return Term("pod_spatial", compute, weight, student=Need.STAGES, teacher=Need.STAGES)


def attention_term(task: Task, solver: Solver, teacher: Teacher, stage: int, weight: float) -> Term:
    """LwM's: where student and teacher look for one and the same old class, the student's likeliest of them.

    At the last stage the map is known in closed form; at another one (1 .. L - 1) it is a gradient, and to learn from
    it takes second-order gradients.
    """
    last = len(solver.backbone.stages)
    need = Need.LOGITS | Need.STAGES

    def attention(network: Solver, said: Outputs, top: Tensor) -> Tensor:
        maps = said.stages[stage - 1]
        if stage == last:
            return class_activation_map(maps, network.head.weight[top])
        if maps.requires_grad:  # the student in training: its own pass is differentiated, once more later
            logits = require(said.logits).gather(1, top[:, None])
            return gradient_activation_map(maps, logits, create_graph=True)
        with torch.enable_grad():
            maps = maps.detach().requires_grad_()
            logits = network.classify(maps, stage).gather(1, top[:, None])
            return gradient_activation_map(maps, logits, create_graph=False).detach()

    def compute(step: Step) -> Tensor:
        top = require(step.student.logits).detach()[:, : task.old].argmax(1)
        student = attention(solver, step.student, top)
        return attention_distance(student, attention(teacher.network, step.teacher, top))

    return Term("attention", compute, weight, student=need, teacher=need, second_order=stage != last)
