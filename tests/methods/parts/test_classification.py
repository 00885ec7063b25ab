import pytest
import torch

from etag.core.outputs import Need, Outputs, Views
from etag.core.random import Draws, Stream
from etag.core.scenario import Task
from etag.core.work import Batch, StepData
from etag.methods.parts.classification import cross_entropy_term, output_range

TASK = Task(index=2, num_old=3, num_new=2, train=None, test=None, num_base=2)


@pytest.mark.parametrize(("scope", "outputs"), [("seen", (0, 5)), ("new", (3, 5)), ("old", (0, 3)), ("all", (0, None))])
def test_a_scope_is_a_range_of_outputs(scope, outputs):
    assert output_range(scope, TASK) == outputs


@pytest.mark.parametrize(("scope", "competing"), [("seen", range(5)), ("new", range(3, 5)), ("all", range(7))])
def test_the_term_runs_over_the_outputs_of_its_scope(naive, scope, competing):
    logits = torch.randn(
        4, 7, generator=Stream.root(0).torch_generator()
    ).requires_grad_()  # two classes are still to come
    labels = torch.tensor([3, 4, 4, 3])
    batch = Batch(torch.zeros(4, 1), labels, Draws(Stream.root(0)), 4)
    term = cross_entropy_term(TASK, scope, weight=0.25)
    loss = term.compute(StepData(batch, Views(batch.inputs, 4), Outputs(logits=logits), Outputs()))
    assert loss.item() == pytest.approx(naive.cross_entropy(logits, labels, competing), rel=1e-5)
    loss.backward()
    assert logits.grad.any(0).nonzero().flatten().tolist() == list(competing)
    assert (term.weight, term.student_need, term.teacher_need) == (0.25, Need.LOGITS, Need.NOTHING)
