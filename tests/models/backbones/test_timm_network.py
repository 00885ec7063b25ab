"""Backbones of timm compute what timm computes. Most tests run with a stand-in, and with the real timm where it can be
imported."""

import sys
from copy import deepcopy

import pytest
import torch
from tests.small_timm import RESNET, SIDE, VIT, install

from etag.core.errors import EtagError
from etag.core.outputs import Need
from etag.core.random import Stream
from etag.models.backbone import ModelOptions, new_backbone
from etag.models.backbones.timm_network import import_timm, reason
from etag.models.heads import HeadOptions
from etag.models.solver import build_solver

STREAM = Stream.root(0)


def options(name, train="all"):
    return ModelOptions(backbone="timm", architecture={"name": name}, train=train)


def images(size=SIDE, rows=2):
    return torch.randn(rows, 3, size, size, generator=STREAM.torch_generator("images", size))


@pytest.fixture(params=["stand-in", "real"])
def timm(request, monkeypatch, tmp_path):
    return install(request.param, monkeypatch, tmp_path)


@pytest.mark.parametrize("name", [RESNET, VIT])
def test_features_are_those_of_timm(timm, name):
    ours, theirs = new_backbone(options(name), 3, SIDE).eval(), timm.create_model(name, num_classes=0).eval()
    state = {ours.translate_name(key): value for key, value in theirs.state_dict().items()}
    assert state.keys() == ours.state_dict().keys()
    assert [ours.translate_name(key) for key in state] == list(state), "our names do not change"
    assert ours.translate_name("fc.weight") == "fc.weight"
    ours.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(ours(images()), theirs(images()))
        assert ours(images()).shape == (2, ours.feature_size)
    assert (len(ours.stages), ours.signed, ours.has_maps) == (1, True, False)
    assert torch.equal(ours(torch.ones(2, 5)), torch.ones(2, 5)), "features are returned as they are"


@pytest.mark.parametrize("name", [RESNET, VIT])
def test_a_backbone_is_built_on_the_meta_device_and_filled(timm, name):
    ours = new_backbone(options(name), 3, SIDE).eval()
    before = torch.get_rng_state()
    with torch.device("meta"):
        empty = new_backbone(options(name), 3, SIDE).eval()
    assert torch.equal(torch.get_rng_state(), before)
    empty.load_state_dict(ours.state_dict(), assign=True)
    assert torch.equal(empty(images()), ours(images()))
    assert torch.equal(deepcopy(empty)(images()), ours(images()))


@pytest.mark.parametrize("name", [RESNET, VIT])
def test_training_uses_no_random_numbers_of_its_own(timm, name):
    ours = new_backbone(options(name), 3, SIDE).train()
    before = torch.get_rng_state()
    assert torch.equal(ours(images()), ours(images()))
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_weights_follow_the_stream(timm):
    first, again, other = (
        build_solver(options(RESNET), HeadOptions(), 3, SIDE, stream).backbone.state_dict()
        for stream in (STREAM, STREAM, Stream.root(1))
    )
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    assert not all(torch.equal(value, other[key]) for key, value in first.items())


def test_positions_are_interpolated_for_images_of_another_side(timm):
    ours, small = (new_backbone(options(VIT), 3, size).eval() for size in (SIDE, 64))
    small.load_state_dict(ours.state_dict())
    assert small(images(64)).shape == (2, ours.feature_size)
    with pytest.raises(
        EtagError, match=rf"^{VIT} of timm does not accept images of 100x100 pixels: set data\.size=160\.$"
    ):
        new_backbone(options(VIT), 3, 100)


def test_images_that_are_too_small(timm):
    with pytest.raises(
        EtagError, match=r"^images of 1x1 pixels are too small for the backbone timm|does not accept imag"
    ):
        new_backbone(options(RESNET), 3, 1)


@pytest.mark.parametrize(("train", "trained"), [("head", False), ("all", True), ("last-1", True)])
def test_all_of_it_is_trained_or_nothing(timm, train, trained):
    ours = new_backbone(options(RESNET, train), 3, SIDE).train()
    assert bool(ours.parameters_to_train) is ours.stages[0].training is trained
    with pytest.raises(EtagError, match=r"^model\.train=last-2 is too much: the backbone has 1 stages\. Choose all"):
        new_backbone(options(RESNET, "last-2"), 3, SIDE)


