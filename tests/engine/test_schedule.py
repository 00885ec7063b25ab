import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from etag.core.options import TrainOptions
from etag.engine.schedule import Plateau, rate_factor


def factors(steps, per_epoch, **options):
    training = TrainOptions(**options)
    return [rate_factor(training, step, per_epoch, steps) for step in range(steps)]


def test_step_divides_by_ten_every_thirty_epochs_by_default():
    found = factors(100 * 4, 4)
    assert found[:120] == [1.0] * 120
    assert found[120:240] == pytest.approx([0.1] * 120)
    assert found[-1] == pytest.approx(1e-3)


def test_cosine_falls_from_one_to_nearly_zero():
    found = factors(50, 5, schedule="cosine")
    assert found[0] == 1.0
    assert found[25] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(found))
    assert 0 < found[-1] < 1e-2


def test_one_cycle_rises_to_one_at_the_warm_up_and_ends_at_nothing():
    found = factors(100, 10, schedule="onecycle", warmup=0.3)
    assert found[0] == pytest.approx(1 / 25)
    assert max(found) == found[30] == 1.0
    assert found[-1] == pytest.approx(1 / 250_000)
    # half a cosine on the way up, as PyTorch's OneCycleLR has it
    assert found[15] == pytest.approx(1 / 25 + (1 - 1 / 25) * 0.5 * (1 - math.cos(math.pi / 2)))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_cycle_survives_very_short_phases(steps):
    assert all(0 < factor <= 1 for factor in factors(steps, 1, schedule="onecycle"))


def test_plateau_decays_after_its_patience_goes_back_to_the_best_weights_and_ends():
    module = nn.Linear(1, 1)
    training = TrainOptions(schedule="plateau", lr=1e-2, decay=0.1, patience=2, min_lr=1e-3)
    plateau = Plateau(training, module)
    assert plateau.watch(1.0)
    best = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.add_(1)
    assert plateau.watch(1.5)
    assert plateau.factor == 1.0
    assert plateau.watch(2.0), "1e-3 is not below the smallest rate"
    assert plateau.factor == pytest.approx(0.1)
    assert torch.equal(module.weight, best)
    assert plateau.watch(2.0)
    assert not plateau.watch(2.0), "1e-4 is"


def test_plateau_forgets_its_waiting_when_the_loss_falls():
    plateau = Plateau(TrainOptions(schedule="plateau", patience=2), nn.Linear(1, 1))
    for loss in (3.0, 4.0, 2.0, 4.0):
        plateau.watch(loss)
    assert plateau.factor == 1.0
