import pytest
import torch
from torch import nn

from etag.core.random import Stream
from etag.models.modules import Kept, follows_data, untracked

IMAGES = 3 + 2 * torch.randn(6, 2, 4, 4, generator=Stream.root(0).generator())


# -- Kept ------------------------------------------------------------------------------------------


class Notes(Kept):
    def __init__(self):
        super().__init__()
        self.keep(means=torch.empty(0, 3), count=torch.zeros((), dtype=torch.long))


def test_what_is_kept_takes_the_size_of_what_is_loaded():
    written, fresh = Notes(), Notes()
    written.keep(means=torch.arange(6.0).view(2, 3), count=torch.tensor(7))
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
    whole["notes"].keep(means=torch.ones(4, 3))
    fresh.load_state_dict(whole.state_dict())
    assert fresh["notes"].means.shape == (4, 3)


def test_what_is_missing_or_unknown_is_refused():
    with pytest.raises(RuntimeError, match=r"Missing key.*means"):
        Notes().load_state_dict({"count": torch.tensor(1)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*others"):
        Notes().load_state_dict(Notes().state_dict() | {"others": torch.zeros(1)})


def test_only_what_is_named_is_replaced_and_nothing_is_trained():
    notes = Notes()
    notes.keep(means=torch.ones(1, 3))
    notes.keep(count=torch.tensor(2))
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
    assert follows_data(normed.train())
    assert not follows_data(normed.eval())
    assert not follows_data(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train())
    assert follows_data(nn.BatchNorm1d(2))
    normed.train()
    normed[1][0].eval()  # as the engine freezes it
    assert not follows_data(normed)


def test_untracked_it_normalises_by_the_batch_without_taking_note(normed):
    normed.train()
    tracked = normed(IMAGES)
    normed[1][0].reset_running_stats()
    before = statistics(normed)
    with untracked(normed):
        made = normed(IMAGES)
    assert torch.equal(made, tracked)
    torch.testing.assert_close(made.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    assert statistics(normed) == before


def test_afterwards_it_takes_note_again(normed):
    normed.train()
    with untracked(normed):
        normed(IMAGES)
    normed(IMAGES)
    means, _, count = statistics(normed)
    batch = IMAGES.relu().mean((0, 2, 3))
    assert means == pytest.approx((0.1 * batch).tolist())  # of a first batch, at momentum 0.1
    assert count == 1


def test_also_where_something_fails(normed):
    def fail():
        with untracked(normed.train()):
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
    with untracked(normed):
        assert torch.equal(normed(IMAGES), expected)
