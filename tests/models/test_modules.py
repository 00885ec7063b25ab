from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from etag.core.random import Stream
from etag.models.modules import ConvNorm, StoredTensors, uses_batch_statistics, without_tracking

IMAGES = 3 + 2 * torch.randn(6, 2, 4, 4, generator=Stream.root(0).generator())


# -- Kept ------------------------------------------------------------------------------------------


class Notes(StoredTensors):
    def __init__(self):
        super().__init__()
        self.store(means=torch.empty(0, 3), count=torch.zeros((), dtype=torch.long))


def test_what_is_kept_takes_the_size_of_what_is_loaded():
    written, fresh = Notes(), Notes()
    written.store(means=torch.arange(6.0).view(2, 3), count=torch.tensor(7))
    fresh.load_state_dict(written.state_dict())
    assert torch.equal(fresh.means, written.means)
    assert fresh.count == 7


def test_it_is_a_copy():
    state = Notes().state_dict() | {"means": torch.ones(2, 3)}
    fresh = Notes()
    fresh.load_state_dict(state)
    state["means"].zero_()
    assert fresh.means.tolist() == [[1.0] * 3] * 2


def test_it_can_be_loaded_as_a_part_of_something_larger():
    whole, fresh = (nn.ModuleDict({"notes": Notes(), "layer": nn.Linear(1, 1)}) for _ in range(2))
    whole["notes"].store(means=torch.ones(4, 3))
    fresh.load_state_dict(whole.state_dict())
    assert fresh["notes"].means.shape == (4, 3)


def test_tensors_that_were_one_tensor_before_loading_are_loaded_apart():
    class Pair(StoredTensors):
        def __init__(self):
            super().__init__()
            nothing = torch.empty(0)
            self.store(one=nothing, other=nothing)

    written, fresh = Pair(), Pair()
    written.store(one=torch.ones(2), other=torch.zeros(3))
    fresh.load_state_dict(written.state_dict())
    assert fresh.one.tolist() == [1, 1]
    assert fresh.other.tolist() == [0, 0, 0]


def test_what_is_missing_or_unknown_is_refused():
    with pytest.raises(RuntimeError, match=r"Missing key.*means"):
        Notes().load_state_dict({"count": torch.tensor(1)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*others"):
        Notes().load_state_dict(Notes().state_dict() | {"others": torch.zeros(1)})


def test_only_what_is_named_is_replaced_and_nothing_is_trained():
    notes = Notes()
    notes.store(means=torch.ones(1, 3))
    notes.store(count=torch.tensor(2))
    assert (notes.means.shape, notes.count.item()) == ((1, 3), 2)
    assert list(notes.parameters()) == []
    assert set(notes.state_dict()) == {"means", "count"}


# -- BatchNorm -------------------------------------------------------------------------------------


@pytest.fixture
def normed():
    """A layer, with a BatchNorm inside a part of it."""
    return nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm2d(2)))


def statistics(module):
    norm = module[1][0]
    return norm.running_mean.tolist(), norm.running_var.tolist(), norm.num_batches_tracked.item()


def test_batchnorm_in_training_follows_the_data(normed):
    assert uses_batch_statistics(normed.train())
    assert not uses_batch_statistics(normed.eval())
    assert not uses_batch_statistics(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train())
    assert uses_batch_statistics(nn.BatchNorm1d(2))
    normed.train()
    normed[1][0].eval()  # as the engine freezes it
    assert not uses_batch_statistics(normed)


