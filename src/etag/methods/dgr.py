"""DGR: deep generative replay (Shin et al., 2017); and Tag, which is DGR with a guided generator.

The previous generator makes images of old classes, the previous solver labels them, and solver and generator learn
from them together with the new ones: a share 1 / t of each is new at the t-th task. In Tag the solver, trained first
as in DGR, then guides the generator: what is made of a class must be recognized as that class. That is the only
difference.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.scenario import Task
from etag.core.work import Batch, DataPass, Plan
from etag.methods.base import MethodInfo, MethodOptions
from etag.methods.parts.adversarial import AdversarialOptions, AdversarialReplay
from etag.methods.parts.images import PixelHead, Pixels, ReplayMixture, image_replay_term
from etag.methods.parts.replay import ReplayingMethod, generator_by_name
from etag.methods.parts.variational import VariationalOptions, VariationalReplay
from etag.methods.registry import METHODS, method, variant


class ImageVariationalOptions(VariationalOptions):
    """A conditional VAE of images."""

    recon: Literal["gaussian", "squared", "bernoulli"] = "bernoulli"
    latent: PositiveInt = 100
    hidden: PositiveInt = 400
    feature_passes: PositiveInt = Field(1, description="passes over the task whose pixels are kept")


class ImageAdversarialOptions(AdversarialOptions):
    """A conditional Wasserstein GAN of images."""

    latent: PositiveInt = 100
    hidden: PositiveInt = 400
    last_task: bool = True
    feature_passes: PositiveInt = Field(1, description="passes over the task whose pixels are kept")


REPLAYS: dict[str, type[Any]] = {"cvae": VariationalReplay, "wgan": AdversarialReplay}


class DgrOptions(MethodOptions):
    """Options of DGR and Tag."""

    guidance: bool = Field(False, description="let the frozen solver guide the VAE's training: Tag")
    guide_weight: NonNegativeFloat = Field(
        1.0, description="of the guiding cross-entropy, beside the log-likelihood, a sum over all pixels"
    )
    generator: Annotated[ImageVariationalOptions | ImageAdversarialOptions, Field(discriminator="kind")] = Field(
        ImageVariationalOptions(), description="cvae or wgan, by `kind`; a name alone takes its defaults"
    )

    _by_name = field_validator("generator", mode="before")(generator_by_name)


INFO = MethodInfo(
    title="DGR",
    color="#0072B2",
    summary="images of old classes are generated, labeled by the previous solver, and learned again",
    source="Shin et al., 2017",
    stores="solver, generator of images; a row per class in both",
    generator="conditional VAE on images (or a WGAN: generator=wgan)",
)


@method("dgr", INFO)
class DGR(ReplayingMethod):
    """The solver on new and replayed images; then the generator on the same."""

    Options = DgrOptions
    domains = True

    replays: ClassVar[dict[str, type[Any]]] = REPLAYS

    def made_size(self) -> int:
        """Of an image."""
        return self.context.channels * self.context.size**2

    def phases(self, task: Task) -> Plan:
        """Solver, pixels, generator."""
        new = 1 / (task.index + 1)
        head = PixelHead(self.solver, self.context.preprocess, self.context.channels)
        terms = [self.classification(task, weight=new)]
        if task.index:
            terms.append(image_replay_term(task, head, self.replayed(task, head), 1 - new))
        yield self.solver_phase(task, terms)
        o = self.options.generator
        if o.last_task or task.seen < self.context.classes:
            pixels = self.pass_batches("pixels", task.train, augment=o.feature_passes > 1)
            found = yield DataPass("pixels", Pixels(self.context.preprocess), pixels, epochs=o.feature_passes)
            guide = self.options.guidance * self.options.guide_weight
            weights = {"kl": 1.0, "recon": 1.0, "guide": guide, "guide_old": 0.0, "match": 0.0}
            phase = self.replay.phase(task, head, found, weights, self.stream("generator"))
            if task.index:
                phase = replace(phase, batches=ReplayMixture(phase.batches, 1 - new, self.replayed(task, head)))
            yield phase

    @torch.no_grad()
    def made_images(self, rows: int, columns: int) -> Tensor:
        """A class a row, from the first to the last in equal steps."""
        labels = torch.linspace(0, self.seen - 1, rows).long().repeat_interleave(columns)
        noise = torch.randn(len(labels), self.replay.generator.latent, generator=self.stream("shown").generator())
        device, size = self.context.placement.device, (self.context.size,) * 2
        pixels: Tensor = self.replay.generator.decode(noise.to(device), labels.to(device))
        return pixels.view(len(labels), self.context.channels, *size).clamp(0, 1)

    def replayed(self, task: Task, head: PixelHead) -> Callable[[Batch], tuple[Tensor, Tensor]]:
        """What the old generator makes, as many as a batch has rows, with the old solver's answers."""

        @torch.no_grad()
        def make(batch: Batch) -> tuple[Tensor, Tensor]:
            _, pixels = self.replay.made(batch, task, batch.total)
            answers = require(require(self.teacher).targets(head.images(pixels), Need.LOGITS).logits)
            return answers[:, : task.old].argmax(1), pixels

        return make


METHODS.add("tag")(
    variant(
        DGR,
        "tag",
        replace(
            INFO,
            title="Tag",
            color="#D55E00",
            summary="DGR whose generator is guided by the frozen solver",
            source="the eTag paper, Fig. 1b",
        ),
        {"guidance": True},
    )
)
