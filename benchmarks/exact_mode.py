"""eTag's solver phase as we train it, against a plain implementation of the same arithmetic.

    OMP_NUM_THREADS=1 python benchmarks/exact_mode.py [--width 64] [--batch 16] [--task 1] [--compile] [--rounds 5]

The plain one is what a careful author of a paper would write: modules in NCHW order, a DataLoader with transforms of
one image at a time, four rotations through all of the network, the teacher under no_grad. First both look at the same
images with the same weights, and their losses must agree to 1e-4; then epochs alternate. Run it while nothing else
runs.
"""

import random
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from engine_overhead import MEAN, STD, TAU, second_task
from etag.core.random import Draws, Stream
from etag.core.work import Batch
from measure import alternate, conditions, engine, parser, print_table, row

# -- the plain implementation -----------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = nn.Sequential()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def stage(number, width):
    out = width * 2 ** (number - 1)
    if number == 1:
        return nn.Sequential(Block(width, width, 1), Block(width, width, 1))
    return nn.Sequential(Block(out // 2, out, 2), Block(out, out, 1))


class Auxiliary(nn.Module):
    def __init__(self, after, width, outputs):
        super().__init__()
        self.branch = nn.Sequential(*(stage(number, width) for number in range(after + 1, 5)))
        self.fc = nn.Linear(8 * width, outputs)

    def forward(self, x):
        return self.fc(self.branch(x).mean((2, 3)))


class Network(nn.Module):
    def __init__(self, width, classes, augmented):
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.ModuleList([nn.Sequential(stem, stage(1, width)), *(stage(n, width) for n in (2, 3, 4))])
        self.fc = nn.ModuleList(nn.Linear(8 * width, count) for count in classes)
        self.auxiliaries = nn.ModuleList(Auxiliary(after, width, augmented) for after in (1, 2, 3))

    def forward(self, x, last_sees_images_only=False):
        auxiliary = []
        for number, layers in enumerate(self.stages):
            if number == 3 and last_sees_images_only:
                x = x[::4]
            x = layers(x)
            if number < 3:
                auxiliary.append(self.auxiliaries[number](x))
        return auxiliary, x.mean((2, 3))

    def classify(self, features):
        return torch.cat([layer(features) for layer in self.fc], dim=1)


class Images(Dataset):
    """One image at a time: crop, mirror, normalize."""

    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels
        self.mean, self.std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.pixels[index].float() / 255
        size = image.shape[-1]
        padding = size // 8
        image = functional.pad(image, (padding,) * 4)
        top, left = random.randint(0, 2 * padding), random.randint(0, 2 * padding)
        image = image[:, top : top + size, left : left + size]
        if random.random() < 0.5:
            image = image.flip(2)
        return (image - self.mean) / self.std, int(self.labels[index])


def rotations(images):
    return torch.stack([images.rot90(turns, (2, 3)) for turns in range(4)], dim=1).flatten(0, 1)


def base_loss(network, images, labels, last_sees_images_only=False):
    """Eq. (8)."""
    auxiliary, features = network(rotations(images), last_sees_images_only)
    features = features if last_sees_images_only else features[::4]
    loss = functional.cross_entropy(network.classify(features), labels)
    augmented = (4 * labels[:, None] + torch.arange(4)).flatten()
    return loss + sum(functional.cross_entropy(logits, augmented) for logits in auxiliary)


def later_loss(network, teacher, decoder, ratio, images, labels, codes, replayed):
    """Eq. (9)."""
    views = rotations(images)
    with torch.no_grad():
        old_auxiliary, old_features = teacher(views)
        made = decoder.decode(codes, replayed)
    auxiliary, features = network(views)
    features, old_features = features[::4], old_features[::4]
    loss = functional.cross_entropy(network.classify(features), labels)
    loss = loss + ratio * functional.cross_entropy(network.classify(made), replayed)
    loss = loss + ratio * (features - old_features).norm(dim=1).mean()
    for new, old in zip(auxiliary, old_auxiliary, strict=True):
        log_p, log_q = (old / TAU).log_softmax(1), (new / TAU).log_softmax(1)
        loss = loss + ratio * TAU**2 * functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return loss


class Plain:
    """The phase as a script would have it."""

    def __init__(self, method, task, batch, base):
        self.width, self.base, self.task = method.context.model.width, base, task
        sizes = method.task_sizes
        self.network = copied(method.solver, Network(self.width, sizes, 4 * task.num_base))
        if not base:
            self.teacher = copied(method.teacher.network, Network(self.width, sizes[:-1], 4 * task.num_base)).eval()
            self.decoder = method.generator.old.network
        self.loader = DataLoader(Images(task.train.pixels, task.train.labels), batch, shuffle=True, drop_last=True)
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-3, weight_decay=2e-4)

    def loss(self, images, labels, codes=None, replayed=None):
        if self.base:
            return base_loss(self.network, images, labels)
        if codes is None:
            replayed = torch.randint(0, self.task.num_old, labels.shape)
            codes = torch.randn(len(labels), self.decoder.latent)
        ratio = self.task.num_old / self.task.num_new
        return later_loss(self.network, self.teacher, self.decoder, ratio, images, labels, codes, replayed)

    def epoch(self):
        self.network.train()
        if not self.base:  # the method's frozen statistics
            for part in self.network.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.eval()
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            self.loss(images, labels).backward()
            self.optimizer.step()


def copied(ours, plain):
    """The plain network with our weights: they come in the same order, layer by layer."""
    tensors = [value for name, value in ours.state_dict().items() if "head" not in name]
    heads = [value for name, value in ours.head.state_dict().items()]
    auxiliaries = [list(auxiliary.head.state_dict().values()) for auxiliary in ours.auxiliaries]
    state, body, spare = plain.state_dict(), iter(tensors), iter(heads)
    with torch.no_grad():
        for name, value in state.items():
            if ".fc." in name:
                value.copy_(auxiliaries[int(name.split(".")[1])].pop(0))
            else:
                value.copy_(next(spare) if name.startswith("fc.") else next(body))
    assert next(body, None) is None
    return plain


# -- the comparison ---------------------------------------------------------------------------------


def disturbed(module):
    """As after some training: fresh statistics and a fresh student equal to its teacher would prove little."""
    generator = torch.Generator().manual_seed(1)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=generator)
            value.mul_(0.9 + 0.2 * noise) if "running" in name else value.add_(0.02 * (noise - 0.5))


