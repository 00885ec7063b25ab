"""ABD: always be dreaming (Smith et al., 2021). Images of old classes are made out of the previous solver alone.

A generator is trained until the frozen solver takes what it makes for images it knows: sure answers, all classes
equally often, the statistics that its BatchNorm layers have learned, and no noise. What it makes is not real, and a
solver could tell; so new classes are learned among themselves, and against old ones by the head alone.
"""

from dataclasses import replace

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional

from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, OptimizerState, ParameterGroup, Phase, Plan, Step, Term
from etag.data.batches import CodeBatches
from etag.losses.classification import weighted_cross_entropy
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.images import WithReplayed
from etag.methods.parts.inversion import InversionObjective, InversionOptions
from etag.methods.registry import method
from etag.models.initial import build
from etag.models.inversion import BatchNormRecorder, ImageGenerator


class AbdOptions(MethodOptions):
    """ABD's own options."""

    mu: NonNegativeFloat = Field(0.1, description="weight of the features' distillation")
    generator: InversionOptions = InversionOptions()


@method(
    "abd",
    MethodInfo(
        title="ABD",
        color="#56B4E9",
        summary="images of old classes dreamt by inverting the previous solver; features distilled, head balanced",
        source="Smith et al., 2021",
        stores="solver, generator of images and its Adam state; a row per class in the head",
        generator="of images, trained on the frozen solver alone",
    ),
)
class ABD(Method):
    """The solver on real and dreamt images; then the generator, on no images at all."""

    Options = AbdOptions

    def build(self, stream: Stream) -> None:
        """The generator too, and what its optimizer remembers from task to task."""
        super().build(stream)
        c, latent = self.context, self.options.generator.latent
        self.generator = build(lambda: ImageGenerator(c.channels, c.size, latent), stream.generator("generator"))
        self.optimizer_state = OptimizerState()

    def phases(self, task: Task) -> Plan:
        """Solver; after each task but the last, the generator."""
        if task.index:
            phase = self.solver_phase(task, self.terms(task))
            yield replace(phase, batches=WithReplayed(phase.batches, lambda batch: self.replayed(task, batch)))
        else:
            yield self.solver_phase(task, [self.classification(task)])
        if task.seen < self.context.classes:
            yield self.inversion(task)

    def terms(self, task: Task) -> list[Term]:
        """After the base task. Real images are those of new classes."""
        o, head, teacher = self.options, self.solver.head, require(self.teacher)
        share = torch.full((task.seen,), 1 - task.old / task.seen, device=self.context.placement.device)
        share[: task.old] = task.old / task.seen

        def local(step: Step) -> Tensor:
            """New classes among themselves."""
            labels, logits = step.batch.labels, require(step.student.logits)
            real = labels >= task.old
            weights = torch.where(real, share[labels], 0.0) * (len(labels) / real.sum())
            return weighted_cross_entropy(logits, labels.clamp(min=task.old), weights, task.old, task.seen)

        def balanced(step: Step) -> Tensor:
            """All classes, by the head alone."""
            labels, logits = step.batch.labels, head(require(step.student.feature).detach())
            return weighted_cross_entropy(logits, labels, share[labels], 0, task.seen)

        def distilled(step: Step) -> Tensor:
            """Features, as far as the old head makes use of them."""
            said = teacher.network.head(require(step.student.feature))
            return functional.mse_loss(said[:, : task.old], require(step.teacher.logits)[:, : task.old])

        return [
            Term("ce", local, student=Need.LOGITS),
            Term("head_ce", balanced, student=Need.FEATURE),
            Term("kd", distilled, o.mu, student=Need.FEATURE, teacher=Need.LOGITS),
        ]

    def inversion(self, task: Task) -> Phase:
        """The generator learns what the solver would take for an image."""
        o, c = self.options.generator, self.context
        training, latent = o.train.for_task(task.index), o.latent
        batches = CodeBatches(training.steps, training.batch_size, latent, self.stream("generator"), c.placement)
        objective = InversionObjective(self.generator, BatchNormRecorder(self.solver), task.seen, o)
        group = ParameterGroup(list(self.generator.parameters()), optimizer_state=self.optimizer_state)
        return Phase("generator", objective, batches, (group,), training)

    @torch.no_grad()
    def made_images(self, rows: int, columns: int) -> Tensor | None:
        """Of any class: the generator is asked for none."""
        if self.seen == self.context.classes:
            return None
        noise = torch.randn(rows * columns, self.generator.latent, generator=self.stream("shown").generator())
        return self.context.preprocess.pixels(self.generator.eval()(noise.to(self.context.placement.device)))

    @torch.no_grad()
    def replayed(self, task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
        """As many images as a batch has, and what the old solver takes them for."""
        images = self.generator.eval()(batch.draws.normal("replay codes", batch.total, self.generator.latent))
        answers = require(require(self.teacher).targets(images, Need.LOGITS).logits)
        return answers[:, : task.old].argmax(1), images

    def parts(self) -> dict[str, nn.Module]:
        """The generator too."""
        learning = {"generator": self.generator, "moments": self.optimizer_state}
        return super().parts() | (learning if self.context.learns else {})
