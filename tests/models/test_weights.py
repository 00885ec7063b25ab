import os
import pickle
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from etag.core.errors import EtagError
from etag.core.random import Stream
from etag.models.backbone import ModelOptions
from etag.models.backbones.resnet import ResNet
from etag.models.heads import HeadOptions
from etag.models.initial import build
from etag.models.solver import build_solver
from etag.models.weights import load_weights


def solver(seed=0, **options):
    """A solver with the given options; weights, statistics and BatchNorm counters differ by seed."""
    network = build_solver(ModelOptions(**{"width": 2} | options), HeadOptions(), 3, 32, Stream.root(seed))
    network.head.grow(5, Stream.root(seed).torch_generator("head"))
    with torch.no_grad():
        for name, value in network.state_dict().items():
            value.add_(seed + 1 if name.endswith("num_batches_tracked") else 0.1 * seed)
    return network


def backbone(seed=0, **options):
    return solver(seed, **options).backbone


def write(tensors, file):
    """Save tensors in the format of the file's ending; return the path."""
    if file.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    else:
        torch.save(tensors, file, _use_new_zipfile_serialization=file.suffix != ".old")
    return str(file)


def same(module, state):
    return all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


@pytest.fixture
def refused(tmp_path):
    """refused(tensors) -> the error message; nothing may have been loaded."""

    def attempt(tensors, **options):
        network = backbone(0, **options)
        with pytest.raises(EtagError, match=r"^the weights '.*' do not fit the backbone: .*\.$") as error:
            load_weights(network, write(tensors, tmp_path / "weights.pt"))
        assert same(network, backbone(0, **options).state_dict())
        return str(error.value)

    return attempt


# -- files that fit --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "vgg11", "mobilenetv2", "mlp"])
@pytest.mark.parametrize("suffix", ["safetensors", "pt", "old"])
def test_saved_weights_are_loaded(name, suffix, tmp_path):
    network, saved = (backbone(seed, backbone=name) for seed in (0, 1))
    assert not same(network, saved.state_dict())
    report = load_weights(network, write(saved.state_dict(), tmp_path / f"weights.{suffix}"))
    assert same(network, saved.state_dict())
    assert (report.loaded, report.unused) == (tuple(saved.state_dict()), ())


@pytest.mark.parametrize("prefix", ["backbone.", "solver.backbone."])
def test_names_can_have_the_prefix_of_a_run(prefix, tmp_path):
    network, saved = backbone(0), backbone(1)
    load_weights(network, write(saved.state_dict(prefix=prefix), tmp_path / "weights.pt"))
    assert same(network, saved.state_dict())


def test_heads_auxiliaries_and_generators_are_ignored(tmp_path):
    network, saved = backbone(0), solver(1)
    saved.add_auxiliaries(3, Stream.root(1))
    tensors = saved.state_dict(prefix="solver.") | {"generator.mean.weight": torch.ones(2)}
    report = load_weights(network, write(tensors, tmp_path / "model.safetensors"))
    assert same(network, saved.backbone.state_dict())
    assert {name for name in tensors if not name.startswith("solver.backbone.")} == set(report.unused)
    assert "solver.head.blocks.0.bias" in report.unused


def torchvision_names(blocks=2):
    """Yield the names in torchvision's ResNets, in the order of the tensors, which is the same here."""
    yield "conv1.weight"
    yield from batch_norm("bn1")
    for layer in range(1, 5):
        for block in range(blocks):
            for number in (1, 2):
                yield f"layer{layer}.{block}.conv{number}.weight"
                yield from batch_norm(f"layer{layer}.{block}.bn{number}")
            if layer > 1 and block == 0:
                yield f"layer{layer}.0.downsample.0.weight"
                yield from batch_norm(f"layer{layer}.0.downsample.1")


