"""Stages as torch.compile makes them: the same numbers, made once, and gone when the phase ends."""

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch._dynamo.utils import counters

from etag.core.options import RuntimeOptions
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime, compiled
from etag.models.backbone import BACKBONES
from etag.models.backbones.resnet import ResNet


def with_options(**options):
    return Runtime(Fabric(accelerator="cpu", devices=1), RuntimeOptions(accelerator="cpu", **options))


def left_compiled(*modules):
    return [part for module in modules for part in module.modules() if part._compiled_call_impl is not None]


# -- without compiling anything --------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The modules that torch.compile is asked for; it leaves them as they are, but for a mark."""
    found = []

    def mark(self):
        found.append(self)
        self._compiled_call_impl = self._call_impl

    monkeypatch.setattr(nn.Module, "compile", mark)
    return found


def test_compiled_parts_are_so_only_within(asked):
    parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with compiled(parts):
        assert asked == parts
        assert left_compiled(*parts) == parts
    assert left_compiled(*parts) == []


def test_also_where_something_fails_they_are_as_before(asked):
    part = nn.Linear(2, 2)
    with pytest.raises(KeyError, match="within"), compiled([part]):
        raise KeyError("within")
    assert asked == [part]
    assert left_compiled(part) == []


def test_where_nothing_is_given_nothing_is_changed(asked):
    config = torch._dynamo.config
    with config.patch(recompile_limit=8):
        with compiled(()):
            assert config.recompile_limit == 8
        with compiled([nn.Linear(2, 2)]):
            assert config.recompile_limit == 256
    assert len(asked) == 1


@pytest.mark.parametrize("wanted", [True, False])
def test_a_phase_is_compiled_where_it_is_asked_for(lab, asked, wanted):
    laboratory = lab("etag", steps=1)
    laboratory.engine = Engine(with_options(compile=wanted))
    laboratory.learn(0)
    assert len(asked) == (4 + 3 if wanted else 0)
    laboratory.learn(1)
    assert len(asked) == (3 * (4 + 3) if wanted else 0)  # the teacher too
    assert left_compiled(*laboratory.method.parts.values(), laboratory.method.teacher) == []


def test_a_runtime_compiles_nothing_by_default():
    assert not RuntimeOptions().compile
    assert not Runtime(Fabric(accelerator="cpu", devices=1)).options.compile


# -- in earnest ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_tasks_are_learned_as_without_it_and_the_third_compiles_nothing(lab, disturb, monkeypatch):
    """On two stages of one block each: every stage in every mode takes the compiler seconds."""
    assert "resnet18" in BACKBONES
    small = {"stages": 2, "blocks": 1, "imagenet": False}
    monkeypatch.setitem(BACKBONES._items, "resnet18", lambda options, channels, _: ResNet(channels, 4, **small))
    torch._dynamo.reset()
    eager, made = (lab("etag", optimizer="sgd", lr=0.01) for _ in range(2))
    made.engine = Engine(with_options(compile=True))
    graphs = [counters["stats"]["unique_graphs"]]
    for index in range(3):
        for laboratory in (eager, made):
            laboratory.begin(index)
            # where the student is its teacher, the norm in Eq. (3) makes a direction of the last bits
            disturb(laboratory.method.solver, key=index)
            laboratory.engine.execute(laboratory.method.phases(laboratory.task(index)))
        graphs.append(counters["stats"]["unique_graphs"])
        assert left_compiled(*made.method.parts.values()) == []
    assert left_compiled(made.method.teacher) == []
    torch._dynamo.reset()
    assert graphs[0] < graphs[1] < graphs[2] == graphs[3]  # BatchNorm that trains, that is frozen; and no more
    expected = eager.method.solver.state_dict()
    for name, value in made.method.solver.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)
