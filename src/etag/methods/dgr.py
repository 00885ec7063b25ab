"""DGR: deep generative replay (Shin et al., 2017); and Tag, which is DGR with a guided generator.

The previous generator creates images of old classes and the previous solver labels them. Solver and generator learn
from them together with the new images, whose weight is 1 / t at the t-th task. In Tag the solver, trained first as in
DGR, then guides the generator: an image generated for a class must be recognized as that class. That is the only
difference.
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator
from torch import Tensor

from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, DataPass, Plan
from etag.methods.base import Method, MethodInfo, MethodOptions
from etag.methods.parts.adversarial import AdversarialOptions
from etag.methods.parts.cached_features import CachedFeatures
from etag.methods.parts.fidelity import FidelityOptions
from etag.methods.parts.generators import options_by_kind
from etag.methods.parts.images import PixelClassifier, Pixels, Replay, WithReplay, image_replay_term, replace_share
from etag.methods.parts.variational import VariationalOptions
from etag.methods.registry import METHODS, method, variant


class ImageVariationalOptions(VariationalOptions):
    """A conditional VAE of images."""

    latent: PositiveInt = Field(100, description="size of the latent code")
    hidden: PositiveInt = Field(400, description="width of the hidden layers")
    feature_passes: PositiveInt = Field(1, description="passes over the task's images whose pixels are cached")


class ImageAdversarialOptions(AdversarialOptions):
    """A conditional Wasserstein GAN of images."""

    latent: PositiveInt = Field(100, description="size of the latent code")
    hidden: PositiveInt = Field(400, description="width of the hidden layers")
    last_task: bool = Field(True, description="train the generator in the last task too")
    feature_passes: PositiveInt = Field(1, description="passes over the task's images whose pixels are cached")


class DgrOptions(MethodOptions):
    """Options of DGR and Tag."""

    head_growths: ClassVar[tuple[str, ...]] = ("growing", "fixed")
    guidance: bool = Field(False, description="the frozen solver guides the VAE's training: Tag")
    guide_weight: NonNegativeFloat = Field(1.0, description="weight of the guiding cross-entropy")
    guide_input: Literal["prior", "reconstruction"] = Field(
        "prior", description="guide samples from the prior, or reconstructions"
    )
    generator: Annotated[ImageVariationalOptions | ImageAdversarialOptions, Field(discriminator="kind")] = Field(
        ImageVariationalOptions(), description="cvae or wgan, by `kind` or by name alone"
    )

    _by_kind = field_validator("generator", mode="before")(options_by_kind("cvae"))


INFO = MethodInfo(
    title="DGR",
    color="#0072B2",
    summary="images of old classes are generated, labeled by the previous solver, and learned again",
    source="Shin et al., 2017",
    stores="solver, generator of images; one row per class in both",
    generator="conditional VAE on images (or a WGAN: generator=wgan)",
)


@method("dgr", INFO)
class DGR(Method[DgrOptions]):
    """The solver on new and replayed images; then the generator on the same."""

    Options = DgrOptions
    learns_domains = True

    def build(self, stream: Stream) -> None:
        """Solver and generator of pixels."""
        super().build(stream)
        c, o = self.context, self.options.generator
        fidelity = FidelityOptions(guide_input=self.options.guide_input)
        self.image_generator = o.create(c.channels * c.size**2, stream, c.placement, fidelity, pixels=True)
        self.add_generator(self.image_generator)

    def phases(self, task: Task) -> Plan:
        """Train the solver; collect pixels; train the generator."""
        new_weight = 1 / (task.index + 1)
        head = PixelClassifier(self.solver, self.context.preprocess, self.context.channels)
        terms = [self.cross_entropy(task, weight=new_weight)]
        if task.index:
            terms.append(image_replay_term(task, head, self.replay(task, head), 1 - new_weight))
        yield self.solver_phase(task, terms)
        generator = self.image_generator
        if not generator.trains_in(task, self.context.classes):
            return
        batches = self.pass_batches("pixels", task.train, augment=generator.augmented_passes > 1)
        result = yield DataPass("pixels", Pixels(self.context.preprocess), batches, epochs=generator.augmented_passes)
        pixels, weights = CachedFeatures.from_pass(result, len(task.train)), {"kl": 1.0, "recon": 1.0}
        weights["guide"] = self.options.guidance * self.options.guide_weight
        phase = generator.phase(task, pixels, weights, head, self.stream("generator"))
        if task.index:
            phase = replace(
                phase, batches=WithReplay(phase.batches, self.replay(task, head), replace_share(1 - new_weight))
            )
        yield phase

    def replay(self, task: Task, head: PixelClassifier) -> Replay:
        """The old generator's images, as many as a batch has rows, labeled by the old solver."""

        @torch.no_grad()
        def replay(batch: Batch) -> tuple[Tensor, Tensor]:
            _, pixels = self.image_generator.replay(batch, task, batch.total)
            logits = require(require(self.teacher).targets(head.images(pixels), Need.LOGITS).logits)
            return logits[:, : task.num_old].argmax(1), pixels

        return replay

    @property
    def cannot_continue_after_run(self) -> bool:
        """Whether the generator is not trained after the last task."""
        return not self.image_generator.trains_in_last_task

    @torch.no_grad()
    def generate_images(self, rows: int, columns: int) -> Tensor | None:
        """One class per row, from the first to the last in equal steps."""
        labels = torch.linspace(0, self.seen - 1, rows).long().repeat_interleave(columns)
        network, c = self.image_generator.network, self.context
        noise = torch.randn(len(labels), network.latent, generator=self.stream("generated images").torch_generator())
        pixels: Tensor = network.decode(noise.to(c.placement.device), labels.to(c.placement.device))
        return pixels.view(len(labels), c.channels, c.size, c.size).clamp(0, 1)


METHODS.add("tag")(
    variant(
        DGR,
        "tag",
        replace(
            INFO,
            title="Tag",
            summary="DGR whose generator is guided by the frozen solver",
            source="the eTag paper, Fig. 1b",
            color="#D55E00",
        ),
        {"guidance": True},
    )
)
