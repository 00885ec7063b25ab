import pytest
import torch
from torch import nn
from torch.nn import functional

from etag.core.random import Stream
from etag.models.heads import LinearHead


def grown(*blocks, bias=True):
    head = LinearHead(5, bias)
    for number, outputs in enumerate(blocks):
        head.grow(outputs, Stream.root(0).generator(number))
    return head


FEATURES = torch.randn(7, 5, generator=Stream.root(1).generator())


@pytest.mark.parametrize("bias", [True, False])
def test_blocks_make_one_linear_layer(bias):
    head = grown(3, 1, 2, bias=bias)
    whole = nn.Linear(5, 6, bias)
    rows = [row for block in head.blocks for row in block.weight.detach()]
    with torch.no_grad():
        whole.weight.copy_(torch.stack(rows))
        if bias:
            whole.bias.copy_(torch.stack([value for block in head.blocks for value in block.bias]))
    assert head.outputs == 6
    assert torch.equal(head(FEATURES), whole(FEATURES))
    assert any(name.endswith("bias") for name in head.state_dict()) is bias


def test_growing_leaves_the_old_outputs_as_they_were():
    head = grown(3)
    before = head(FEATURES)
    head.grow(2, Stream.root(0).generator("more"))
    torch.testing.assert_close(head(FEATURES)[:, :3], before)


def test_blocks_start_from_numbers_of_their_own():
    first, second = grown(3, 3).blocks
    assert not torch.equal(first.weight, second.weight)


def test_a_frozen_block_stays_bit_for_bit_under_adam_with_weight_decay():
    head = grown(3, 2, 2)
    head.blocks[1].requires_grad_(False)
    before = [block.weight.clone() for block in head.blocks]
    adam = torch.optim.Adam(head.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        adam.zero_grad()
        functional.cross_entropy(head(FEATURES), torch.arange(7)).backward()
        adam.step()
    same = [torch.equal(block.weight, old) for block, old in zip(head.blocks, before, strict=True)]
    assert same == [False, True, False]


def test_a_row_without_gradient_in_a_shared_block_would_have_moved():
    head = grown(4)
    before = head.blocks[0].weight.clone()
    adam = torch.optim.Adam(head.parameters(), lr=0.1, weight_decay=0.1)
    head(FEATURES)[:, :2].sum().backward()
    assert torch.count_nonzero(head.blocks[0].weight.grad[2:]) == 0
    adam.step()
    assert (head.blocks[0].weight != before)[2:].all()  # why freezing goes by blocks
