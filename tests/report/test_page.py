import base64
import html
import json
import re
from html.parser import HTMLParser
from io import BytesIO
from xml.etree import ElementTree

import pytest
from PIL import Image

from etag.core.errors import EtagError
from etag.evaluation.metrics import DEFINITIONS
from etag.report.formats import percent
from etag.report.page import write_comparison, write_run_report

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
        return re.sub(r"\s+", " ", "".join(self.words))


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def check_stands_alone(path):
    """One small file that asks nothing of the network, all of whose pictures can be seen or read aloud."""
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
            picture = Image.open(BytesIO(raw))
            picture.load()
            assert picture.width / picture.height == pytest.approx(
                int(image["width"]) / int(image["height"]), rel=0.02
            )
        else:
            assert ElementTree.fromstring(raw).tag.endswith("svg")
    return page


def test_a_run_page_says_what_was_measured(make_run):
    run = make_run()
    page = check_stands_alone(write_run_report(run))
    metrics = json.loads((run / "metrics.json").read_text())
    assert "eTag · digits · b5-5x1 · seed 0" in page.text
    for name, definition in DEFINITIONS.items():
        unit = "points" if name.startswith("F_") else "%"
        assert f"{name}{percent(metrics[name])} {unit}{definition}" in page.text
    assert f"Average accuracy A, weighted {percent(metrics['A_weighted'])} %" in page.text
    assert "2.66 MB" in page.text
    assert "665,256" in page.text
    assert "note: a <tag> & more" in page.text
    assert "torch2.9.0+cpu" in page.text
    assert "2025-03-01 12:00 UTC" in page.text
    assert len(page.images) == 6  # curve, matrix, confusion, embedding, two phases


def test_the_page_is_the_same_each_time(make_run):
    run = make_run(optional=False)
    first = write_run_report(run).read_bytes()
    assert write_run_report(run).read_bytes() == first
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_a_hundred_classes_fit_on_a_page(make_run):
    page = check_stands_alone(write_run_report(make_run(**BIG)))
    assert "100 classes in 11 tasks (50 + 10 × 5)" in page.text
    assert "task 11 (classes 95–99)" in page.text


def test_only_what_is_there_is_shown(make_run):
    run = make_run(optional=False)
    (run / "config.yaml").unlink()
    page = check_stands_alone(write_run_report(run))
    assert len(page.images) == 3
    assert "t-SNE" not in page.text
    assert "Configuration" not in page.text


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
    page = check_stands_alone(write_comparison(runs, tmp_path / "demo" / "report.html"))
    sentence = "eTag is 59.0 points above Fine and 13.1 below Joint (A_weighted, digits, b5-5x1, seed 0)"
    assert sentence in page.text
    assert len(page.images) == 2 + 3 * 3
    links = [address for address in page.addresses if not address.startswith("data:")]
    assert links == ["fine%20%231/report.html", "etag%20%231/report.html", "joint%20%231/report.html"]
    check_stands_alone(runs[0] / "report.html")  # it had none


def test_a_comparison_over_seeds_of_a_hundred_classes(make_run, tmp_path):
    runs = [make_run(f"{m}-{s}", method=m, seed=s, optional=False, **BIG) for m in ("fine", "etag") for s in (0, 1)]
    for run in runs:
        (run / "report.html").touch()  # those that are there stay
    page = check_stands_alone(write_comparison(runs, tmp_path / "deep" / "er" / "all.html"))
    assert "seeds 0, 1, mean ± standard deviation" in page.text
    assert "../../fine-0/report.html" in page.addresses
    assert "Fine, seed 0" in page.text
    assert runs[0].joinpath("report.html").read_text() == ""


def test_one_key_is_not_given_to_different_class_orders(make_run, tmp_path):
    runs = [
        make_run(f"{seed}", method=method, seed=seed, names=[f"{seed}{n}" for n in range(10)])
        for seed, method in enumerate(("fine", "etag"))
    ]
    for run in runs:
        (run / "report.html").touch()
    page = read(write_comparison(runs, tmp_path / "all.html"))
    assert "learned the classes in different orders" in page.text


def test_a_place_that_can_not_be_written_is_named(make_run, tmp_path):
    run = make_run(optional=False)
    (run / "report.html").touch()
    (tmp_path / "file").touch()
    with pytest.raises(EtagError, match=r"file/report\.html cannot be written"):
        write_comparison([run], tmp_path / "file" / "report.html")
