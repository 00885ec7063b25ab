"""The recipe `code` of eTag, trained in small, against a plain loop written from the table "paper against release".

The engine gives the plain loop its initial weights, its batches and its random draws. Everything else is computed
here: the network's forward pass, the losses, clipping and the learning rate. Nothing of the project's models, losses,
methods or training enters. Both sides compute in float64 and must agree after every optimizer step.
"""

from dataclasses import asdict, dataclass, field, replace

import pytest
import torch
from torch.nn import functional

from etag.core.work import Callback
from etag.data.preprocess import Preprocess
from etag.data.scenario import build_scenario
from etag.engine import training
from etag.engine.engine import Engine
from etag.experiments.config import resolve
from etag.learner.config import create_method
from etag.learner.learner import Learner
from etag.methods.parts.fidelity import FidelityOptions

RECIPE = "code/cifar100-b50-5x10"
BASE, NEW, TASKS = 5, 2, 3  # the step does not divide the base, so the integer ratio differs from the exact one
CLASSES = BASE + NEW * (TASKS - 1)
IMAGES = 9  # per class; no batch size below divides a task's images, so that short last batches exist
BATCH, EPOCHS, DECAY_EVERY = 8, 2, 1
GENERATOR_BATCH, GENERATOR_EPOCHS = 7, 2
MICRO = {
    "data": "digits",
    "data.train_per_class": IMAGES,
    "data.test_per_class": 2,
    "data.flip": True,
    "split": f"b{BASE}-{TASKS - 1}x{NEW}",
    "model.width": 4,
    "train.batch_size": BATCH,
    "train.epochs": EPOCHS,
    "train.decay_every": DECAY_EVERY,
    "method.generator.latent": 5,
    "method.generator.hidden": 12,
    "method.generator.feature_passes": GENERATOR_EPOCHS,  # as many as epochs, as in the release
    "method.generator.train.batch_size": GENERATOR_BATCH,
    "method.generator.train.epochs": GENERATOR_EPOCHS,
}
EQUAL = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module", autouse=True)
def _float64():
    """All networks and draws of this module are in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# -- the project's side: what the learner does, recorded step by step ----------------------------------------------


@dataclass
class Work:
    """A phase or data pass as the engine carried it out."""

    name: str
    task: int
    batches: list = field(default_factory=list)
    states: list = field(default_factory=list)  # the weights after each step
    terms: list = field(default_factory=list)
    rates: list = field(default_factory=list)


@dataclass
class Recording:
    """A whole run: the weights before the first step, all work, and what the classifier predicts after each task."""

    initial: dict = field(default_factory=dict)
    works: list = field(default_factory=list)
    scores: list = field(default_factory=list)


class Float64Inputs(Preprocess):
    """The same augmentation, normalized in float64."""

    def _normalize(self, images):
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (images.double() / 255 - mean) / std


class RecordedBatches:
    """Batches that are noted as they are used; `after` is called when the step of a batch is done."""

    def __init__(self, batches, used, after):
        self._batches, self._used, self._after = batches, used, after

    def __len__(self):
        return len(self._batches)

    def epoch(self, index, start=0):
        for batch in self._batches.epoch(index, start):
            self._used.append(batch)
            yield batch
            self._after()


class RecordingEngine(Engine, Callback):
    """The engine, with a record of everything that it is given and trains."""

    def __init__(self, runtime, method):
        super().__init__(runtime, [self])
        self.method, self.recording = method, Recording()

    def weights(self):
        """All weights and buffers; they change while a phase trains."""
        parts = self.method.parts.items()
        return {f"{role}.{name}": value for role, part in parts for name, value in part.state_dict().items()}

    def _work(self, name):
        self.recording.works.append(Work(name, len(self.method.task_sizes) - 1))
        return self.recording.works[-1]

    def train(self, phase, checkpointer=None):
        weights, work = self.weights(), self._work(phase.name)

        def copied():
            return {name: value.clone() for name, value in weights.items()}

        self.recording.initial = self.recording.initial or copied()
        batches = RecordedBatches(phase.batches, work.batches, lambda: work.states.append(copied()))
        super().train(replace(phase, batches=batches), checkpointer)

    def run_pass(self, data_pass):
        work = self._work(data_pass.name)
        batches = RecordedBatches(data_pass.batches, work.batches, lambda: None)
        return super().run_pass(replace(data_pass, batches=batches))

    def on_step(self, step, epoch, lr, terms, rows):
        if terms:
            self.recording.works[-1].terms.append(dict(terms))
            self.recording.works[-1].rates.append(lr)


def part_of(weights, role):
    """The weights of one network, by their names in it."""
    return {name.removeprefix(f"{role}."): value for name, value in weights.items() if name.startswith(f"{role}.")}


class MicroRun:
    """The recipe at micro size, with some settings changed."""

    def __init__(self, runtime, **changes):
        config = resolve(RECIPE, MICRO | changes)
        self.scenario, preprocess = build_scenario(config.data, config.split, config.seed)
        self.method = create_method(
            config,
            runtime.placement,
            Float64Inputs(**asdict(preprocess)),
            channels=self.scenario.channels,
            classes=len(self.scenario.classes),
        )
        self.engine = RecordingEngine(runtime, self.method)
        self.learner = Learner(self.method, runtime, engine=self.engine)
        images = self.scenario.tasks[0].test
        self.test_inputs = self.method.context.preprocess.centered(images.pixels)

    def resume(self, weights):
        """Start after the base task, with these weights."""
        self.method.add_classes(BASE)
        for role, part in self.method.parts.items():
            part.load_state_dict(part_of(weights, role))

    def learn(self, index):
        """Learn a task."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "LOG_EVERY", 1)  # the terms of every step are reported
            self.learner.train(self.scenario.tasks[index])
        with torch.no_grad():
            self.engine.recording.scores.append(self.method.classifier().eval()(self.test_inputs))

    def works(self, index):
        """What the engine did for a task."""
        return [work for work in self.engine.recording.works if work.task == index]


