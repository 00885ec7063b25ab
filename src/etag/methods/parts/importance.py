"""How important each backbone weight is for what was learned: EWC and MAS."""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from etag.core.options import Options
from etag.core.outputs import Need, require
from etag.core.scenario import ImageSet, Task
from etag.core.work import Batch, DataPass, Plan, StepData, Term, Terms
from etag.data.batches import ImageBatches
from etag.losses.distillation import quadratic_penalty
from etag.models.modules import StoredTensors, without_tracking
from etag.models.solver import Solver, Teacher

CHUNK = 16  # images whose own gradients are held in memory at a time

# (logits, labels, uniform draws) -> one number per image, whose gradient measures importance
ImportanceScore = Callable[[Tensor, Tensor, Tensor], Tensor]


class ImportanceOptions(Options):
    """How importances are measured and combined."""

    estimator: Literal["survey", "images"] = Field(
        "survey",
        description="survey: as in the FACIL code base, to which the default weights of the penalties belong: of the "
        "mean over a batch, BatchNorm in training mode, and importances of the base task halved. images: of each "
        "image, as the methods are defined; these importances are usually many times as large",
    )
    alpha: float = Field(0.5, description="weight of the old importances when new ones are added")


class Importance(StoredTensors):
    """One number for each parameter of the backbone, in one vector."""

    values: Tensor

    def __init__(self, options: ImportanceOptions, power: Literal[1, 2], score: ImportanceScore) -> None:
        super().__init__()
        self.options, self._power, self._score = options, power, score
        self.store(values=torch.empty(0))

    def measure_task(self, task: Task, solver: Solver, batches: Callable[[ImageSet], ImageBatches]) -> Plan:
        """Sum up absolute or squared gradients over the task's images, and add them to the importances."""
        module, images = _Gradients(solver, self._score, self._power, self.options.estimator), batches(task.train)
        if self.options.estimator == "survey":  # the gradient of the mean of a share of a batch is another one
            images = images.unshared()
        sums = yield DataPass("importance", module, images, reduce="sum", gradients=True)
        self.add_task(task, sums)

    def add_task(self, task: Task, sums: dict[str, Tensor]) -> None:
        """Combine the task's importances with the older ones. Before the first task these are zero in the survey's
        code; by definition there are none."""
        new, alpha = sums["importance"] / sums["images"], self.options.alpha
        if task.index:
            new = alpha * self.values + (1 - alpha) * new
        elif self.options.estimator == "survey":
            new = (1 - alpha) * new
        self.store(values=new)

    def penalty(self, solver: Solver, teacher: Teacher, weight: float) -> Term:
        """The penalty on moving away from the weights of the previous task."""
        anchor = flat(teacher.network.backbone.parameters())

        def compute(_: StepData) -> Tensor:
            return quadratic_penalty(flat(solver.backbone.parameters()), anchor, self.values)

        return Term("penalty", compute, weight)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in one vector, in the order of their indices, whatever their memory layout."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class _Gradients(nn.Module):
    """Sums of gradients, absolute (power 1) or squared (power 2), over the images of a batch."""

    def __init__(
        self, solver: Solver, score: ImportanceScore, power: int, estimator: Literal["survey", "images"]
    ) -> None:
        super().__init__()
        self.solver, self._score, self._power, self._of_images = solver, score, power, estimator == "images"

    def forward(self, batch: Batch) -> Terms:
        # in full precision: squares of small gradients would vanish
        with torch.autocast(batch.inputs.device.type, enabled=False), without_tracking(self.solver):
            self.solver.train(not self._of_images and len(batch.labels) > 1)  # one image has no batch statistics
            sums = self._sums(batch)
            self.solver.eval()
            return sums

    def _sums(self, batch: Batch) -> Terms:
        named = self.solver.backbone.named_parameters()
        weights: dict[str, Tensor] = {name: weight.detach() for name, weight in named}
        uniform = batch.draws.uniform("sampled labels", batch.total)

        def measured(weights: dict[str, Tensor], images: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
            replaced = {f"backbone.{name}": weight for name, weight in weights.items()}
            outputs = functional_call(self.solver, replaced, (images, Need.LOGITS))
            return self._score(require(outputs.logits), labels, uniform).mean()

        def of_one(weights: dict[str, Tensor], *row: Tensor) -> Tensor:
            return measured(weights, *(value[None] for value in row))

        rows = (batch.inputs, batch.labels, uniform)
        if not len(batch.labels):  # other processes have the rest of a short last batch
            sums = [torch.zeros_like(weight) for weight in weights.values()]
        elif self._of_images:
            own = vmap(grad(of_one), in_dims=(None, 0, 0, 0), chunk_size=CHUNK)(weights, *rows)
            sums = [gradient.abs().pow(self._power).sum(0) for gradient in own.values()]
        else:
            mean = grad(measured)(weights, *rows)
            sums = [len(batch.labels) * gradient.abs().pow(self._power) for gradient in mean.values()]
        count = torch.tensor(float(len(batch.labels)), device=batch.labels.device)
        return {"importance": flat(sums), "images": count}


def log_likelihood(labels_from: Literal["argmax", "true", "multinomial"]) -> ImportanceScore:
    """EWC: minus the log-likelihood of a label, which is the likeliest, the true one, or drawn from the outputs."""

    def score(logits: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
        if labels_from == "argmax":
            labels = logits.detach().argmax(1)
        elif labels_from == "multinomial":  # the class at which the cumulative probability passes the draw
            labels = (logits.detach().softmax(1).cumsum(1) < uniform[:, None]).sum(1).clamp(max=logits.shape[1] - 1)
        return functional.cross_entropy(logits, labels, reduction="none")

    return score


def output_norm(logits: Tensor, _: Tensor, __: Tensor) -> Tensor:
    """MAS: the L2 norm of all logits (not squared)."""
    norms: Tensor = torch.linalg.vector_norm(logits, dim=1)
    return norms