def difference(method, task, phase, plain, base):
    """How far the losses of the same images are apart, relative to their size; statistics are frozen."""
    rows = torch.arange(plain.loader.batch_size)
    batch = Batch(
        method.context.preprocess.centered(task.train.pixels[rows]),
        task.train.labels[rows],
        Draws(Stream.root(7)),
        len(rows),
    )
    phase.module.eval()
    plain.network.eval()
    ours = sum(phase.module(batch).values())
    if base:
        reference = base_loss(plain.network, batch.inputs, batch.labels, last_sees_images_only=True)
    else:
        replayed = batch.draws.integers("replay labels", 0, task.num_old, len(rows))
        codes = batch.draws.normal("replay codes", len(rows), plain.decoder.latent)
        reference = plain.loss(batch.inputs.contiguous(), batch.labels, codes, replayed)
    return abs(ours.item() - reference.item()) / abs(reference.item())


def main() -> None:
    arguments = parser(__doc__, width=64, size=32, batch=16, images=48, rounds=5)
    arguments.add_argument("--task", type=int, choices=(0, 1), default=1, help="the base task, or the one after it")
    arguments.add_argument("--compile", action="store_true")
    options = arguments.parse_args()

    base = options.task == 0
    method, (*_, task) = second_task(options.images, options.size, options.batch, options.width, begun=options.task + 1)
    for module in method.parts.values():
        disturbed(module)
    phase = next(method.phases(task))
    plain = Plain(method, task, options.batch, base)
    apart = difference(method, task, phase, plain, base)
    assert apart < 1e-4, f"the losses differ by {apart:.1e}"

    ours = engine(compile=options.compile, precision="32-true")
    start, plain_start = deepcopy(method.solver.state_dict()), deepcopy(plain.network.state_dict())

    def reset() -> None:
        method.solver.load_state_dict(start)
        plain.network.load_state_dict(plain_start)

    times = alternate({"plain": plain.epoch, "exact": lambda: ours.train(phase)}, options.rounds, reset)
    setting = f"{'base' if base else 'later'} task, width {options.width}, {options.size} px, batch {options.batch}"
    setting += f", {conditions(options, ours)}{', compiled' if options.compile else ''}"
    print_table([row(setting, times, options.images) | {"losses differ by": f"{apart:.0e}"}])


if __name__ == "__main__":
    main()