# -- the independent side: the network -----------------------------------------------------------------------------
# A network is a dictionary of tensors by the names that the engine's initial weights have.

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def parameters(network):
    """The tensors that train."""
    return [value for name, value in network.items() if not name.endswith(BUFFERS)]


def copy_of(network, trainable=False):
    """A copy with gradients, or a frozen one."""
    copy = {name: value.detach().clone() for name, value in network.items()}
    for value in parameters(copy):
        value.requires_grad_(trainable)
    return copy


def batch_norm(net, name, x, training):
    """BatchNorm; in training mode it normalizes by the batch and moves the running statistics by a tenth."""
    mean, variance = net[f"{name}.running_mean"], net[f"{name}.running_var"]
    if training:
        count = x.numel() // x.shape[1]
        mean = x.mean((0, 2, 3))
        variance = (x - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3))
        with torch.no_grad():
            net[f"{name}.running_mean"] = 0.9 * net[f"{name}.running_mean"] + 0.1 * mean
            unbiased = variance * count / (count - 1)
            net[f"{name}.running_var"] = 0.9 * net[f"{name}.running_var"] + 0.1 * unbiased
            net[f"{name}.num_batches_tracked"] = net[f"{name}.num_batches_tracked"] + 1
    columns = (v.view(1, -1, 1, 1) for v in (mean, variance, net[f"{name}.weight"], net[f"{name}.bias"]))
    mean, variance, weight, bias = columns
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def convolution(net, name, x, stride, training):
    """A convolution and its BatchNorm."""
    weight = net[f"{name}.0.weight"]
    x = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    return batch_norm(net, f"{name}.1", x, training)


def block(net, name, x, stride, training):
    """Two 3x3 convolutions and a shortcut, which is a convolution where the shape changes."""
    y = convolution(net, f"{name}.first", x, stride, training).relu()
    y = convolution(net, f"{name}.second", y, 1, training)
    if f"{name}.shortcut.0.weight" in net:
        x = convolution(net, f"{name}.shortcut", x, stride, training)
    return (y + x).relu()


