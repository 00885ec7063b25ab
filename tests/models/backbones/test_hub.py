"""Backbones of transformers compute what transformers computes, and can be trained, frozen, saved and loaded."""

import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.small_transformers import SIDE, SMALL, STAGES, TOKEN_FAMILIES, architecture, features, network, save
from torch import nn

from etag.core.errors import EtagError
from etag.core.outputs import Need
from etag.core.random import Stream
from etag.data.scenario import build_scenario
from etag.data.source import DataOptions
from etag.methods.registry import METHODS
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.backbones.hub import NEW_NAMES
from etag.models.heads import HeadOptions
from etag.models.solver import build_solver
from etag.models.weights import load_weights

STREAM = Stream.root(0)


def options(family, train="all", **changes):
    return ModelOptions(backbone="transformers", architecture=architecture(family, **changes), train=train)


def backbone(family, train="all", size=SIDE, signed=False, **changes):
    return new_backbone(options(family, train, **changes), 3, size, signed)


def images(size=SIDE, rows=3):
    return torch.randn(rows, 3, size, size, generator=STREAM.torch_generator("images", size))


def loaded(family, folder, kind="AutoModel", **changes):
    """A network of transformers, and our backbone with its weights."""
    model, ours = network(family, kind=kind, **changes), backbone(family, **changes)
    load_weights(ours, save(model, folder) / "model.safetensors")
    return model, ours.eval()


def old_name(name):
    """A name as older versions of transformers have it."""
    for old, new in reversed(NEW_NAMES.items()):
        if new not in ("layers.", "attention."):  # those are ambiguous in this direction
            name = name.replace(new, old)
    return name


# -- the same features -------------------------------------------------------------------------------------------------

SIDES = [16, 24, 30]


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForImageClassification"])
def test_features_are_those_of_transformers(family, kind, tmp_path):
    model, ours = loaded(family, tmp_path, kind)
    model = getattr(model, family) if kind != "AutoModel" else model
    for side in SIDES:
        expected = features(model, images(side))
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(images(side)), expected, rtol=0, atol=1e-5)
        channels_last = images(side).contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(ours(channels_last), expected, rtol=1e-4, atol=1e-5)  # other kernels
    assert ours.feature_size == expected.shape[1]
    assert ours.signed is bool(expected.min() < 0)


VARIANTS = {
    "bottleneck": ("resnet", {"layer_type": "bottleneck", "hidden_sizes": [64, 80]}),
    "downsampling": (
        "resnet",
        {"layer_type": "bottleneck", "hidden_sizes": [64, 80]}
        | {"downsample_in_bottleneck": True, "downsample_in_first_stage": True},
    ),
    "without layer scale": ("convnext", {"layer_scale_init_value": 0.0}),
    "without bias": ("vit", {"qkv_bias": False, "hidden_act": "quick_gelu"}),
    "wide windows": ("swin", {"window_size": 4, "depths": [2, 2], "num_heads": [1, 2], "mlp_ratio": 1.5}),
}