def batch_norm(layer):
    return [f"{layer}.{k}" for k in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


def as_torchvision(network, blocks=2):
    return dict(zip(torchvision_names(blocks), network.state_dict().values(), strict=True))


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_torchvision_names_are_translated(stem, tmp_path):
    network, saved = (backbone(seed, stem=stem) for seed in (0, 1))
    tensors = as_torchvision(saved) | {"fc.weight": torch.ones(1000, 16), "fc.bias": torch.ones(1000)}
    assert len(tensors) == 122
    report = load_weights(network, write(tensors, tmp_path / "resnet18.pth"))
    assert same(network, saved.state_dict())
    assert report.unused == ("fc.weight", "fc.bias")


def test_step_counters_of_batchnorm_can_be_missing(tmp_path):
    network, saved = backbone(0), backbone(1).state_dict()
    counters = [name for name in saved if name.endswith("num_batches_tracked")]
    tensors = {name: value for name, value in saved.items() if name not in counters}
    report = load_weights(network, write(tensors, tmp_path / "weights.pt"))
    assert report.loaded == tuple(name for name in saved if name not in counters)
    old = backbone(0).state_dict()
    assert same(network, saved | {name: old[name] for name in counters})


def test_half_precision_is_converted_to_single(tmp_path):
    network, saved = backbone(0), {name: value.half() for name, value in backbone(1).state_dict().items()}
    load_weights(network, write(saved, tmp_path / "weights.safetensors"))
    assert {value.dtype for value in network.parameters()} == {torch.float32}
    assert same(network, {name: value.float() for name, value in saved.items()})


def test_the_report_is_one_line(tmp_path):
    extra = {f"head.{number}": torch.ones(1) for number in range(5)}
    file = tmp_path / "weights.pt"
    report = load_weights(backbone(0), write(backbone(1).state_dict() | extra, file))
    ignored = "5 ignored (head.0, head.1, head.2 and 2 more)"
    assert str(report) == f"loaded 120 tensors of the backbone from {file}, {ignored}"
    assert str(replace(report, unused=())) == f"loaded 120 tensors of the backbone from {file}"


# -- files that do not fit -------------------------------------------------------------------------


def test_another_width_is_an_error_with_names_and_shapes(refused):
    message = refused(backbone(1, width=3).state_dict())
    first = "stages.0.0.0.weight has shape 3x3x3x3 instead of 2x3x3x3"
    assert f"{first}, stages.0.0.1.weight has shape 3 instead of 2" in message
    assert re.search(r"and \d+ more; check model\.backbone, model\.width and model\.stem\.$", message)


def test_another_stem_is_an_error_with_the_name_in_the_file(refused):
    message = refused(as_torchvision(backbone(1, stem="imagenet")), stem="cifar")
    assert ": conv1.weight has shape 2x3x7x7 instead of 2x3x3x3; check" in message


def test_missing_weights_are_an_error(refused):
    tensors = backbone(1).state_dict()
    del tensors["stages.3.2.second.0.weight"], tensors["stages.3.2.second.1.running_var"]
    assert ": it lacks stages.3.2.second.0.weight, stages.3.2.second.1.running_var; check" in refused(tensors)


def test_a_deeper_network_is_an_error(refused):
    deeper = build(lambda: ResNet(3, 2, stages=4, blocks=3, imagenet=False), Stream.root(1).torch_generator())
    assert ": it has tensors that this backbone does not have: stages.0.6.first.0.weight," in refused(
        deeper.state_dict()
    )
    assert ": it has tensors that this backbone does not have: layer1.2.conv1.weight," in refused(
        as_torchvision(deeper, blocks=3)
    )


@pytest.mark.parametrize(
    ("tensors", "found"), [({"a.b": torch.ones(1)}, "a.b"), ({}, "nothing")], ids=["other", "none"]
)
def test_only_unknown_names_are_an_error(tensors, found, refused):
    assert f": it has {found} instead of stages.0.0.0.weight, stages.0.0.1.weight, stages.0.0.1.bias and" in refused(
        tensors
    )


# -- other files -----------------------------------------------------------------------------------


OTHER_FILES = {
    "empty": b"",
    "short": b"ab",
    "text": b"these are no weights",
    "pickle": pickle.dumps([1, 2], protocol=2),
}


@pytest.mark.parametrize("content", OTHER_FILES.values(), ids=OTHER_FILES)
def test_another_kind_of_file_is_an_error(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(EtagError, match=r"'.*file' is damaged, or is neither a safetensors file nor a PyTorch state"):
        load_weights(backbone(), str(tmp_path / "file"))


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_truncated_file_is_an_error(suffix, tmp_path):
    file = tmp_path / f"weights.{suffix}"
    write(backbone(1).state_dict(), file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EtagError, match="damaged"):
        load_weights(backbone(), str(file))


@pytest.mark.parametrize(
    "content", [{"state_dict": {"a": torch.ones(1)}}, {1: torch.ones(1)}, [torch.ones(1)]], ids=str
)
def test_a_file_without_tensors_by_name_is_an_error(content, tmp_path):
    with pytest.raises(EtagError, match="does not contain tensors by name: save the state dict itself"):
        load_weights(backbone(), write(content, tmp_path / "weights.pt"))


def test_a_pickled_module_is_an_error(tmp_path):
    with pytest.raises(EtagError, match="of tensors only"):
        load_weights(backbone(), write(nn.Linear(2, 2), tmp_path / "weights.pt"))


class Malicious:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def plain_pickle(thing, file):
    file.write_bytes(pickle.dumps(thing, protocol=2))


@pytest.mark.parametrize("save", [torch.save, plain_pickle])
@pytest.mark.parametrize("tensors", [{}, {"stages.0.0.0.weight": torch.ones(2, 3, 3, 3)}], ids=["alone", "hidden"])
def test_code_in_a_file_is_not_run(save, tensors, tmp_path):
    created, file = tmp_path / "executed", tmp_path / "weights.pt"
    save(tensors | {"evil": Malicious(created)}, file)
    with pytest.raises(EtagError, match="of tensors only"):
        load_weights(backbone(), str(file))
    assert not created.exists()


def test_the_malicious_file_runs_code_with_an_ordinary_unpickler(tmp_path):
    file = tmp_path / "weights.pt"
    plain_pickle(Malicious(tmp_path / "executed"), file)
    pickle.loads(file.read_bytes())
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("path", ["missing.pt", "."])
def test_a_missing_file_is_an_error(path, tmp_path):
    with pytest.raises(EtagError, match=r"^the weights file '.*' does not exist: correct model\.weights\.$"):
        load_weights(backbone(), str(tmp_path / path))


# -- use by a method -------------------------------------------------------------------------------


@pytest.fixture
def method(lab):
    """method(weights) -> eTag whose backbone is to be loaded from a file."""

    def make(weights):
        method_with_weights = lab("etag").method
        context = replace(method_with_weights.context, model=ModelOptions(width=4, weights=weights))
        return type(method_with_weights)(method_with_weights.options, context)

    return make


def test_a_method_loads_its_weights_and_is_rebuilt_without_them(method, disturb, snapshot, tmp_path):
    saved = disturb(method(None).solver)
    file = tmp_path / "model.safetensors"
    method_with_weights = method(write(saved.state_dict(prefix="solver."), file))
    others = {
        name: value for name, value in snapshot(method_with_weights.solver).items() if not name.startswith("backbone.")
    }
    assert not same(method_with_weights.solver.backbone, saved.backbone.state_dict())
    report = method_with_weights.load_weights()
    assert str(file) in str(report)
    assert same(method_with_weights.solver.backbone, saved.backbone.state_dict())
    assert all(torch.equal(method_with_weights.solver.state_dict()[name], value) for name, value in others.items())
    weight = method_with_weights.solver.backbone.stages[1][0].first[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    file.unlink()
    method_with_weights.build_after([3, 2])
    assert method_with_weights.seen == 5


def test_a_method_without_weights_is_not_changed(method, snapshot):
    method_with_weights = method(None)
    before = snapshot(method_with_weights.solver)
    assert method_with_weights.load_weights() is None
    assert same(method_with_weights.solver, before)