def two_blocks(net, name, x, stride, training, first=0):
    """A stage of ResNet-18; each block is followed by its ReLU in the numbering."""
    x = block(net, f"{name}.{first}", x, stride, training)
    return block(net, f"{name}.{first + 2}", x, 1, training)


def linear(net, name, x):
    """A linear layer with bias."""
    return x @ net[f"{name}.weight"].T + net[f"{name}.bias"]


def solve(net, images, training=False, auxiliaries=0):
    """Features of the images, and the outputs of the first auxiliary classifiers."""
    x = convolution(net, "backbone.stages.0.0", images, 1, training).relu()
    outputs = []
    for stage in range(4):
        x = two_blocks(net, f"backbone.stages.{stage}", x, 2 if stage else 1, training, first=0 if stage else 2)
        if stage < auxiliaries:
            y, repeated = x, max(1, 3 - stage)  # the later stages once more; behind the last, one like it
            for number in range(repeated):
                name = f"auxiliaries.{stage}.branch.{number}"
                y = two_blocks(net, name, y, 2 if stage < 3 else 1, training)
            outputs.append(linear(net, f"auxiliaries.{stage}.head.blocks.0", y.mean((2, 3))))
    return x.mean((2, 3)), outputs


def classify(net, features):
    """The outputs of the head: all classes of the data set, from the start."""
    return linear(net, "head.blocks.0", features)


def labeled(x, labels):
    """Rows [x, one-hot(label)]."""
    return torch.cat([x, torch.eye(CLASSES)[labels]], dim=1)


def encode(vae, features, labels):
    """Mean and log-variance of the code."""
    hidden = linear(vae, "encoder_in", labeled(features, labels)).relu()
    hidden = linear(vae, "encoder", hidden).relu()
    return linear(vae, "mean", hidden), linear(vae, "log_variance", hidden)


def decode(vae, codes, labels):
    """Features; a ReLU follows every layer, the last too."""
    hidden = linear(vae, "decoder_in", labeled(codes, labels)).relu()
    return linear(vae, "decoder_out", linear(vae, "decoder", hidden).relu()).relu()


def with_joint_layers(vae):
    """The VAE as the release has it: the layers that take the label are one matrix on [x, one-hot(label)]."""
    joint = {name: value for name, value in vae.items() if "_in." not in name}
    for layer in ("encoder_in", "decoder_in"):
        joint[f"{layer}.weight"] = torch.cat([vae[f"{layer}.linear.weight"], vae[f"{layer}.rows"].T], dim=1)
        joint[f"{layer}.bias"] = vae[f"{layer}.linear.bias"]
    return joint


# -- the independent side: losses and loops ------------------------------------------------------------------------


def cross_entropy(logits, labels):
    """Mean of -log p(label) over all outputs."""
    log_p = logits - logits.logsumexp(1, keepdim=True)
    return -log_p[torch.arange(len(labels)), labels].mean()


def kl_at_temperature(student, teacher, t=3):
    """t^2 KL(teacher || student) at temperature t, mean over rows."""
    log_p, log_q = ((x / t) - (x / t).logsumexp(1, keepdim=True) for x in (teacher, student))
    return t**2 * (log_p.exp() * (log_p - log_q)).sum() / len(student)


def rotated(images, labels):
    """Four rotations of each image, image by image, with labels 4y + r."""
    rows = torch.stack([torch.rot90(images, r, (2, 3)) for r in range(4)], dim=1)
    return rows.flatten(0, 1), (4 * labels[:, None] + torch.arange(4)).flatten()


def ratio(task):
    """f of the table."""
    return BASE // NEW + task - 1


def epochs_of(batches, images, size, epochs):
    """The batches epoch by epoch: all of them whole, the rest of the images dropped."""
    steps = images // size
    assert images % size, "choose sizes that leave a short last batch"
    assert [len(batch.labels) for batch in batches] == [size] * steps * epochs
    return [batches[epoch * steps : (epoch + 1) * steps] for epoch in range(epochs)]


def images_in(task):
    return IMAGES * (NEW if task else BASE)


