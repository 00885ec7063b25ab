"""How much every weight of the backbone matters to what was learned: EWC and MAS."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from etag.core.options import Options
from etag.core.outputs import Need, require
from etag.core.random import Stream
from etag.core.scenario import Task
from etag.core.work import Batch, DataPass, Plan, Step, Term, Terms
from etag.data.batches import ImageBatches
from etag.losses.regularization import quadratic_penalty
from etag.methods.base import Context, Method
from etag.models.modules import StoredTensors
from etag.models.solver import Solver, Teacher

CHUNK = 16  # images whose own gradients are held at a time

# of logits, labels and uniform draws: one number an image, whose gradient tells what matters
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]


class ImportanceOptions(Options):
    """How importances are measured and put together."""

    gradients: Literal["sample", "batch"] = Field(
        "sample",
        description="of every image, as defined; or FACIL's shortcut, the gradient of a batch's mean, which depends "
        "on the size of the batch (and is taken per process)",
    )
    images: PositiveInt | None = Field(None, description="images of the task that are looked at; None is all")
    alpha: float | Literal["classes"] = Field(
        0.5, description="share of the old importances when new ones come in; `classes`: that of the old classes"
    )


class Importance(StoredTensors):
    """One number for every parameter of the backbone, in one vector."""

    values: Tensor

    def __init__(self, options: ImportanceOptions, power: Literal[1, 2], measure: Measure) -> None:
        super().__init__()
        self.options, self._power, self._measure = options, power, measure
        self.keep(values=torch.empty(0))

    def data_pass(self, task: Task, solver: Solver, context: Context, stream: Stream) -> DataPass:
        """A pass over images of the task that sums up absolute or squared gradients."""
        images = task.train
        if self.options.images is not None:
            order = torch.randperm(len(images), generator=stream.generator("images"))
            images = images.select(order[: self.options.images].sort().values)
        size = context.train.for_task(task.index).batch_size
        batches = ImageBatches(
            images, context.preprocess, size, stream, context.placement, augment=False, shuffle=False
        )
        module = _Gradients(solver, self._measure, self._power, self.options.gradients)
        return DataPass("importance", module, batches, reduce="sum", gradients=True)

    def learn(self, task: Task, found: dict[str, Tensor]) -> None:
        """Put the task's importances together with the older ones. The first are taken as they are: there is nothing
        to put them together with."""
        new = found["importance"] / found["images"]
        alpha = task.old / task.seen if self.options.alpha == "classes" else self.options.alpha
        self.keep(values=alpha * self.values + (1 - alpha) * new if task.index else new)

    def term(self, solver: Solver, teacher: Teacher, weight: float) -> Term:
        """The penalty on leaving the weights of the last task."""
        anchor = flat(teacher.network.backbone.parameters())

        def compute(_: Step) -> Tensor:
            weights = flat(solver.backbone.parameters())
            return quadratic_penalty(weights, anchor, self.values)

        return Term("penalty", compute, weight)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in one vector, in the order of their indices, however they lie in memory."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class PenalisedMethod(Method):
    """Base of EWC and MAS: cross-entropy of the new head, and a penalty on moving what matters in the backbone."""

    @abstractmethod
    def new_importance(self) -> Importance:
        """Empty, but knowing how to measure."""

    def build(self, stream: Stream) -> None:
        """Importances too, still empty."""
        super().build(stream)
        self.importance = self.new_importance()

    def phases(self, task: Task) -> Plan:
        """The solver, then its importances."""
        terms = [self.classification(task)]
        if task.index:
            terms.append(self.importance.term(self.solver, require(self.teacher), self.options.weight))
        yield self.solver_phase(task, terms)
        data_pass = self.importance.data_pass(task, self.solver, self.context, self.stream("importance"))
        self.importance.learn(task, (yield data_pass))

    def parts(self) -> dict[str, nn.Module]:
        """The importances too."""
        return super().parts() | {"importance": self.importance}


class _Gradients(nn.Module):
    """Sums of gradients, absolute (power 1) or squared, over the images of a batch."""

    def __init__(self, solver: Solver, measure: Measure, power: int, kind: Literal["sample", "batch"]) -> None:
        super().__init__()
        self.solver, self._measure, self._power, self._kind = solver, measure, power, kind

    def forward(self, batch: Batch) -> Terms:
        # in full precision: squares of small gradients would vanish
        with torch.autocast(batch.inputs.device.type, enabled=False):
            return self._sums(batch)

    def _sums(self, batch: Batch) -> Terms:
        named = self.solver.backbone.named_parameters()
        weights: dict[str, Tensor] = {name: weight.detach() for name, weight in named}
        uniform = batch.draws.uniform("sampled labels", batch.total)

        def measured(weights: dict[str, Tensor], images: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
            given = {f"backbone.{name}": weight for name, weight in weights.items()}
            outputs = functional_call(self.solver, given, (images, Need.LOGITS))
            return self._measure(require(outputs.logits), labels, uniform).mean()

        def of_one(weights: dict[str, Tensor], *row: Tensor) -> Tensor:
            return measured(weights, *(value[None] for value in row))

        rows = (batch.inputs, batch.labels, uniform)
        if not len(batch.labels):  # another process has the rest of a short last batch
            summed = [torch.zeros_like(weight) for weight in weights.values()]
        elif self._kind == "sample":
            own = vmap(grad(of_one), in_dims=(None, 0, 0, 0), chunk_size=CHUNK)(weights, *rows)
            summed = [gradient.abs().pow(self._power).sum(0) for gradient in own.values()]
        else:
            mean = grad(measured)(weights, *rows)
            summed = [len(batch.labels) * gradient.abs().pow(self._power) for gradient in mean.values()]
        count = torch.tensor(float(len(batch.labels)), device=batch.labels.device)
        return {"importance": flat(summed), "images": count}


def log_likelihood(labels_from: Literal["argmax", "true", "multinomial"]) -> Measure:
    """EWC's measure: the log-likelihood of a label that is the likeliest, the true one, or drawn from the outputs."""

    def measure(logits: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
        if labels_from == "argmax":
            labels = logits.detach().argmax(1)
        elif labels_from == "multinomial":  # one a row: where the running sum of probabilities passes the draw
            labels = (logits.detach().softmax(1).cumsum(1) < uniform[:, None]).sum(1).clamp(max=logits.shape[1] - 1)
        return functional.cross_entropy(logits, labels, reduction="none")

    return measure


def output_norm(logits: Tensor, _: Tensor, __: Tensor) -> Tensor:
    """MAS's measure: the length of the vector of all logits."""
    norms: Tensor = torch.linalg.vector_norm(logits, dim=1)
    return norms
