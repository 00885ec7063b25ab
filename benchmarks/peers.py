"""Fine-tuning, EWC, LwF and Lucir as we train them, against a loop as the usual libraries have it.

    OMP_NUM_THREADS=1 python benchmarks/peers.py [--methods fine ewc lwf lucir] [--precision auto]
                                                 [--batch 128] [--images 512] [--rounds 5]

The other side is ResNet-32 in NCHW order, in float32, on a DataLoader that transforms one image at a time, with the
same losses and optimizer. First both look at the same images with the same weights: their losses must agree to 1e-4 in
float32. Then epochs alternate, in a process for each side: ours computes as `etag run` does, in the precision that is
asked for and with freed memory reused, which is a setting of the whole process. Run it while nothing else runs.
"""

import argparse
from collections.abc import Callable
from copy import deepcopy
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from engine_overhead import MEAN, STD
from etag.core.memory import reuse_freed_memory
from etag.core.options import TrainOptions
from etag.core.random import Draws, Placement, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, Phase
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess
from etag.learner.learner import Learner
from etag.methods.base import AnyMethod, Context
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions
from exact_mode import Block, Images, disturbed
from measure import alternate_processes, conditions, engine, parser, print_table, row

OPTIONS = {"lucir": {"imprint": False, "exemplars": {"per_class": 20}}}
TRAINING = TrainOptions(epochs=1, optimizer="sgd", lr=0.01, schedule="constant")


# -- the usual loop ---------------------------------------------------------------------------------


class SignedBlock(Block):
    """The last block of Lucir's network has no ReLU at its end."""

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))) + self.downsample(x)


class Network(nn.Module):
    """ResNet-32 with linear heads, one per task, or with scaled cosines."""

    def __init__(self, tasks: list[int], cosine: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        for before, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            layers += [Block(before, width, stride), *(Block(width, width, 1) for _ in range(4))]
        if cosine:
            layers[-1] = SignedBlock(64, 64, 1)
        self.body = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Linear(64, classes, bias=not cosine) for classes in tasks)
        self.scale = nn.Parameter(torch.tensor(1.0)) if cosine else None

    def features(self, images: Tensor) -> Tensor:
        return self.body(images).mean((2, 3))

    def cosines(self, features: Tensor) -> Tensor:
        weight = torch.cat([head.weight for head in self.heads])
        return functional.normalize(features) @ functional.normalize(weight).T

    def classify(self, features: Tensor) -> Tensor:
        if self.scale is not None:
            return self.scale * self.cosines(features)
        return torch.cat([head(features) for head in self.heads], 1)


def copied(ours, tasks: list[int], cosine: bool) -> Network:
    """The plain network with our weights: they come in the same order."""
    plain = Network(tasks, cosine)
    named = ours.head.state_dict()
    heads = [value for name, value in named.items() if name != "scale"]
    with torch.no_grad():
        for own, value in zip(plain.body.state_dict().values(), ours.backbone.state_dict().values(), strict=True):
            own.copy_(value)
        for own, value in zip(plain.heads.state_dict().values(), heads, strict=True):
            own.copy_(value)
        if plain.scale is not None:
            plain.scale.copy_(named["scale"])
    return plain


class Plain:
    """A task as a script would learn it."""

    def __init__(self, method: AnyMethod, task: Task, images: MemoryImages, training: TrainOptions) -> None:
        self.method, self.task, self.o = method.name, task, method.options
        tasks, cosine = list(method.task_sizes), method.name == "lucir"
        self.network = copied(method.solver, tasks, cosine)
        if task.index:
            self.old = copied(method.teacher.network, tasks[:-1], cosine).eval().requires_grad_(False)
        if method.name == "ewc" and task.index:
            parameters = list(self.network.body.parameters())
            sizes = [parameter.numel() for parameter in parameters]
            pieces = method.importance.values.split(sizes)
            self.importance = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        self.loader = DataLoader(
            Images(images.pixels, images.labels), training.batch_size, shuffle=True, drop_last=True
        )
        trained = [*self.network.body.parameters()]
        shared = method.name == "fine"  # the others leave the heads of old tasks as they are
        trained += [p for head in self.network.heads[0 if shared else -1 :] for p in head.parameters()]
        trained += [] if self.network.scale is None else [self.network.scale]
        self.optimizer = torch.optim.SGD(trained, training.lr, training.momentum, weight_decay=training.weight_decay)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        task, network = self.task, self.network
        features = network.features(images)
        logits = network.classify(features)
        if self.method in ("fine", "lucir"):
            loss = functional.cross_entropy(logits, labels)
        else:
            loss = functional.cross_entropy(logits[:, task.num_old :], labels - task.num_old)
        if task.index and self.method == "lwf":
            with torch.no_grad():
                target = (self.old.classify(self.old.features(images)) / self.o.tau).softmax(1)
            loss = loss + self.o.weight * functional.cross_entropy(logits[:, : task.num_old] / self.o.tau, target)
        if task.index and self.method == "ewc":
            moved = zip(self.importance, network.body.parameters(), self.old.body.parameters(), strict=True)
            loss = loss + self.o.weight * sum((f * (new - old).pow(2)).sum() / 2 for f, new, old in moved)
        if task.index and self.method == "lucir":
            with torch.no_grad():
                before = self.old.features(images)
            weight = self.o.weight * (task.num_old / task.num_new) ** 0.5
            loss = loss + weight * (1 - functional.cosine_similarity(features, before)).mean()
            cosines, rows = network.cosines(features), (labels < task.num_old).nonzero().flatten()
            if len(rows):
                hard = cosines[rows, task.num_old :].topk(self.o.hardest, 1).values
                own = cosines[rows, labels[rows]][:, None]
                loss = loss + self.o.ranking_weight * (self.o.margin - own + hard).clamp(min=0).mean()
        return loss

    def epoch(self) -> None:
        self.network.train()
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            self.loss(images, labels).backward()
            self.optimizer.step()


