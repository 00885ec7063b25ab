"""What the engine costs: an epoch of eTag's solver phase, against a bare loop that does the same arithmetic.

    OMP_NUM_THREADS=1 python benchmarks/engine_overhead.py [--width 16] [--size 32] [--precision auto] [--rounds 7]

Both train the same network on the same images with the same batch, augmentation, losses, optimizer and precision
(Eq. 9, task t >= 1). Epochs alternate. Run it while nothing else runs.
"""

from copy import deepcopy

import torch
from torch.nn import functional

from etag.core.options import TrainOptions
from etag.core.random import Placement, Stream
from etag.core.scenario import Task
from etag.data.images import MemoryImages
from etag.data.preprocess import Preprocess, random_crop
from etag.engine.engine import Engine
from etag.methods.base import Context
from etag.methods.etag import ETag, EtagOptions
from etag.models.backbone import ModelOptions
from measure import alternate, conditions, engine, parser, print_table, row

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
TAU = 3.0
HERE = Placement()


def second_task(
    images: int, size: int, batch: int, width: int, begun: int = 2, placement: Placement = HERE
) -> tuple[ETag, list[Task]]:
    """eTag at the beginning of its second task (or its first), and the tasks: 10 classes, 5 more, random images."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=generator)
    base = MemoryImages(pixels, torch.arange(images) % 10)
    new = MemoryImages(pixels, 10 + torch.arange(images) % 5)
    context = Context(
        channels=3,
        size=size,
        classes=15,
        stream=Stream.root(0),
        placement=placement,
        model=ModelOptions(width=width),
        train=TrainOptions(epochs=1, batch_size=batch),
        preprocess=Preprocess(MEAN, STD, size, flip=True),
    )
    method = ETag(EtagOptions(name="etag"), context)
    tasks = [Task(0, 0, 10, base, base, num_base=10), Task(1, 10, 5, new, new, num_base=10)]
    for task in tasks[:begun]:
        method.begin_task(task)
    return method, tasks[:begun]


def bare_epoch(method: ETag, task: Task, batch: int, used: Engine) -> None:
    """The same epoch as one would write it in a script."""
    solver, teacher = method.solver, method.teacher.network
    decoder = method.generator.old.network
    solver.train()
    for part in solver.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eval()
    optimizer = torch.optim.Adam(solver.parameters(), 1e-3, weight_decay=2e-4, foreach=True)
    scale = (1 / (255 * torch.tensor(STD))).view(1, 3, 1, 1)
    shift = (-torch.tensor(MEAN) / torch.tensor(STD)).view(1, 3, 1, 1)
    ratio, pad = task.num_old / task.num_new, round(method.context.size / 8)
    order = torch.randperm(len(task.train))

    def look(network, views):
        auxiliary, x = [], views
        *early, last = network.backbone.stages
        for stage, aux in zip(early, network.auxiliaries, strict=True):
            x = stage(x)
            auxiliary.append(aux.head(aux.branch(x).mean((2, 3))))
        return auxiliary, last(x[::4]).mean((2, 3))

    for step in range(len(order) // batch):
        rows = order[step * batch : (step + 1) * batch]
        images, labels = task.train.pixels[rows], task.train.labels[rows]
        down, right = torch.randint(0, 2 * pad + 1, (2, batch))
        images = random_crop(images, method.context.size, pad, down, right, torch.randint(0, 2, (batch,)).bool())
        images = images.to(torch.float32, memory_format=torch.channels_last).mul_(scale).add_(shift)
        views = torch.stack([images.rot90(turns, (2, 3)) for turns in range(4)], 1).flatten(0, 1)
        views = views.contiguous(memory_format=torch.channels_last)
        with used.runtime.fabric.autocast():
            with torch.no_grad():
                old_auxiliary, old_feature = look(teacher, views)
                replayed = torch.randint(0, task.num_old, (batch,))
                generated = decoder.decode(torch.randn(batch, decoder.latent), replayed)
            auxiliary, feature = look(solver, views)
            loss = functional.cross_entropy(solver.head(feature), labels)
            loss = loss + ratio * functional.cross_entropy(solver.head(generated), replayed)
            loss = loss + ratio * (feature.float() - old_feature.float()).norm(dim=1).mean()
            for new, old in zip(auxiliary, old_auxiliary, strict=True):
                log_p, log_q = (old / TAU).log_softmax(1), (new / TAU).log_softmax(1)
                loss = loss + ratio * TAU**2 * functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    arguments = parser(__doc__, width=16, size=32, batch=32, images=256, rounds=7)
    arguments.add_argument("--precision", default="auto")
    options = arguments.parse_args()
    method, (_, task) = second_task(options.images, options.size, options.batch, options.width)
    start, ours = deepcopy(method.solver.state_dict()), engine(precision=options.precision)
    contenders = {
        "engine": lambda: ours.train(next(method.phases(task))),
        "bare loop": lambda: bare_epoch(method, task, options.batch, ours),
    }
    times = alternate(contenders, options.rounds, lambda: method.solver.load_state_dict(start))
    setting = f"width {options.width}, {options.size} px, batch {options.batch}, {conditions(options, ours)}"
    print_table([row(setting, times, options.images)])


if __name__ == "__main__":
    main()
