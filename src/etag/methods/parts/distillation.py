"""Loss terms that keep a solver close to its teacher: logits, features, pooled maps, attention."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from etag.core.outputs import Need, Outputs, require
from etag.core.scenario import Task
from etag.core.work import StepData, Term
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
    """LwF: cross-entropy with the teacher's logits of all old classes, at temperature tau."""

    def compute(step: StepData) -> Tensor:
        student, teacher = require(step.student.logits), require(step.teacher.logits)
        return logit_distillation(student[:, : task.num_old], teacher[:, : task.num_old], tau)

    return Term("kd", compute, weight, student_need=Need.LOGITS, teacher_need=Need.LOGITS)


def features_term(
    name: str, distance: Callable[[Tensor, Tensor], Tensor], weight: float, views: Literal["plain", "all"] = "plain"
) -> Term:
    """A distance between the pooled features of student and teacher, on the images or on all their views."""
    need = Need.FEATURE if views == "plain" else Need.VIEW_FEATURES

    def compute(step: StepData) -> Tensor:
        outputs = (step.student, step.teacher)
        student, teacher = (require(o.feature if views == "plain" else o.view_features) for o in outputs)
        return distance(student, teacher)

    return Term(name, compute, weight, student_need=need, teacher_need=need)


def l2_term(reduction: Literal["mean_norm", "frobenius"], views: Literal["plain", "all"], weight: float) -> Term:
    """Eq. (3): the L2 distance of the features."""
    return features_term("l2", lambda student, teacher: feature_distance(student, teacher, reduction), weight, views)


def cosine_term(name: str, weight: float) -> Term:
    """One minus the cosine of the features: Lucir's less-forget constraint, PODNet's POD-flat."""
    return features_term(name, cosine_distance, weight)


def pod_term(weight: float) -> Term:
    """PODNet's POD-spatial on the maps of all stages, before their activations."""

    def compute(step: StepData) -> Tensor:
        return pod_spatial(step.student.raw_stages, step.teacher.raw_stages)

    return Term("pod_spatial", compute, weight, student_need=Need.STAGES, teacher_need=Need.STAGES)


def attention_term(task: Task, solver: Solver, teacher: Teacher, stage: int, weight: float) -> Term:
    """LwM: distance of the Grad-CAM maps of student and teacher for the old class the student finds likeliest. At the
    last stage the map has a closed form; at stages 1 .. L - 1 it is a gradient, and learning from it takes second-order
    gradients."""
    frozen = solver.backbone.frozen
    last = len(solver.backbone.stages) - frozen  # stages count from the first that trains
    need = Need.LOGITS | Need.STAGES

    def attention(network: Solver, outputs: Outputs, top: Tensor) -> Tensor:
        maps = outputs.stages[stage - 1]
        if stage == last:
            return class_activation_map(maps, network.head.weight[top])
        if maps.requires_grad:  # the student: differentiate its own pass, which will be differentiated again
            logits = require(outputs.logits).gather(1, top[:, None])
            return gradient_activation_map(maps, logits, create_graph=True)
        with torch.enable_grad():
            maps = maps.detach().requires_grad_()
            logits = network.logits_from_stage(maps, stage + frozen).gather(1, top[:, None])
            return gradient_activation_map(maps, logits, create_graph=False).detach()

    def compute(step: StepData) -> Tensor:
        top = require(step.student.logits).detach()[:, : task.num_old].argmax(1)
        student = attention(solver, step.student, top)
        return attention_distance(student, attention(teacher.network, step.teacher, top))

    return Term("attention", compute, weight, student_need=need, teacher_need=need, second_order=stage != last)