# -- the comparison ---------------------------------------------------------------------------------


def prepared(name: str, begun: int, images: int, training: TrainOptions) -> tuple[AnyMethod, Task, Phase]:
    """A method at its first or second task: 10 classes, 10 more, random images; and its solver phase."""
    pixels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    base, new = (MemoryImages(pixels, first + torch.arange(images) % 10) for first in (0, 10))
    tasks = [Task(0, 0, 10, base, base, num_base=10), Task(1, 10, 10, new, new, num_base=10)]
    preprocess = Preprocess(MEAN, STD, 32, flip=True)
    model = ModelOptions(backbone="resnet32")
    context = Context(3, 32, 20, Stream.root(0), Placement(), model, training, preprocess)
    cls = METHODS[name]
    method = cls(
        cls.Options.model_validate({"name": name} | cls.Options.changed_defaults | OPTIONS.get(name, {})), context
    )
    if begun:
        Learner(method, engine().runtime).train(tasks[0])
    method.begin_task(tasks[begun])
    disturbed(method.solver)
    return method, tasks[begun], next(method.phases(tasks[begun]))


def difference(method: AnyMethod, phase: Phase, plain: Plain, images: MemoryImages) -> float:
    """How far the losses of the same images are apart, relative to their size; statistics are frozen."""
    rows = torch.linspace(0, len(images) - 1, 64).long()
    inputs, labels = method.context.preprocess.centered(images.pixels[rows]), images.labels[rows]
    phase.module.eval()
    plain.network.eval()
    ours = sum(phase.module(Batch(inputs, labels, Draws(Stream.root(7)), len(rows))).values())
    reference = plain.loss(inputs.contiguous(), labels)
    return abs(ours.item() - reference.item()) / abs(reference.item())


def sides(name: str, begun: int, options: argparse.Namespace) -> tuple[AnyMethod, Phase, Plain, MemoryImages]:
    """A method at a task, its phase, the usual loop with the same weights, and the images of both."""
    training = TRAINING.model_copy(update={"batch_size": options.batch})
    method, task, phase = prepared(name, begun, options.images, training)
    images = task.train if method.memory is None else method.memory.joined_to(task.train)
    return method, phase, Plain(method, task, images, training), images


def epoch(side: str, name: str, begun: int, options: argparse.Namespace) -> Callable[[], None]:
    """One epoch of a side, as a function to call, which begins with the same weights every time."""
    if side == "etag":
        reuse_freed_memory()  # as every run does
    method, phase, plain, _ = sides(name, begun, options)
    ours = engine(precision=options.precision)
    network, run = (plain.network, plain.epoch) if side == "usual" else (method.solver, lambda: ours.train(phase))
    start = deepcopy(network.state_dict())

    def work() -> None:
        network.load_state_dict(start)
        run()

    return work


def main() -> None:
    arguments = parser(__doc__, batch=128, images=512, rounds=5)
    arguments.add_argument("--methods", nargs="+", default=["fine", "ewc", "lwf", "lucir"])
    arguments.add_argument("--precision", default="auto")
    options = arguments.parse_args()
    precision = engine(precision=options.precision).runtime.options.precision
    rows = []
    for name, begun in product(options.methods, (0, 1)):
        method, phase, plain, images = sides(name, begun, options)
        apart = difference(method, phase, plain, images)
        assert apart < 1e-4, f"{name}: the losses differ by {apart:.1e}"
        times = alternate_processes(epoch, ("usual", "etag"), options.rounds, name, begun, options)
        task = "later task" if begun else "base task"
        setting = f"{name}, {task}, batch {options.batch}, etag in {precision}, {conditions(options)}"
        cells = row(setting, times, len(phase.batches) * options.batch)
        rows.append(cells | {"losses differ by": f"{apart:.0e}"})
    print_table(rows)


if __name__ == "__main__":
    main()