def test_it_can_have_an_auxiliary_classifier(timm):
    solver = build_solver(options(RESNET), HeadOptions(), 3, SIDE, STREAM)
    solver.head.grow(2, STREAM.torch_generator("head"))
    solver.add_auxiliaries(1, STREAM)
    solver.auxiliaries[0].head.grow(8, STREAM.torch_generator("auxiliary"))
    outputs = solver.train()(images(rows=4), Need.LOGITS | Need.STAGES | Need.AUXILIARY)
    assert [logits.shape for logits in outputs.auxiliary] == [(4, 8)]
    (outputs.logits.sum() + outputs.auxiliary[0].square().sum()).backward()
    assert all(parameter.grad is not None for parameter in solver.parameters())


def test_an_unknown_network(timm):
    with pytest.raises(
        EtagError, match=r"^timm [\d.]+ cannot build no_such_net \(.*\): correct the name, or update timm"
    ):
        new_backbone(options("no_such_net"), 3, SIDE)


def test_a_network_larger_than_memory(timm, monkeypatch):
    monkeypatch.setattr("etag.models.initial._memory", lambda: 1000)
    with torch.device("meta"), pytest.raises(EtagError, match="does not fit into this machine's"):
        build_solver(options(VIT), HeadOptions(), 3, SIDE, STREAM)


# -- what runs without timm --------------------------------------------------------------------------------------------


@pytest.fixture
def package(monkeypatch, tmp_path):
    """package(code): a package of the name timm that runs this when it is imported."""

    def make(code):
        (tmp_path / "timm").mkdir()
        (tmp_path / "timm" / "__init__.py").write_text(code)
        for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tmp_path)

    return make


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(EtagError, match=r"^backbones of timm need that package: pip install 'etag-cil\[timm\]'\.$"):
        new_backbone(options(RESNET), 3, SIDE)


BROKEN = {
    "raise RuntimeError('operator torchvision::nms does not exist')": "operator torchvision::nms does not exist",
    "import no_torchvision": "No module named 'no_torchvision'",
    "raise OSError('libx.so: cannot open.\\nmore lines')": "libx.so: cannot open",
    "raise ImportError": "ImportError",
}


@pytest.mark.parametrize(("code", "why"), BROKEN.items())
def test_a_timm_that_cannot_be_imported(package, code, why):
    package(code)
    with pytest.raises(EtagError) as error:
        import_timm()
    assert str(error.value) == (
        f"timm is installed but cannot be imported ({why}): install the torchvision that belongs to torch "
        f"{torch.__version__}, or choose other weights."
    )


def test_the_reason_is_one_short_sentence():
    assert reason(ValueError("It failed: see x.py. Try again.\nmore")) == "It failed: see x.py"
    assert reason(ValueError("file x.py failed:\n details")) == "file x.py failed"
    assert reason(ValueError("a. ")) == "a"
    assert reason(ValueError()) == "ValueError"
    assert len(reason(ValueError("x" * 1000))) == 200


HOSTILE = [
    *("hf-hub:owner/name", "hf_hub:owner/name", "local-dir:/tmp/x", "/tmp/x", "../x", "owner/name", "C:\\x", "x:y"),
    *("Resnet50", "x.y.z", "x.", ".x", "-x", "x y", "x\n", "x\0", "é", "", "x" * 101, None, 3, ["x"], {"a": 1}),
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_name_that_is_none_of_timm(name, package):
    package("raise SystemExit('timm must not be imported')")
    with pytest.raises(
        EtagError, match=r"^model\.architecture cannot be used: .* is not the name of a network of timm, s"
    ):
        new_backbone(ModelOptions(backbone="timm", architecture={"name": name}), 3, SIDE)


def test_without_a_name():
    with pytest.raises(
        EtagError, match=r"^model\.backbone=timm needs to know which network: set model\.weights to timm:"
    ):
        new_backbone(ModelOptions(backbone="timm"), 3, SIDE)
    with pytest.raises(EtagError, match="None is not the name of a network of timm"):
        new_backbone(ModelOptions(backbone="timm", architecture={"model_type": "vit"}), 3, SIDE)


def test_with_other_channels():
    with pytest.raises(EtagError, match=r"^the weights expect images of 3 channels, and these have 1"):
        new_backbone(options(RESNET), 1, SIDE)
