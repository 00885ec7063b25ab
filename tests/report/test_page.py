import base64
import html
import json
import re
from html.parser import HTMLParser
from io import BytesIO
from xml.etree import ElementTree

import pytest
from PIL import Image
from tests.report.conftest import write_features

from etag.core.errors import EtagError
from etag.core.text import percent
from etag.evaluation.metrics import METRICS
from etag.report.comparison_page import write_comparison
from etag.report.page import write_run_report

BIG = {"split": "b50-10x5", "classes": (50, *[5] * 10)}


class Page(HTMLParser):
    """The parts of a page that tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.images, self.addresses = [], [], [], []
        self._silent = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.words += ["\0"] * (tag in ("td", "th"))
        self._silent = tag == "style"
        if tag == "img":
            self.images.append(given)
        self.addresses += [given[name] for name in ("src", "href") if name in given]

    def handle_endtag(self, tag):
        self._silent = False

    def handle_data(self, data):
        if not self._silent:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words).replace("\0", ""))

    @property
    def table_text(self):
        """The text with a space between the cells of tables."""
        return re.sub(r"[\s\0]+", " ", "".join(self.words))


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def check_stands_alone(path):
    """One small file that asks nothing of the network, all of whose figures can be seen or read aloud."""
    page, text = read(path), path.read_text(encoding="utf-8")
    assert path.stat().st_size < 2_000_000
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r'"data:[^"]*"', "", text))
    assert "@import" not in text
    assert "url(" not in text
    for image in page.images:
        assert len(image["alt"]) > 20
        kind, data = re.fullmatch(r"data:image/(png|svg\+xml);base64,(.+)", image["src"]).groups()
        raw = base64.b64decode(data, validate=True)
        if kind == "png":
            image_file = Image.open(BytesIO(raw))
            image_file.load()
            assert image_file.width / image_file.height == pytest.approx(
                int(image["width"]) / int(image["height"]), rel=0.02
            )
        else:
            assert ElementTree.fromstring(raw).tag.endswith("svg")
    return page


def test_a_run_page_has_everything_that_was_measured(make_run):
    run = make_run()
    page = check_stands_alone(write_run_report(run))
    metrics = json.loads((run / "metrics.json").read_text())
    assert "eTag · digits · b5-5x1 · seed 0" in page.text
    for metric in METRICS:
        assert f"{metric.name}{percent(metrics[metric.name])} {metric.unit}{metric.definition}" in page.text
    assert f"Average accuracy A, weighted {percent(metrics['A_weighted'])} %" in page.text
    assert "2.66 MB" in page.text
    assert "665,256" in page.text
    assert "note: a <tag> & more" in page.text
    assert "torch2.9.0+cpu" in page.text
    assert "2025-03-01 12:00 UTC" in page.text
    assert len(page.images) == 5  # curve, matrix, confusion, two phases
    assert "t-SNE" not in page.text


def test_the_page_is_the_same_each_time(make_run):
    run = make_run(optional=False)
    first = write_run_report(run).read_bytes()
    assert write_run_report(run).read_bytes() == first
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_a_hundred_classes_fit_on_a_page(make_run):
    run = make_run(**BIG)
    write_features(run, 11, 100, images=1)
    page = check_stands_alone(write_run_report(run))
    assert "100 classes in 11 tasks (50 + 10 × 5)" in page.text
    assert "task 11 (classes 95–99)" in page.text


def test_only_what_is_there_is_shown(make_run):
    run = make_run(optional=False)
    (run / "config.yaml").unlink()
    page = check_stands_alone(write_run_report(run))
    assert len(page.images) == 3
    assert "t-SNE" not in page.text
    assert "Configuration" not in page.text


def test_features_after_the_last_task_or_after_each(make_run):
    run = make_run()
    write_features(run, 6, 10)
    page = check_stands_alone(write_run_report(run))
    assert len(page.images) == 6
    assert any("t-SNE of 20 test images of eTag, seed 0 after task 6" in image["alt"] for image in page.images)
    for task in (1, 2):
        write_features(run, task, 4 + task)
    page = check_stands_alone(write_run_report(run))
    assert len(page.images) == 7
    assert any("after tasks 1, 2, 6" in image["alt"] for image in page.images)


def test_damaged_features_are_named_in_one_sentence(make_run):
    run = make_run()
    write_features(run, 6, 10).write_bytes(b"PK")
    with pytest.raises(EtagError, match=r"features/task-006\.npz cannot be used: "):
        write_run_report(run)


def test_generated_images_are_on_the_page(make_run):
    run = make_run()
    (run / "generated").mkdir()
    Image.new("L", (40, 20)).save(run / "generated" / "task-002.png")
    page = check_stands_alone(write_run_report(run))
    assert "Generated images" in page.text
    assert [image["width"] for image in page.images if "from the generator after task 2" in image["alt"]] == ["400"]


def test_a_run_without_a_newer_metric_has_a_page(make_run):
    run = make_run(F_plain=None)
    assert "F_plain" in read(write_run_report(run)).text


def test_a_single_task(make_run):
    page = check_stands_alone(write_run_report(make_run(classes=(10,), split="b10")))
    assert "10 classes in 1 task (10)" in page.text
    assert "Forgetting F, weighted 0.0 points" in page.text


@pytest.mark.filterwarnings("error")
def test_odd_class_names_are_shown_and_harmless(make_run):
    names = [
        "<b>bold</b>",
        '"><script>alert(1)</script>',
        "日本語",
        "$x_1",
        "_hidden",
        "a\nb",
        "&amp;",
        "🐈",
        "",
        "x" * 300,
    ]
    run = make_run(names=names)
    page = check_stands_alone(write_run_report(run))
    text = html.unescape(run.joinpath("report.html").read_text(encoding="utf-8"))
    assert "b" not in page.tags
    assert all(name in text for name in names)


def test_a_broken_run_writes_no_page(make_run):
    run = make_run()
    (run / "metrics.json").write_text("{")
    with pytest.raises(EtagError, match=r"metrics\.json"):
        write_run_report(run)
    assert not (run / "report.html").exists()


def test_a_comparison_of_three_methods(make_run, tmp_path):
    a = {"fine": 0.122, "etag": 0.712, "joint": 0.843}
    runs = [make_run(f"demo/{method} #1", method=method, A_weighted=value) for method, value in a.items()]
    for run in runs[1:]:
        (run / "report.html").touch()
    page = check_stands_alone(write_comparison(runs, tmp_path / "demo" / "report.html")[0])
    assert (
        "eTag has the highest A, 71.2 %, but two or more shared seeds are needed to say whether it is better than Fine."
        in page.text
    )
    assert "Fine +59.00 – – 0" in page.table_text, "the difference to Fine, without an interval"
    assert len(page.images) == 2 + 2 * 3
    links = [address for address in page.addresses if not address.startswith(("data:", "#"))]
    assert links == ["joint%20%231/report.html", "fine%20%231/report.html", "etag%20%231/report.html"]
    check_stands_alone(runs[0] / "report.html")  # it had none
    assert not (tmp_path / "demo" / "tables").exists()


def test_a_comparison_over_seeds_of_a_hundred_classes(make_run, tmp_path):
    runs = [make_run(f"{m}-{s}", method=m, seed=s, optional=False, **BIG) for m in ("fine", "etag") for s in (0, 1)]
    for run in runs:
        (run / "report.html").touch()  # reports that exist are not replaced
    page = check_stands_alone(write_comparison(runs, tmp_path / "deep" / "er" / "all.html")[0])
    assert "4 runs on digits b50-10x5" in page.text
    assert "../../fine-0/report.html" in page.addresses
    assert "Fine, seed 0" in page.text
    assert runs[0].joinpath("report.html").read_text() == ""


def test_one_key_is_not_given_to_different_class_orders(make_run, tmp_path):
    runs = [
        make_run(f"{seed}", method=method, seed=seed, names=[f"{seed}{n}" for n in range(10)])
        for seed, method in enumerate(("fine", "etag"))
    ]
    for run in runs:
        write_features(run, 6, 10, images=1)
        (run / "report.html").touch()
    page = read(write_comparison(runs, tmp_path / "all.html")[0])
    assert "These runs have different orders of classes" in page.text


def test_a_place_that_cannot_be_written_is_named(make_run, tmp_path):
    run = make_run(optional=False)
    (run / "report.html").touch()
    (tmp_path / "file").touch()
    with pytest.raises(EtagError, match=r"file/report\.html cannot be written"):
        write_comparison([run], tmp_path / "file" / "report.html")
