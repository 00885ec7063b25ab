import inspect

import torch

from etag.methods import joint


def test_joint_trains_on_the_images_of_all_tasks_so_far(lab):
    laboratory = lab("joint", drop_last=False)
    laboratory.begin(0, 1)
    assert laboratory.method.info.all_data
    phase = next(laboratory.method.phases(laboratory.task(1)))
    labels = torch.cat([batch.labels for batch in phase.batches.epoch(0)])
    assert labels.bincount().tolist() == [8] * 5


def test_from_scratch_every_task_starts_with_the_weights_of_a_fresh_run(lab, snapshot):
    laboratory, fresh = (lab("joint", {"start": "scratch"}) for _ in range(2))
    laboratory.learn(0, 1)
    trained = snapshot(laboratory.method.solver)
    laboratory.begin(2)
    fresh.begin(0, 1, 2)
    expected = fresh.method.solver.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in laboratory.method.solver.state_dict().items())
    assert not torch.equal(trained["head.blocks.0.weight"], expected["head.blocks.0.weight"])
    assert laboratory.method.task_sizes == [3, 2, 2]


def test_warm_every_task_continues_from_the_last(lab, snapshot):
    laboratory = lab("joint")
    laboratory.learn(0, 1)
    trained = snapshot(laboratory.method.solver)
    laboratory.begin(2)
    solver = laboratory.method.solver.state_dict()
    assert all(torch.equal(solver[key], value) for key, value in trained.items())
    assert laboratory.method.options.start == "warm"


def test_joint_is_a_short_file():
    assert len(inspect.getsource(joint).splitlines()) <= 50