class PlainLoop:
    """Solver and generator of the release, trained by plain loops."""

    def __init__(self, initial):
        self.solver = copy_of(part_of(initial, "solver"), trainable=True)
        self.vae = copy_of(with_joint_layers(part_of(initial, "generator")), trainable=True)

    def begin_task(self):
        """Freeze copies of the old networks."""
        self.old_solver, self.old_vae = copy_of(self.solver), copy_of(self.vae)

    def weights(self):
        """All weights and buffers by the engine's names."""
        found = {f"solver.{name}": value for name, value in self.solver.items()}
        for name, value in self.vae.items():
            if name in ("encoder_in.weight", "decoder_in.weight"):
                layer = name.removesuffix(".weight")
                found[f"generator.{layer}.linear.weight"] = value[:, :-CLASSES]
                found[f"generator.{layer}.rows"] = value[:, -CLASSES:].T
            else:
                found[f"generator.{name}".replace("_in.bias", "_in.linear.bias")] = value
        return {name: value.detach().clone() for name, value in found.items()}

    def train_solver(self, task, batches, clip):
        """The solver's phase; yields learning rate and loss terms after each step."""
        own = parameters(self.solver)
        adam = torch.optim.Adam(own, lr=1e-3, weight_decay=2e-4)
        for epoch, steps in enumerate(epochs_of(batches, images_in(task), BATCH, EPOCHS)):
            adam.param_groups[0]["lr"] = rate = 1e-3 / 10 ** (epoch // DECAY_EVERY)
            for batch in steps:
                terms = self.base_terms(batch) if task == 0 else self.later_terms(task, batch)
                gradients = torch.autograd.grad(sum(terms.values()), own, allow_unused=True)
                norm = torch.sqrt(sum(g.square().sum() for g in gradients if g is not None))
                scale = clip / (norm + 1e-6) if norm > clip else 1.0
                for parameter, gradient in zip(own, gradients, strict=True):
                    parameter.grad = None if gradient is None else scale * gradient
                adam.step()
                yield rate, terms

    def base_terms(self, batch):
        """Task 0: the head on the images, four auxiliaries on all rotations; BatchNorm sees the rotated batch."""
        images, labels = rotated(batch.inputs, batch.labels)
        features, auxiliary = solve(self.solver, images, training=True, auxiliaries=4)
        return {
            "ce": cross_entropy(classify(self.solver, features[::4]), batch.labels),
            "aux_ce": sum(cross_entropy(outputs, labels) for outputs in auxiliary),
        }

    def later_terms(self, task, batch):
        """Task 1 and later: the whole network in evaluation mode, BatchNorm's weights still train."""
        f, old = ratio(task), BASE + NEW * (task - 1)
        images, _ = rotated(batch.inputs, batch.labels)
        features, auxiliary = solve(self.solver, images, auxiliaries=3)
        old_features, old_auxiliary = solve(self.old_solver, images, auxiliaries=3)
        labels = batch.draws.integers("replay labels", 0, old, BATCH)
        codes = batch.draws.normal("replay codes", BATCH, MICRO["method.generator.latent"])
        replayed = decode(self.old_vae, codes, labels)
        distances = map(kl_at_temperature, auxiliary, old_auxiliary)
        return {
            "ce": cross_entropy(classify(self.solver, features[::4]), batch.labels) / (f + 1),
            "replay": cross_entropy(classify(self.solver, replayed), labels) * f / (f + 1),
            "l2": f * torch.linalg.norm(features - old_features),  # of the whole matrix; its gradient at 0 is 0
            "aux_kl": f * sum(distances),
        }

    def collect_features(self, task, batches):
        """Features of augmented, un-rotated images by the frozen solver, one pass for each epoch of the generator."""
        frozen = copy_of(self.solver)
        features = torch.cat([solve(frozen, batch.inputs)[0] for batch in batches])
        self.features = features.view(GENERATOR_EPOCHS, images_in(task), -1)
        self.feature_labels = torch.cat([batch.labels for batch in batches])[: images_in(task)]

    def train_generator(self, task, batches):
        """The generator's phase; yields learning rate and loss terms after each step."""
        adam = torch.optim.Adam(parameters(self.vae), lr=1e-3)
        epochs = epochs_of(batches, images_in(task), GENERATOR_BATCH, GENERATOR_EPOCHS)
        for features, steps in zip(self.features, epochs, strict=True):
            used = []
            for batch in steps:
                rows = self.rows_of(batch, features)
                used += rows.tolist()
                terms = self.generator_terms(task, features[rows], batch)
                adam.zero_grad()
                sum(terms.values()).backward(inputs=parameters(self.vae))
                adam.step()
                yield 1e-3, terms
            assert len(set(used)) == len(used)  # an epoch uses no image twice

    def rows_of(self, batch, features):
        """Which images a batch of the engine's features has."""
        distance = (batch.inputs[:, None] - features).abs().amax(2)
        rows = distance.argmin(1)
        assert distance.amin(1).max() < 1e-9
        assert torch.equal(self.feature_labels[rows], batch.labels)
        return rows

    def generator_terms(self, task, features, batch):
        """Reconstruction, prior and guidance; after task 0 also guidance and match of old classes."""
        f, size, latent = ratio(task), GENERATOR_BATCH, MICRO["method.generator.latent"]
        head = copy_of({name: value for name, value in self.solver.items() if name.startswith("head.")})
        mean, log_variance = encode(self.vae, features, batch.labels)
        codes = mean + (log_variance / 2).exp() * batch.draws.normal("posterior", size, latent)
        decoded = decode(self.vae, codes, batch.labels)
        guide = cross_entropy(classify(head, decoded), batch.labels)
        terms = {
            "kl": (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2 / size,
            "recon": ((decoded - features) ** 2).sum() / size,
            "guide": guide if task == 0 else guide / (f + 1),
        }
        if task:
            labels = batch.draws.integers("old labels", 0, BASE + NEW * (task - 1), size)
            codes = batch.draws.normal("old codes", size, latent)
            again, before = decode(self.vae, codes, labels), decode(self.old_vae, codes, labels)
            terms["guide_old"] = f / (f + 1) * cross_entropy(classify(head, again), labels)
            terms["match"] = 1e-3 * f * ((again - before) ** 2).sum()
        return terms

    @torch.no_grad()
    def scores(self, inputs):
        """Log-probabilities over all outputs, those of classes to come included."""
        return classify(self.solver, solve(self.solver, inputs)[0]).log_softmax(1)


# -- the comparison ------------------------------------------------------------------------------------------------


def assert_same_weights(found, expected, where):
    """Every tensor that the engine stores; after task 0 it drops the last auxiliary, which nothing uses any more."""
    missing = {name for name in expected if name not in found}
    assert all(name.startswith("solver.auxiliaries.3.") for name in missing), where
    for name, value in found.items():
        if not torch.allclose(value, expected[name], **EQUAL):
            pytest.fail(f"{where}: {name} differs by {(value - expected[name]).abs().max():.1e}")


def assert_same_steps(loop, work, clip):
    """Train the plain loop on the batches of a work, and compare after each step."""
    where = f"task {work.task}, {work.name}"
    if work.name == "solver":
        steps = loop.train_solver(work.task, work.batches, clip)
    else:
        steps = loop.train_generator(work.task, work.batches)
    recorded = zip(work.states, work.rates, work.terms, strict=True)
    for number, ((state, rate, terms), (own_rate, own_terms)) in enumerate(zip(recorded, steps, strict=True), 1):
        step = f"{where}, step {number}"
        assert rate == pytest.approx(own_rate, rel=1e-12), step
        assert terms == pytest.approx({k: v.item() for k, v in own_terms.items()}, rel=1e-9, abs=1e-9), step
        assert_same_weights(state, loop.weights(), step)


def assert_same_trajectory(run, tasks, clip=10_000):
    """Repeat what the engine did with the plain loop; weights, loss terms and predictions agree."""
    loop = PlainLoop(run.engine.recording.initial)
    for index in range(tasks):
        loop.begin_task()
        for work in run.works(index):
            if work.name == "features":
                loop.collect_features(index, work.batches)
            else:
                assert_same_steps(loop, work, clip)
        torch.testing.assert_close(run.engine.recording.scores[index], loop.scores(run.test_inputs), **EQUAL)


@pytest.fixture(scope="module")
def release(runtime, _float64):
    """The recipe as it is, learned by the engine."""
    run = MicroRun(runtime)
    for index in range(TASKS):
        run.learn(index)
    return run


def test_the_recipe_trains_as_the_release_does(release):
    solver, generator = ((images_in(0) // size, images_in(1) // size) for size in (BATCH, GENERATOR_BATCH))
    assert [(work.task, work.name, len(work.states)) for work in release.engine.recording.works] == [
        (0, "solver", EPOCHS * solver[0]),
        (0, "features", 0),
        (0, "generator", GENERATOR_EPOCHS * generator[0]),
        (1, "solver", EPOCHS * solver[1]),
        (1, "features", 0),
        (1, "generator", GENERATOR_EPOCHS * generator[1]),
        (2, "solver", EPOCHS * solver[1]),  # the generator is skipped after the last task
    ]
    assert_same_trajectory(release, TASKS)


def test_the_solvers_gradients_are_clipped_by_their_global_norm(runtime, release):
    """The release's bound of 10,000 is never reached, so this one is lower."""
    run = MicroRun(runtime, **{"train.clip_norm": 0.5})
    run.learn(0)
    assert_same_trajectory(run, tasks=1, clip=0.5)
    assert distance(run.works(0), release.works(0)) > 1e-6


# -- the comparison can fail: one option at another value ----------------------------------------------------------

FIDELITY = {f"method.fidelity.{name}": option.default for name, option in FidelityOptions.model_fields.items()}
OTHERS = {
    "method.head.growth": "growing",
    "method.batch_norm": "train",
    "method.embedding.last_stage": False,
    "method.embedding.tau": 2.0,
    "method.generator.feature_passes": 1,
    "method.generator.train.lr": 1e-4,
    "method.generator.train.weight_decay": 2e-4,
    "train.weight_decay": 0.0,
    "train.decay_every": 2,
    "train.drop_last": False,
}
# options that act on the base task only; the others are tried on the task after it
ON_BASE_TASK = {
    "method.fidelity.aux_classes",
    "method.fidelity.backbone_batch_norm",
    "method.head.growth",
    "method.embedding.last_stage",
}


def distance(works, others):
    """The largest difference of any weight at the end of a task, where both have it in the same shape."""
    ours, theirs = works[-1].states[-1], others[-1].states[-1]
    same = [
        name
        for name, value in ours.items()
        if value.is_floating_point() and name in theirs and value.shape == theirs[name].shape
    ]
    return max((ours[name] - theirs[name]).abs().max().item() for name in same)


def learned_with(runtime, release, task, **changes):
    """A run with other options that learned one task only, from the weights that the release's run had before it."""
    run = MicroRun(runtime, **changes)
    if task:
        run.resume(release.works(task - 1)[-1].states[-1])
    run.learn(task)
    return run, distance(run.works(task), release.works(task))


@pytest.mark.parametrize("task", [0, 1])
def test_without_a_change_a_task_is_learned_the_same_again(task, runtime, release):
    assert learned_with(runtime, release, task)[1] == 0


@pytest.mark.parametrize(("option", "value"), (FIDELITY | OTHERS).items(), ids=FIDELITY | OTHERS)
def test_every_option_of_the_recipe_is_seen_by_the_comparison(option, value, runtime, release):
    task = 0 if option in ON_BASE_TASK else 1
    run, found = learned_with(runtime, release, task, **{option: value})
    if option == "method.fidelity.argmax":  # says which outputs compete in a prediction, and trains nothing
        assert found == 0
        assert run.engine.recording.scores[0].shape[1] == BASE + NEW
        assert release.engine.recording.scores[1].shape[1] == CLASSES
    else:
        assert found > 1e-6