@pytest.mark.parametrize(("family", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_features_of_other_configurations(family, changes, tmp_path):
    model, ours = loaded(family, tmp_path, **changes)
    torch.testing.assert_close(ours(images(32)), features(model, images(32)), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_vit_of_full_size(tmp_path):
    import transformers

    model = transformers.ViTModel(transformers.ViTConfig()).eval()
    values = {"model_type": "vit"}
    ours = new_backbone(ModelOptions(backbone="transformers", architecture=values, train="last-2"), 3, 224).eval()
    report = load_weights(ours, save(model, tmp_path) / "model.safetensors")
    assert set(report.unused) == {"pooler.dense.weight", "pooler.dense.bias"}
    assert len(ours.stages) == 12
    torch.testing.assert_close(ours(images(224, 2)), features(model, images(224, 2)), rtol=0, atol=1e-5)
    assert sum(each.numel() for each in ours.parameters_to_train) == 2 * 7_087_872 + 2 * 768


# -- names and state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SMALL)
def test_every_tensor_of_a_file_is_used_once_in_old_and_in_new_names(family, tmp_path):
    model, ours = loaded(family, tmp_path)
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith("pooler")}
    kept.pop("embeddings.mask_token", None)
    assert sum(map(torch.numel, ours.state_dict().values())) == sum(map(torch.numel, kept.values()))
    for names in (kept, load_file(tmp_path / "model.safetensors")):  # those of the modules, and those of the file
        translated = [ours.translate_name(name) for name in names if not name.startswith("pooler")]
        assert set(translated) - {"embeddings.mask_token"} == set(ours.state_dict())
        assert len(set(translated)) == len(translated)
        assert {ours.translate_name(f"{family}.{name}") for name in names} >= set(ours.state_dict())
    assert [ours.translate_name(name) for name in ours.state_dict()] == list(ours.state_dict())
    pointers = [value.data_ptr() for value in ours.state_dict().values()]
    assert len(set(pointers)) == len(pointers)


@pytest.mark.parametrize("family", SMALL)
def test_a_backbone_is_built_without_memory_and_filled(family, tmp_path):
    _, ours = loaded(family, tmp_path)
    with torch.device("meta"):
        empty = backbone(family).eval()
    assert all(value.is_meta for value in empty.state_dict().values())
    assert empty.translate_name("layernorm.weight") == ours.translate_name("layernorm.weight")
    empty.load_state_dict(ours.state_dict(), assign=True)
    copy, again = deepcopy(ours), backbone(family).eval()
    again.load_state_dict(ours.state_dict())
    for other in (empty, copy, again):
        assert torch.equal(other(images()), ours(images()))
        assert other.translate_name("layernorm.weight") == ours.translate_name("layernorm.weight")


@pytest.mark.parametrize("family", ["vit", "swin"])
def test_what_an_older_transformers_saved_is_read(family, tmp_path):
    _, ours = loaded(family, tmp_path)
    ours.add_original()
    older = {old_name(name): value for name, value in ours.state_dict().items()}
    assert older.keys() != ours.state_dict().keys()
    again = backbone(family).eval()
    again.add_original()
    again.load_state_dict(older)
    assert torch.equal(again(images()), ours(images()))
    save_file({name: value.contiguous() for name, value in older.items()}, tmp_path / "ours.safetensors")
    plain = backbone(family).eval()
    load_weights(plain, tmp_path / "ours.safetensors")  # as weights of another model
    assert torch.equal(plain(images()), again(images())[:, : plain.feature_size])


DEEPER = {
    "vit": {"num_hidden_layers": 4},
    "dinov2": {"num_hidden_layers": 5},
    "convnext": {"depths": [1, 3, 1]},
    "resnet": {"depths": [1, 3]},
    "swin": {"depths": [1, 2, 2]},
}


@pytest.mark.parametrize(("family", "changes"), DEEPER.items(), ids=DEEPER)
def test_weights_of_a_deeper_network_are_refused(family, changes, tmp_path):
    save(network(family, **changes), tmp_path)
    with pytest.raises(EtagError, match="it has tensors that this backbone does not have: encoder"):
        load_weights(backbone(family), tmp_path / "model.safetensors")


@pytest.mark.parametrize("changes", [{"hidden_size": 8}, {"num_hidden_layers": 1}, {"image_size": 32}], ids=str)
def test_weights_of_another_network_are_refused(changes, tmp_path):
    save(network("vit", **changes), tmp_path)
    with pytest.raises(EtagError, match=r"^the weights '.*' do not fit the backbone: "):
        load_weights(backbone("vit"), tmp_path / "model.safetensors")


def test_half_precision_is_converted(tmp_path):
    save(network("vit").half(), tmp_path)
    ours = backbone("vit", dtype="float16")
    load_weights(ours, tmp_path / "model.safetensors")
    assert {value.dtype for value in ours.state_dict().values()} == {torch.float32}


# -- the interface of a backbone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SMALL)
def test_stages_end_in_an_activation_or_an_identity(family):
    ours = backbone(family).eval()
    assert len(ours.stages) == STAGES[family]
    assert {type(stage[-1]) for stage in ours.stages} == {nn.ReLU if family == "resnet" else nn.Identity}
    assert ours.has_maps is (family not in TOKEN_FAMILIES)
    maps = images()
    for stage, width in zip(ours.stages, ours.widths, strict=True):
        raw = stage[:-1](maps)
        maps = stage(maps)
        assert maps.ndim == (4 if ours.has_maps else 3)
        assert maps.shape[1 if ours.has_maps else 2] == width
        assert torch.equal(stage[-1](raw), maps)
    assert torch.equal(ours.pool(maps), ours(images()))
    assert torch.equal(ours.pool(torch.ones(2, ours.feature_size)), torch.ones(2, ours.feature_size))
    assert torch.equal(ours(torch.ones(2, 5)), torch.ones(2, 5)), "features are returned as they are"


@pytest.mark.parametrize("signed", [False, True])
def test_features_of_a_resnet_are_negative_only_if_asked_for(signed, tmp_path):
    ours = backbone("resnet", signed=signed)
    load_weights(ours, save(network("resnet"), tmp_path) / "model.safetensors")
    assert ours.signed is signed
    assert bool(ours.eval()(images()).min() < 0) is signed


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize(("train", "trained"), [("head", 0), ("last-1", 1), ("last-2", 2), ("all", None)])
def test_frozen_stages_are_not_trained_and_the_final_norm_follows_the_last(family, train, trained):
    ours = backbone(family, train).train()
    stages = list(ours.stages)
    count = len(stages) if trained is None else trained
    expected = [p for stage in stages[len(stages) - count :] for p in stage.parameters()] if count else []
    expected += list(ours.final.parameters()) if count else []
    assert {id(p) for p in ours.parameters_to_train} == {id(p) for p in expected}
    assert len(list(ours.final.parameters())) == (0 if family == "resnet" else 2)
    assert [stage.training for stage in stages] == [number >= len(stages) - count for number in range(len(stages))]


def test_too_many_stages_to_train():
    with pytest.raises(EtagError, match=r"^model\.train=last-4 is too much: the backbone has 3 stages"):
        backbone("vit", "last-4")


SMALLEST = {"vit": 4, "dinov2": 4, "dinov2_with_registers": 4, "convnext": 8, "resnet": 8, "swin": 16}


@pytest.mark.parametrize(("family", "side"), SMALLEST.items())
def test_the_smallest_image(family, side):
    ours = backbone(family, size=side).train()
    assert ours(images(side)).isfinite().all()
    with pytest.raises(EtagError, match=rf"^images of {side - 1}x{side - 1} pixels are too small for the backbone tra"):
        backbone(family, size=side - 1)


@pytest.mark.parametrize("family", SMALL)
def test_every_stage_can_have_an_auxiliary_classifier(family):
    solver = build_solver(options(family), HeadOptions(), 3, SIDE, STREAM)
    solver.head.grow(2, STREAM.torch_generator("head"))
    solver.add_auxiliaries(STAGES[family], STREAM)
    for number, auxiliary in enumerate(solver.auxiliaries):
        auxiliary.head.grow(8, STREAM.torch_generator("auxiliary", number))
    outputs = solver.train()(images(rows=6), Need.LOGITS | Need.STAGES | Need.AUXILIARY)
    assert [logits.shape for logits in outputs.auxiliary] == [(6, 8)] * STAGES[family]
    (outputs.logits.sum() + sum(logits.square().sum() for logits in outputs.auxiliary)).backward()
    assert all(parameter.grad is not None for parameter in solver.parameters())
    for number in range(2, STAGES[family] + 2):
        before = outputs.stages[number - 2]
        after = outputs.stages[min(number, STAGES[family]) - 1]
        channels = 1 if after.ndim == 4 else 2
        assert solver.backbone.new_stage(number)(before).shape[channels] == after.shape[channels]


@pytest.mark.parametrize("family", ["vit", "convnext", "swin"])
def test_the_original_features_do_not_change_with_the_final_norm(family):
    ours = backbone(family, "last-1").eval()
    ours.add_original()
    ours.copy_original()
    first = ours(images())
    assert torch.equal(*first.chunk(2, dim=1))
    assert not {id(p) for p in ours.original.parameters()} & {id(p) for p in ours.parameters_to_train}
    with torch.no_grad():
        for parameter in ours.parameters_to_train:
            parameter.add_(0.1)
    new, original = ours(images()).chunk(2, dim=1)
    assert torch.equal(original, first.chunk(2, dim=1)[1])
    assert not torch.allclose(new, original, atol=1e-3)


@pytest.mark.parametrize("family", SMALL)
def test_training_uses_no_random_numbers_of_its_own(family):
    random = {"hidden_dropout_prob": 0.9, "attention_probs_dropout_prob": 0.9, "drop_path_rate": 0.9}
    ours = backbone(family, **random).train()
    before = torch.get_rng_state()
    assert torch.equal(ours(images()), ours(images()))
    assert torch.equal(torch.get_rng_state(), before)


# -- methods -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def laboratory(lab):
    """laboratory(family, method, train) -> the usual laboratory, with this backbone."""

    def make(family, name="etag", train="all"):
        experiment = lab(name, steps=2, weight_decay=0.0)
        data = DataOptions(name="digits", train_per_class=8, test_per_class=4, size=SIDE)
        experiment.scenario, experiment.preprocess = build_scenario(data, "b3-2x2", 0)
        experiment.context = replace(
            experiment.context,
            size=SIDE,
            model=options(family, train, num_channels=1),
            preprocess=experiment.preprocess,
        )
        experiment.method = METHODS[name](experiment.method.options, experiment.context)
        return experiment

    return make


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("train", ["all", "last-2"])
def test_etag_trains_two_tasks(family, train, laboratory, snapshot):
    experiment = laboratory(family, train=train)
    solver = experiment.method.solver
    before = snapshot(solver.backbone)
    experiment.learn(0, 1)
    changed = {
        name.split(".")[0] + name.split(".")[1] * name.startswith("stages")
        for name, value in solver.backbone.named_parameters()
        if not torch.equal(value, before[name])
    }
    stages = [f"stages{number}" for number in range(STAGES[family])]
    assert changed == {*(stages if train == "all" else stages[-2:]), *([] if family == "resnet" else ["final"])}
    assert solver.head.outputs == 5


@pytest.mark.parametrize("family", SMALL)
def test_methods_of_maps_run_or_say_why_not(family, laboratory):
    if family in TOKEN_FAMILIES:
        experiment = laboratory(family, "fine")
        with pytest.raises(
            EtagError, match=r"needs the feature maps of a convolutional backbone, and model\.backbone="
        ):
            experiment.method.check_maps()
    else:
        laboratory(family, "lwm").learn(0, 1)


# -- what cannot be built ----------------------------------------------------------------------------------------------


def test_without_an_architecture():
    with pytest.raises(EtagError, match=r"^model\.backbone=transformers needs to know which network: set model\.weigh"):
        new_backbone(ModelOptions(backbone="transformers"), 3, SIDE)


def test_with_a_bad_architecture():
    with pytest.raises(EtagError, match=r"^model\.architecture cannot be used: hidden_size: "):
        backbone("vit", hidden_size=-1)


def test_with_other_channels():
    with pytest.raises(EtagError, match=r"^the weights expect images of 1 channels, and these have 3"):
        backbone("vit", num_channels=1)


def test_a_network_larger_than_memory():
    huge = options("vit", hidden_size=1 << 14, intermediate_size=1 << 14, num_hidden_layers=64)
    with pytest.raises(EtagError, match=r"^a network of [\d,]+ GiB does not fit into this machine's"):
        build_solver(huge, HeadOptions(), 3, SIDE, STREAM)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EtagError, match=r"need that package: pip install 'etag-cil\[transformers\]'\.$"):
        backbone("vit")


def test_importing_etag_imports_neither_transformers_nor_the_hub_nor_timm():
    code = (
        "import sys, etag, etag.cli, etag.learner.pretrained\n"
        "from etag.models.backbone import BACKBONES\n"
        "assert {'transformers', 'timm'} <= set(BACKBONES)\n"
        "print({'transformers', 'huggingface_hub', 'timm', 'torchvision'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
