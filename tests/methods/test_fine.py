import inspect

import pytest
import torch

from etag.core.outputs import Need
from etag.methods import fine


def test_fine_is_cross_entropy_over_the_classes_seen(lab, naive):
    laboratory = lab("fine", {"head": {"growth": "fixed"}})
    laboratory.begin(0, 1)
    phase = next(laboratory.method.phases(laboratory.task(1)))
    batch = next(phase.batches.epoch(0))
    terms = phase.module.eval()(batch)
    logits = laboratory.method.solver(batch.inputs, Need.LOGITS).logits
    assert list(terms) == ["ce"]
    assert terms["ce"].item() == pytest.approx(naive.cross_entropy(logits, batch.labels, range(5)), rel=1e-5)


def test_fine_learns(lab):
    laboratory = lab("fine", lr=0.01, epochs=20)
    laboratory.learn(0)
    images = laboratory.task(0).train
    with torch.no_grad():
        logits = laboratory.method.solver(laboratory.preprocess.centered(images.pixels), Need.LOGITS).logits
    assert (logits.argmax(1) == images.labels).float().mean() > 0.8  # a third would be chance


def test_fine_is_a_short_file():
    assert len(inspect.getsource(fine).splitlines()) <= 50
