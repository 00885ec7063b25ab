import pytest
from PIL import Image

from etag.core.errors import EtagError
from etag.evaluation.metrics import summary
from etag.report.records import read_run


def test_a_run_is_read_with_what_follows_from_it(make_run):
    record = read_run(make_run(classes=(3, 2), split="b3-1x2"))
    metrics = record.metrics
    assert (metrics.tasks, metrics.classes, metrics.seen) == (2, 5, [3, 5])
    assert metrics.task_of_class == [0, 0, 0, 1, 1]
    assert [len(row) for row in metrics.accuracies] == [1, 2]
    assert "name: etag" in record.config
    assert len(record.steps) == 2 * 2 * 40


def test_task_aware_steps_are_weighted_by_classes(make_run):
    run = make_run(classes=(3, 1), split="b3-1x1", task_aware_matrix=[[0.8, None], [0.6, 1.0]])
    assert read_run(run).metrics.step_accuracy_task_aware == pytest.approx([0.8, (3 * 0.6 + 1.0) / 4])


def test_optional_files_may_be_missing(make_run):
    run = make_run(optional=False)
    (run / "config.yaml").unlink()
    record = read_run(run)
    assert (record.steps, record.config, record.generated) == ([], "", {})


def test_half_a_line_of_a_killed_run_is_skipped(make_run):
    run = make_run()
    whole = read_run(run).steps
    with (run / "steps.jsonl").open("a") as file:
        file.write('{"task": 5, "phase": "sol')
    assert read_run(run).steps == whole


def test_a_directory_without_metrics_holds_no_finished_run(tmp_path):
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


def test_a_run_older_than_a_metric_is_read_and_the_metric_computed(make_run):
    metrics = read_run(make_run(F_plain=None, A_weighted=0.123)).metrics
    expected = summary(metrics.accuracies, metrics.classes_per_task)
    assert metrics.values == pytest.approx(expected | {"A_weighted": 0.123}), "what the file has is used"


def test_a_metric_that_is_no_number_is_refused(make_run):
    with pytest.raises(EtagError, match=r"metrics\.json cannot be used: stored_values\.A_weighted"):
        read_run(make_run(A_weighted="high"))


def test_options_of_another_time_do_not_matter(make_run):
    run = make_run()
    (run / "config.yaml").write_text("method: {name: etag, knob_of_old: 3}\nruntime: {embed_tasks: true}\n")
    assert "knob_of_old" in read_run(run).config


def test_generated_images_are_read_by_task(make_run):
    run = make_run()
    (run / "generated").mkdir()
    for task in (1, 12):
        Image.new("L", (4, 4)).save(run / "generated" / f"task-{task:03}.png")
    (run / "generated" / "task-x.png").touch()  # not one of ours
    assert list(read_run(run).generated) == [1, 12]
    (run / "generated" / "task-002.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(EtagError, match=r"task-002\.png is not a readable PNG image"):
        read_run(run)
