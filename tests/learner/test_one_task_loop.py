"""One task loop, one training loop, one place that writes tensors: searched for in the source."""

import ast
import re
from pathlib import Path

import etag

SOURCE = Path(etag.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def lines_with(pattern):
    """(file, number of lines) for each file with lines that match."""
    counts = {
        str(file.relative_to(SOURCE)): len([line for line in file.read_text().splitlines() if re.search(pattern, line)])
        for file in FILES
    }
    return {file: count for file, count in counts.items() if count}


def test_a_task_begins_in_one_place():
    outside = {file: count for file, count in lines_with(r"\.begin_task\(").items() if not file.startswith("methods/")}
    assert outside == {"learner/learner.py": 1}


def test_a_task_ends_in_one_place():
    outside = {file: count for file, count in lines_with(r"\.end_task\(").items() if not file.startswith("methods/")}
    assert outside == {"learner/learner.py": 1}


def test_there_is_one_training_loop():
    assert lines_with(r"\.backward\(") == {"engine/training.py": 1}


def test_tensors_are_written_in_one_place():
    writers = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safetensors"):
                writers += [
                    (file.relative_to(SOURCE).as_posix(), a.name) for a in node.names if a.name.startswith("save")
                ]
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("safetensors") for alias in node.names), file
    assert writers == [("learner/tensors.py", "save")]


def test_nothing_is_pickled():
    assert lines_with(r"\bpickle\.(dump|dumps|load|loads)\(|torch\.save\((?!network\.state_dict)") == {}