def test_untracked_it_normalises_by_the_batch_without_taking_note(normed):
    normed.train()
    tracked = normed(IMAGES)
    normed[1][0].reset_running_stats()
    before = statistics(normed)
    with without_tracking(normed):
        made = normed(IMAGES)
    assert torch.equal(made, tracked)
    torch.testing.assert_close(made.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    assert statistics(normed) == before


def test_afterwards_it_takes_note_again(normed):
    normed.train()
    with without_tracking(normed):
        normed(IMAGES)
    normed(IMAGES)
    means, _, count = statistics(normed)
    batch = IMAGES.relu().mean((0, 2, 3))
    assert means == pytest.approx((0.1 * batch).tolist())  # of a first batch, at momentum 0.1
    assert count == 1


def test_also_where_something_fails(normed):
    def fail():
        with without_tracking(normed.train()):
            raise KeyError("within")

    with pytest.raises(KeyError, match="within"):
        fail()
    before = statistics(normed)
    normed(IMAGES)
    assert statistics(normed) != before


def test_in_evaluation_untracked_changes_nothing(normed):
    normed(IMAGES)
    normed.eval()
    expected = normed(IMAGES)
    with without_tracking(normed):
        assert torch.equal(normed(IMAGES), expected)


# -- a convolution and its BatchNorm ---------------------------------------------------------------

SHAPES = [  # channels, out, kernel, stride, groups
    (4, 6, 3, 1, 1),
    (4, 6, 3, 2, 1),
    (4, 6, 1, 1, 1),
    (4, 6, 1, 2, 1),
    (4, 6, 7, 2, 1),
    (4, 4, 3, 1, 4),
    (4, 8, 3, 2, 2),
]
MAPS = 1 + torch.randn(5, 4, 9, 9, dtype=torch.float64, generator=Stream.root(0).generator("maps"))


def conv_norm(*shape):
    """With statistics and affine weights as after some training, and one channel turned around."""
    made, noise = ConvNorm(*shape).double(), Stream.root(0).generator("conv", *shape)
    norm = made[1]
    with torch.no_grad():
        made[0].weight.copy_(torch.randn(made[0].weight.shape, generator=noise))
        norm.weight.copy_(torch.randn(len(norm.weight), generator=noise))
        norm.bias.copy_(torch.randn(len(norm.bias), generator=noise))
        norm.weight[0] = -1.5
        norm.running_mean.copy_(3 * torch.randn(len(norm.bias), generator=noise))
        norm.running_var.copy_(0.1 + 4 * torch.rand(len(norm.bias), generator=noise))
    return made


def plain(made, x):
    """One after the other, from the weights alone."""
    conv, norm = made
    y = functional.conv2d(x, conv.weight, None, conv.stride, conv.padding, groups=conv.groups)
    return functional.batch_norm(
        y, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps
    )


def answered(compute, made):
    """The map, and the gradients of the input and of all weights under some loss."""
    x = MAPS.clone().requires_grad_()
    y = compute(x)
    pull = torch.randn(y.shape, dtype=y.dtype, generator=Stream.root(0).generator("pull"))
    return [y, *torch.autograd.grad((y * pull).sum() + y.square().sum(), [x, *made.parameters()])]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_a_convolution_and_then_batch_norm_gradients_included(shape, mode):
    folded = conv_norm(*shape).train(mode == "train")
    apart = deepcopy(folded)
    found, expected = answered(folded, folded), answered(lambda x: plain(apart, x), apart)
    assert len(found) == 2 + 3  # the convolution has no bias of its own
    for value, wanted in zip(found, expected, strict=True):
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(value, wanted)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(folded[1], name), getattr(apart[1], name))


def test_in_training_it_is_exactly_the_two_modules():
    made = conv_norm(4, 6, 3, 2).train()
    other, start = deepcopy(made), deepcopy(made.state_dict())
    found, expected = answered(made, made), answered(lambda x: other[1](other[0](x)), other)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in made.state_dict().items())
    changed = {name for name, value in made.state_dict().items() if not torch.equal(value, start[name])}
    assert changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert made[1].num_batches_tracked == 1


@pytest.mark.parametrize("whole", [True, False], ids=["evaluated", "frozen"])
def test_statistics_that_stand_still_are_used_and_not_touched(whole):
    made = conv_norm(4, 6, 3).train()
    (made if whole else made[1]).eval()  # the engine freezes the BatchNorm alone
    before, first = deepcopy(made.state_dict()), made(MAPS[:1])
    answered(made, made)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    torch.testing.assert_close(made(MAPS)[:1], first)  # nor does a row depend on the others


def test_its_weights_have_the_names_of_a_sequence():
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert list(ConvNorm(2, 3, 3).state_dict()) == ["0.weight", *(f"1.{name}" for name in norm)]
    assert ConvNorm(2, 3, 5)(torch.zeros(2, 2, 9, 9)).shape == (2, 3, 9, 9)  # the side stays


def test_untracked_it_takes_no_note_either():
    made = conv_norm(4, 6, 3).train()
    before, expected = deepcopy(made.state_dict()), plain(deepcopy(made), MAPS)
    with without_tracking(made):
        torch.testing.assert_close(made(MAPS), expected)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_maps_keep_their_layout_and_precision(kind):
    made = conv_norm(4, 6, 3).eval().to(memory_format=torch.channels_last).to(kind)
    maps = made(MAPS.to(kind).contiguous(memory_format=torch.channels_last))
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert maps.dtype == kind
    error = (maps.double() - plain(conv_norm(4, 6, 3).eval(), MAPS)).abs().max()
    assert error < (1e-4 if kind == torch.float32 else 1)


def test_it_can_be_differentiated_twice():
    made, x = conv_norm(4, 6, 3, 2).eval(), MAPS[:2, :, :5, :5].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, *_: made(x).tanh(), (x, *made.parameters()))
