import json

import pytest

from etag.core.errors import EtagError
from etag.report.records import read_embeddings, read_run


def test_a_run_is_read_with_what_follows_from_it(make_run):
    record = read_run(make_run(classes=(3, 2), split="b3-1x2"))
    metrics = record.metrics
    assert (metrics.tasks, metrics.classes, metrics.seen) == (2, 5, [3, 5])
    assert metrics.task_of_class == [0, 0, 0, 1, 1]
    assert [len(row) for row in metrics.accuracies] == [1, 2]
    assert "name: etag" in record.config
    assert len(record.steps) == 2 * 2 * 40
    assert record.embedding is not None


def test_task_aware_steps_are_weighted_by_classes(make_run):
    run = make_run(classes=(3, 1), split="b3-1x1", task_aware_matrix=[[0.8, None], [0.6, 1.0]])
    assert read_run(run).metrics.step_accuracy_task_aware == pytest.approx([0.8, (3 * 0.6 + 1.0) / 4])


def test_optional_files_may_be_missing(make_run):
    run = make_run(optional=False)
    (run / "config.yaml").unlink()
    record = read_run(run)
    assert (record.embedding, record.steps, record.config) == (None, [], "")


def test_a_torn_line_of_a_killed_run_is_left_out(make_run):
    run = make_run()
    whole = read_run(run).steps
    with (run / "steps.jsonl").open("a") as file:
        file.write('{"task": 5, "phase": "sol')
    assert read_run(run).steps == whole


def test_a_directory_without_metrics_is_no_finished_run(tmp_path):
    with pytest.raises(EtagError, match=r"no finished run: .*metrics\.json is missing\.$"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "cannot be used: Invalid JSON"),
        (b'{"method": "etag"}', "cannot be used: data: Field required"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_broken_metrics_are_refused_by_name(make_run, content, reason):
    run = make_run()
    (run / "metrics.json").write_bytes(content)
    with pytest.raises(EtagError, match=rf"metrics\.json {reason}.*\.$") as refusal:
        read_run(run)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accuracy_matrix": [[0.5]]}, "accuracy_matrix must have 2 rows of 2 values"),
        ({"task_aware_matrix": [[0.5, None], [None, 0.5]]}, "task_aware_matrix lacks a number"),
        ({"confusion": [[1, 2]]}, "confusion must have 4 rows of 4 values"),
        ({"train_seconds": [1.0]}, "train_seconds must have one value for each of the 2 tasks"),
        ({"class_names": ["cat"]}, "class_names must name all 4 classes"),
        ({"classes_per_task": []}, "classes_per_task"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make_run, changes, reason):
    run = make_run(classes=(2, 2), split="b2-1x2", **changes)
    with pytest.raises(EtagError, match=rf"metrics\.json cannot be used: .*{reason}"):
        read_run(run)


def test_an_embedding_that_does_not_fit_is_refused(make_run):
    run = make_run()
    (run / "embedding.json").write_text(json.dumps({"points": [[0, 0]], "labels": [10]}))
    with pytest.raises(EtagError, match=r"embedding\.json has labels beyond the 10 classes"):
        read_run(run)
    (run / "embedding.json").write_text(json.dumps({"points": [[0, 0]], "labels": [1, 2]}))
    with pytest.raises(EtagError, match=r"embedding\.json cannot be used: there are 1 points but 2 labels"):
        read_run(run)


def test_features_after_each_task_or_else_after_the_last(make_run):
    run = make_run(classes=(2, 2), split="b2-1x2")
    record = read_run(run, logs=False)
    assert (record.embedding, record.steps) == (None, [])
    assert list(read_embeddings(record)) == [2]
    for task in (1, 2):
        (run / f"embedding-{task:03}.json").write_text(json.dumps({"points": [[0, 0]], "labels": [task]}))
    assert {task: one.labels for task, one in read_embeddings(record).items()} == {1: [1], 2: [2]}
    (run / "embedding-002.json").write_text(json.dumps({"points": [[0, 0]], "labels": [4]}))
    with pytest.raises(EtagError, match=r"embedding-002\.json has labels beyond the 4 classes"):
        read_embeddings(record)
