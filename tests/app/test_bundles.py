"""The practitioner's loop, through the command line: learn, predict, learn more, evaluate, forget, export."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import torch
from etag.app.bundle import Bundle
from safetensors.torch import load_file, save_file
from tests.app.conftest import etag, said, settings

from etag.app.predicting import predict_files, probabilities
from etag.data.folders import list_images


@pytest.fixture
def copied(learned, tmp_path):
    shutil.copytree(learned, tmp_path / "model")
    return tmp_path / "model"


def test_what_is_known_after_two_lessons(learned):
    about = said(etag("info", learned, "--json"))
    assert about["classes"] == [f"digit {digit}" for digit in range(5)]
    assert about["task_sizes"] == [3, 2]
    assert [lesson["kind"] for lesson in about["history"]] == ["learn", "learn"]
    assert [lesson["images"] for lesson in about["history"]] == [60, 40]
    assert about["versions"] == [1, 2]
    told = etag("info", learned).stdout
    assert "no image is stored" in told
    assert "no guarantee" in told
    assert "digit 3, digit 4" in told


def test_it_is_right_more_often_than_chance(learned, digits_folder):
    known = digits_folder("test", range(5), first=100, count=20)
    found = said(etag("evaluate", learned, known, "--json"))
    assert found["images"] == 100
    assert found["accuracy"] > 0.4, "five digits, chance is 0.2"
    assert sum(map(sum, found["confusion"])) == 100
    assert {row["class"] for row in found["per_class"]} == {f"digit {digit}" for digit in range(5)}
    assert 0 <= found["calibration_error"] <= 1


def test_predicting_never_looks_at_what_learns(copied, digits_folder):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    before = etag("predict", copied, *files[:7], "--format", "csv")
    assert before.returncode == 0, before.stderr
    place = copied / "versions" / "2"
    predictor, learner = (set(load_file(place / f"{part}.safetensors")) for part in ("predictor", "learner"))
    assert not predictor & learner
    assert not any("auxiliaries" in name or name.startswith("generator") for name in predictor)
    assert any("auxiliaries" in name for name in learner)
    (place / "learner.safetensors").unlink()
    assert etag("predict", copied, *files[:7], "--format", "csv").stdout == before.stdout
    refused = etag("learn", copied, digits_folder("third", (5, 6)))
    assert refused.returncode == 2
    assert "was removed: it predicts, but learns no more" in refused.stderr


def test_predictions_in_all_forms_from_files_folders_patterns_and_lists(learned, digits_folder):
    folder = digits_folder("test", range(5), first=100, count=20)
    files = list_images(folder)
    table = list(csv.DictReader(io.StringIO(etag("predict", learned, folder, "--format", "csv").stdout)))
    assert [row["path"] for row in table] == files
    assert set(table[0]) == {"path", "class", "probability"}
    assert all(0 < float(row["probability"]) <= 1 for row in table)
    by_pattern = etag("predict", learned, str(folder / "digit 3" / "*.png"), "--format", "csv").stdout
    from_list = etag("predict", learned, "--format", "csv", stdin="\n".join(files[60:80]) + "\n").stdout
    assert by_pattern == from_list
    assert len(by_pattern.splitlines()) == 21
    lines = etag("predict", learned, files[0], "--format", "json", "--top", 3).stdout.splitlines()
    answers = json.loads(lines[0])["answers"]
    assert len(answers) == 3
    likely = [answer["probability"] for answer in answers]
    assert likely == sorted(likely, reverse=True)
    assert answers[0]["class"] == table[0]["class"]
    assert files[0] in etag("predict", learned, files[0]).stdout


def test_files_that_can_not_be_read_do_not_stop_the_rest(learned, digits_folder, tmp_path):
    good = list_images(digits_folder("test", range(5), first=100, count=20))[:2]
    (tmp_path / "bad.png").write_bytes(b"no image at all")
    done = etag(
        "predict", learned, good[0], tmp_path / "bad.png", tmp_path / "missing.png", good[1], "--format", "csv"
    )
    assert done.returncode == 1
    assert [row["path"] for row in csv.DictReader(io.StringIO(done.stdout))] == good
    assert f"{tmp_path / 'bad.png'} cannot be read: not an image." in done.stderr
    assert f"{tmp_path / 'missing.png'} cannot be read: file not found." in done.stderr


def test_what_is_unlike_all_classes_can_be_rejected(learned, digits_folder):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    classifier, about = Bundle(learned).classifier()
    answers = list(predict_files(classifier, about, files, reject=True))
    rejected = [answer for answer in answers if not answer.classes]
    plain = {answer.path: answer for answer in predict_files(classifier, about, files)}
    assert all(plain[answer.path].probabilities[0] < about.threshold for answer in rejected)
    assert len(rejected) < 50, "most images of known classes pass"
    assert sum(plain[answer.path].probabilities[0] >= about.threshold for answer in answers) == 100 - len(rejected)


def test_probabilities_do_not_depend_on_the_batch(learned):
    classifier, about = Bundle(learned).classifier()
    pixels = torch.randint(0, 256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    concat_images = probabilities(classifier, about, pixels)
    torch.testing.assert_close(concat_images.sum(1), torch.ones(9))
    apart = torch.cat([probabilities(classifier, about, row[None]) for row in pixels])
    torch.testing.assert_close(apart, concat_images, rtol=1e-4, atol=1e-6)


def test_rolled_back_it_predicts_as_before_and_learns_on_from_there(copied, digits_folder):
    done = etag("models", "rollback", copied)
    assert "version 1 again" in done.stdout
    assert said(etag("info", copied, "--json"))["classes"] == ["digit 0", "digit 1", "digit 2"]
    again = etag("models", "rollback", copied)
    assert again.returncode == 2
    assert "no version before 1" in again.stderr
    assert etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4").returncode == 0
    about = said(etag("info", copied, "--json"))
    assert about["classes"] == ["digit 0", "digit 1", "digit 2", "digit 5", "digit 6"]
    assert about["version"] == 3


def test_more_images_of_known_classes(copied, digits_folder):
    more = digits_folder("more", (1, 4), first=40, count=30)
    before, _ = Bundle(copied).learner()
    refused = etag("learn", copied, more)
    assert refused.returncode == 2
    assert "known already (digit 1, digit 4): take them out, or give their images with --update" in refused.stderr
    done = etag("learn", copied, more, "--update")
    assert done.returncode == 0, done.stderr
    about = said(etag("info", copied, "--json"))
    assert about["history"][-1]["kind"] == "update"
    assert about["history"][-1]["classes"] == ["digit 1", "digit 4"]
    assert about["classes"] == [f"digit {digit}" for digit in range(5)]
    after, _ = Bundle(copied).learner()
    kept, now = before.solver.state_dict(), after.solver.state_dict()
    assert all(torch.equal(kept[name], now[name]) for name in kept if name.startswith("backbone")), "it stays"
    assert not torch.equal(kept["head.blocks.0.weight"], now["head.blocks.0.weight"])
    strange = etag("learn", copied, digits_folder("third", (5, 6)), "--update")
    assert strange.returncode == 2
    assert "these are new: digit 5, digit 6" in strange.stderr


@pytest.mark.parametrize(("name", "sizes"), [("digit 1", [2, 2]), ("digit 4", [3, 1])])
def test_a_class_can_be_forgotten(copied, digits_folder, name, sizes):
    files = list_images(digits_folder("test", range(5), first=100, count=20))
    classifier, about = Bundle(copied).classifier()
    pixels = torch.randint(0, 256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    before, gone = probabilities(classifier, about, pixels), about.classes.index(name)
    done = etag("forget", copied, name)
    assert done.returncode == 0, done.stderr
    bundle = Bundle(copied)
    assert bundle.versions == [3], "older versions know it still"
    classifier, about = bundle.classifier()
    assert list(about.task_sizes) == sizes
    kept = [place for place in range(5) if place != gone]
    renormalized = before[:, kept] / before[:, kept].sum(1, keepdim=True)
    torch.testing.assert_close(probabilities(classifier, about, pixels), renormalized, rtol=1e-4, atol=1e-5)
    assert name not in json.dumps(said(etag("info", copied, "--json")))
    assert name not in etag("predict", copied, *files, "--format", "csv").stdout.replace(f"/{name}/", "/")
    method, _ = bundle.learner()
    assert len(method.replay.generator.decoder_in.rows) == 4
    on = etag("learn", copied, digits_folder("third", (5, 6)), "--set", "train.steps=4")
    assert on.returncode == 0, on.stderr
    unknown = etag("forget", copied, name)
    assert unknown.returncode == 2
    assert f"knows no class '{name}'" in unknown.stderr


def test_export_to_onnx(learned, tmp_path):
    import onnxruntime

    done = etag("export", learned, "--onnx", tmp_path / "model.onnx")
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == [f"digit {digit}" for digit in range(5)]
    assert "from 0 to 1" in about["input"]
    pixels = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    (found,) = session.run(None, {"images": (pixels.float() / 255).numpy()})
    np.testing.assert_allclose(found, probabilities(*Bundle(learned).classifier(), pixels).numpy(), atol=1e-4)


def test_export_to_torch(learned, tmp_path):
    done = etag("export", learned, "--torch", tmp_path / "model.pt2")
    assert done.returncode == 0, done.stderr
    program = torch.export.load(tmp_path / "model.pt2").module()
    pixels = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    expected = probabilities(*Bundle(learned).classifier(), pixels)
    torch.testing.assert_close(program(pixels.float() / 255), expected, rtol=0, atol=1e-4)


def test_a_dry_run_says_what_would_be_done_and_leaves_no_bundle(digits_folder, tmp_path):
    done = etag("learn", tmp_path / "model", digits_folder("first", (0, 1, 2)), *settings(), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "3 new classes: 60 images to learn from, 15 held out; 8x8 pixels" in done.stdout
    assert "this should take about" in done.stdout
    assert not Bundle(tmp_path / "model").exists()


@pytest.mark.parametrize("method", ["gfr", "fine", "lwf", "lucir", "il2m", "pass", "gc", "dgr"])
def test_other_methods_learn_bundles_too(digits_folder, tmp_path, method):
    own = {
        "gfr": ["method.generator.train.steps=20", "method.generator.feature_passes=1"],
        "gc": ["method.generator.train.steps=20", "method.feature_passes=1"],
        "dgr": ["method.generator.train.steps=20"],
    }.get(method, [])
    words = settings(*own, "train.steps=6", "train.base={steps: 6}", generator=False)
    for folder, more in (("first", ["--method", method, *words]), ("second", ["--set", "train.steps=6"])):
        digits = (0, 1, 2) if folder == "first" else (3, 4)
        done = etag("learn", tmp_path / "model", digits_folder(folder, digits), *more)
        assert done.returncode == 0, done.stderr
    stored = "images are stored" if method in ("lucir", "il2m") else "no image is stored"
    assert stored in etag("info", tmp_path / "model").stdout
    found = said(etag("evaluate", tmp_path / "model", digits_folder("second", (3, 4)), "--json"))
    assert found["images"] == 50


def test_given_weights_are_where_it_begins(learned, digits_folder, tmp_path):
    kept = load_file(learned / "versions" / "1" / "predictor.safetensors")
    prefix = "solver.backbone."
    given = {name.removeprefix(prefix): value for name, value in kept.items() if name.startswith(prefix)}
    save_file(given, tmp_path / "weights.safetensors")
    frozen = settings("train.lr=1e-9", "train.base={steps: 1, lr: 1e-9}", "train.weight_decay=0")
    folder = digits_folder("third", (5, 6))
    done = etag("learn", tmp_path / "m", folder, "--weights", tmp_path / "weights.safetensors", *frozen)
    assert done.returncode == 0, done.stderr
    assert "weights.safetensors" in done.stdout
    found = load_file(tmp_path / "m" / "versions" / "1" / "predictor.safetensors")
    for name, value in given.items():
        if value.is_floating_point() and "running" not in name:
            torch.testing.assert_close(found[prefix + name], value, atol=1e-6, rtol=0)
