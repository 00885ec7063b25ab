import torch
from tests.methods.test_closed_form import frozen  # noqa: F401
from torch.nn import functional


def test_an_old_feature_is_a_new_one_moved_to_the_old_mean(frozen):  # noqa: F811
    made = frozen("fetril")
    made.learn(0)
    made.begin(1)
    head = made.works(1)["head"]
    objective, means = head.module, made.method.prototypes.means
    seen = []

    def watch(_, inputs):
        seen.append(inputs[0])

    handle = objective.head.register_forward_pre_hook(watch)
    batch = next(iter(head.batches.epoch(0)))
    terms = objective(batch)
    handle.remove()
    real, moved = seen
    assert torch.equal(real, batch.inputs)
    labels = batch.draws.integers("old labels", 0, 3, batch.total)
    task = made.task(1)
    with torch.no_grad():
        rows = made.method.solver.backbone.eval()(made.preprocess.centered(task.train.pixels))
    for label, row in zip(labels.tolist(), moved, strict=True):
        cosines = [torch.cosine_similarity(means[label], means[new], dim=0) for new in (3, 4)]
        nearest = 3 + int(torch.stack(cosines).argmax())
        possible = rows[task.train.labels == nearest] - means[nearest] + means[label]
        assert (possible - row).abs().amax(1).min() < 1e-5
    logits = objective.head(moved)
    torch.testing.assert_close(terms["old"], 3 / 5 * functional.cross_entropy(logits, labels))
    torch.testing.assert_close(terms["ce"], 2 / 5 * functional.cross_entropy(objective.head(real), batch.labels))


def test_only_means_are_stored_of_old_classes(frozen):  # noqa: F811
    made = frozen("fetril")
    made.learn(0, 1)
    assert set(made.method.parts) == {"solver", "prototypes"}
    assert made.method.prototypes.means.shape == (5, made.method.solver.backbone.feature_size)
