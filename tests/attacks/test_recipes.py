"""Hostile recipes, grids and configurations: nothing that is read names code to run, and each ends in one sentence."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.app.conftest import etag, refused
from tests.runs import SMALL

import etag as package
from etag.core.errors import EtagError
from etag.data.scenario import parse_split
from etag.experiments import plugins, recipes, yaml_files
from etag.experiments.config import resolve
from etag.experiments.grid import Grid
from etag.experiments.local_workers import LocalWorkers
from etag.report.collection import read_collection

SECONDS = 4.0  # of processor time, on a busy machine; a quiet one takes at most 1.3
QUICK = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


pytestmark = pytest.mark.usefixtures("no_hang")


def one_sentence(work, *says):
    """What `work` is refused with, soon and on one line."""
    start = time.process_time()
    with pytest.raises(EtagError) as refusal:
        work()
    assert time.process_time() - start < SECONDS
    message = str(refusal.value)
    assert "\n" not in message
    assert len(message) < 2000
    for words in says:
        assert words in message
    return message


# -- plug-ins --------------------------------------------------------------------------------------


@pytest.fixture
def harm(tmp_path):
    """A Python file that leaves a mark where it is run."""
    file = tmp_path / "harm.py"
    file.write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write('run ')\n")
    return file


def unharmed(harm):
    return not (harm.parent / "mark").exists()


def named_at_the_top(harm):
    return {"recipe.yaml": {"data": "digits", "plugins": [str(harm)]}}


def named_for_a_method(harm):
    return {"recipe.yaml": {"data": "digits", "method": "fine", "methods": {"fine": {"plugins": [str(harm)]}}}}


def named_by_what_it_extends(harm):
    return {"recipe.yaml": {"extends": "_base"}, "_base.yaml": {"data": "digits", "plugins": [str(harm)]}}


def named_by_another_path(harm):
    link = harm.with_name("link.py")
    link.symlink_to(harm)
    return {"recipe.yaml": {"data": "digits", "plugins": [str(link)]}}


def named_as_a_text(harm):
    return {"recipe.yaml": {"data": "digits", "plugins": str(harm)}}


WAYS = [named_at_the_top, named_for_a_method, named_by_what_it_extends, named_by_another_path, named_as_a_text]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_recipe_that_names_a_plug_in_does_not_run_it(way, harm, tmp_path):
    for name, content in way(harm).items():
        (tmp_path / name).write_text(yaml.safe_dump(content))
    message = refused(etag("run", tmp_path / "recipe.yaml", *QUICK, "--dry-run"))
    assert unharmed(harm)
    if way is not named_as_a_text:
        assert str(harm) in message
        assert "--plugin" in message


def test_settings_and_presets_do_not_name_code_either(harm, tmp_path):
    message = refused(etag("run", "digits", "--dry-run", *QUICK, "--set", f"plugins=['{harm}']"))
    assert "--plugin" in message
    (tmp_path / "preset.yaml").write_text(yaml.safe_dump({"plugins": [str(harm)]}))
    assert str(harm) in refused(etag("run", "digits", "--preset", tmp_path / "preset.yaml", *QUICK, "--dry-run"))
    settings = SMALL | {"plugins": [str(harm)]}
    one_sentence(lambda: package.run("digits", out=tmp_path / "run", settings=settings), str(harm))
    assert unharmed(harm)


def test_the_configuration_of_a_strangers_run_does_not_name_code(harm, tmp_path):
    config = resolve("digits", {"method": "fine"}).to_json() | {"plugins": [str(harm)]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert str(harm) in refused(etag("run", tmp_path / "config.yaml", *QUICK, "--dry-run"))
    assert unharmed(harm)


@pytest.mark.parametrize(
    "content",
    [
        {"settings": {"plugins": ["HARM"]}},
        {"variants": {"": {"plugins": ["HARM"]}}},
        {"search": {"over": {"plugins": [["HARM"]]}, "split": "b1-1x1", "classes": 2}},
        {"runs": [{"settings": {"plugins": ["HARM"]}}]},
        {"recipe": "RECIPE"},
    ],
    ids=lambda content: next(iter(content)),
)
def test_a_grid_that_names_a_plug_in_does_not_run_it(content, harm, tmp_path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"data": "digits", "plugins": [str(harm)]}))
    usual = {"recipe": "digits", "methods": ["fine"], "splits": ["b2-1x2"], "seeds": [0]}
    text = yaml.safe_dump(usual | content).replace("HARM", str(harm)).replace("RECIPE", str(tmp_path / "recipe.yaml"))
    (tmp_path / "grid.yaml").write_text(text)
    message = refused(etag("bench", tmp_path / "grid.yaml", "--dry-run", "--store", tmp_path / "store"))
    assert str(harm) in message
    assert "--plugin" in message
    assert unharmed(harm)


def test_a_plug_in_that_the_command_line_allows_is_run_once_and_recorded(harm, tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(named_at_the_top(harm)["recipe.yaml"]))
    monkeypatch.chdir(tmp_path)
    done = etag("run", "recipe.yaml", "--method", "fine", *QUICK, "--dry-run", "--plugin", "harm.py")
    assert done.returncode == 0, done.stderr
    assert f"- {harm}" in done.stdout
    assert (tmp_path / "mark").read_text() == "run "


def test_only_the_allowed_one_of_two_is_not_enough(harm, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"data": "digits", "plugins": [str(other), str(harm)]}))
    message = refused(etag("run", tmp_path / "recipe.yaml", *QUICK, "--dry-run", "--plugin", other))
    assert str(harm) in message
    assert str(other) not in message
    assert unharmed(harm)


def test_the_command_that_repeats_a_run_of_a_grid_allows_its_plug_in(harm, tmp_path):
    (tmp_path / "grid.yaml").write_text("recipe: digits\nmethods: [fine]\nseeds: [0]\n")
    (run,) = Grid.load(str(tmp_path / "grid.yaml"), plugins.load([harm])).all_runs()
    assert f"--plugin {harm}" in run.command
    assert "plugins=" not in run.command


def test_the_environment_and_python_may_name_plug_ins(harm, tmp_path, monkeypatch):
    second = tmp_path / "second.py"
    second.write_text(f"open({str(tmp_path / 'second mark')!r}, 'w').close()\n")
    monkeypatch.setenv("ETAG_PLUGINS", os.pathsep.join(["", str(harm), str(second)]))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(named_at_the_top(harm)["recipe.yaml"]))
    assert resolve(str(tmp_path / "recipe.yaml")).plugins == [str(harm)]
    assert (tmp_path / "mark").read_text() == "run "
    assert (tmp_path / "second mark").exists()


@pytest.mark.parametrize("value", [3, [3], [[1]], {"a": 1}, ["\0.py"], [None], ["~nobody-of-this-name/x.py"]], ids=str)
def test_plug_ins_that_are_no_files_are_refused(value):
    one_sentence(lambda: resolve("digits", {"plugins": value}), "plugins")


# -- a stranger's model ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of a tiny run, and a picture to predict."""
    from etag.app.sources import source_folders
    from etag.experiments.run import run

    home = tmp_path_factory.mktemp("stranger")
    run(resolve("digits", {"method": "gfr", **SMALL, "split": "b2-1x1", "train.epochs": 1}), home / "model")
    source_folders("digits", home / "images", "0-1", 2)
    return home / "model"


PROBE = """
import sys
sys.argv = ["etag", *sys.argv[1:]]
from etag.cli import main
try:
    main()
finally:
    print("methods:", sorted(name for name in sys.modules if name.startswith("etag.methods.")), file=sys.stderr)
"""


def probe(*words, path, **environment):
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, path))} | environment
    command = [sys.executable, "-c", PROBE, *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def looks(model, tmp_path_factory):
    """How `info` and `predict` end where a package and the environment offer plug-ins; and the folder of their marks.
    The package is installed as far as an installer's files tell."""
    place = tmp_path_factory.mktemp("package")
    (place / "their_plugin.py").write_text(f"open({str(place / 'installed')!r}, 'w').close()\n")
    (place / "mine.py").write_text(f"open({str(place / 'environment')!r}, 'w').close()\n")
    about = place / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[etag.plugins]\ntheirs = their_plugin\n")
    source = Path(package.__file__).parents[1]
    more = {"path": [source, place], "ETAG_PLUGINS": str(place / "mine.py")}
    info = probe("info", model, **more)
    predict = probe("predict", model, model.parent / "images" / "0" / "00000.png", **more)
    assert info.returncode == predict.returncode == 0, info.stderr + predict.stderr
    return info, predict, place


def test_looking_at_a_model_loads_no_plug_in(looks):
    *_, place = looks
    assert not (place / "installed").exists()
    assert not (place / "environment").exists()


@pytest.mark.parametrize("number", [0, 1], ids=["info", "predict"])
def test_looking_at_a_model_imports_no_method(looks, number):
    assert looks[number].stderr.splitlines()[-1] == "methods: []"


def test_a_plug_in_of_this_very_command_line_is_loaded(model, harm):
    assert etag("info", model, "--plugin", harm).returncode == 0
    assert not unharmed(harm)


# -- YAML ------------------------------------------------------------------------------------------

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "k0: &k0 [x]\n" + "".join(f"k{number}: &k{number} [*k{number - 1}]\n" for number in range(1, 3000))
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
ATTACKS = {
    "billion laughs": LAUGHS,
    "a chain of aliases": CHAIN,
    "merged laughs": MERGES,
    "wide laughs": "a: &a [" + "x, " * 9000 + "]\nb: [" + "*a, " * 9000 + "]\n",
    "an alias of itself": "a: &a [*a]\n",
    "a merge of itself": "a: &a {<<: *a}\n",
    "many keys": "".join(f"key{number}: 1\n" for number in range(20_000)),
    "many equal keys": "key: 1\n" * 20_000,
    "many numbers": "a: [" + "1, " * 300_000 + "]\n",
    "deep lists": "a: " + "[" * 20_000,
    "closed deep lists": "a: " + "[" * 900 + "]" * 900,
    "deep mappings": "a: " + "{a: " * 5000,
    "deep blocks": "".join(" " * depth + "a:\n" for depth in range(600)),
    "deep dashes": "a:\n" + "- " * 20_000,
    "deep questions": "? " * 20_000,
    "too large": "# " + "x" * 40_000_000,
    "giant integer": "seed: " + "9" * 10_000,
    "giant negative integer": "seed: -" + "9" * 10_000,
    "giant hexadecimal": "seed: 0x" + "f" * 100_000,
    "giant sexagesimal": "seed: 1" + ":59" * 200_000,
    "beyond 64 bits": "train: {epochs: 99999999999999999999}",
    "NUL": "data: digits\0",
    "escaped NUL": 'data: "digits\\0"',
    "escape sequence": 'data: "\\e[2Jdigits"',
    "surrogate": 'data: "\\ud800"',
    "control character": "data: dig\x07its",
    "not UTF-8": b"data: \xff\xfe\xfa",
    "UTF-16": "data: digits\n".encode("utf-16"),
    "a list as key": "? [a, b]\n: 1\n",
    "a mapping as key": "? {a: b}\n: 1\n",
    "a date": "seed: 2024-01-01\n",
    "a date as key": "2024-01-01: 1\n",
    "a set": "data: !!set {a, b}\n",
    "bytes": "data: !!binary aGVsbG8=\n",
    "ordered": "data: !!omap [a: 1]\n",
    "python object": "data: !!python/object/apply:os.system [echo harm]\n",
    "python name": "data: !!python/name:os.system ''\n",
    "own tag": "data: !mine x\n",
    "wrong tag": "seed: !!int x\n",
    "wrong map": "data: !!map [a]\n",
    "wrong float": "train: {lr: !!float x}\n",
    "several documents": "a: 1\n---\nb: 2\n",
    "number as method": "method: 3\n",
    "number as name of a method": "method: {name: 3}\n",
    "list as name of a method": "method: {name: [a]}\n",
    "list as name of data": "data: {name: [a]}\n",
    "number as data": "data: 3\n",
    "null as data": "data: {name: null}\n",
    "list as methods": "methods: [a]\n",
    "number as section": "methods: {etag: 3}\n",
    "number as key": "3: 4\n",
    "null as key": "~: 4\n",
    "keys of many kinds": "{1: 2, a: 3, null: 4, 1.5: 6, true: 7}\n",
    "infinite": "train: {lr: .inf, epochs: .inf}\n",
    "not a number": "train: {lr: .nan}\n",
    "only an alias": "*a",
    "unknown alias": "a: *b",
    "anchor twice": "a: &x 1\nb: &x 2\nc: {a: {b: *x}}\n",
    "empty": "",
    "a text": "text",
    "tabs": "a:\n\t- b\n",
    "directive": "%TAG ! !!\n%TAG ! !!\n---\na: 1\n",
    "long version": "%YAML " + "9" * 10_000 + ".1\n---\na: 1\n",
    "extends itself": "extends: recipe\n",
    "extends a number": "extends: 3\n",
    "extends numbers": "extends: [3]\n",
    "extends a mapping": "extends: {a: b}\n",
    "extends null": "extends: [null]\n",
    "extends outside": "extends: ../outside\n",
    "extends from the root": "extends: /etc/outside\n",
    "extends NUL": 'extends: "a\\0b"\n',
    "extends a long name": "extends: " + "a" * 5000 + "\n",
    "extends many": "extends: [" + "_other, " * 5000 + "]\n",
    "monstrous split": "data: digits\nsplit: b0-1000000000x1\n",
    "monstrous base": "data: digits\nsplit: b99999999999999999999-1x1\n",
    "unreadable split": "data: digits\nsplit: b0-" + "9" * 9000 + "x1\n",
    "foreign digits": "data: digits\nsplit: b٥-٥x١\n",
    "a path as split": "data: digits\nsplit: ../../../x\n",
    "a list as split": "split: [a]\n",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_recipe_is_refused_in_one_sentence(name, tmp_path):
    content = ATTACKS[name]
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "recipe.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "_other.yaml").write_text("data: digits\n")
    (tmp_path / "outside.yaml").write_text("data: digits\n")
    one_sentence(lambda: resolve(str(folder / "recipe.yaml")))


@pytest.mark.parametrize("name", [name for name in ATTACKS if not name.startswith("extends")])
def test_a_hostile_grid_is_refused_in_one_sentence(name, tmp_path):
    content = ATTACKS[name]
    (tmp_path / "grid.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    one_sentence(lambda: Grid.load(str(tmp_path / "grid.yaml")).all_runs())


@pytest.mark.parametrize(
    "name", ["billion laughs", "merged laughs", "giant integer", "NUL", "deep lists", "too large", "python object"]
)
def test_a_hostile_configuration_in_a_run_directory_is_refused(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(ATTACKS[name])
    start = time.process_time()
    message = refused(etag("run", "digits", "--method", "fine", "--out", tmp_path / "run"))
    assert time.process_time() - start < SECONDS
    assert "config.yaml" in message


def test_recipes_that_extend_each_other_are_refused(tmp_path):
    for name, other in (("one", "two"), ("two", "three"), ("three", "one")):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {other}\n")
    one_sentence(lambda: resolve(str(tmp_path / "one.yaml")), "extends")


def test_recipes_that_extend_twice_each_do_not_take_for_ever(tmp_path):
    for number in range(40):
        (tmp_path / f"r{number}.yaml").write_text(f"extends: [r{number + 1}, r{number + 1}]\n")
    (tmp_path / "r40.yaml").write_text("data: digits\n")
    one_sentence(lambda: resolve(str(tmp_path / "r0.yaml")), "extends")


def test_a_link_does_not_lead_out_of_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "outside.yaml").write_text("data: digits\n")
    (tmp_path / "in" / "inside.yaml").symlink_to(tmp_path / "outside.yaml")
    (tmp_path / "in" / "recipe.yaml").write_text("extends: inside\n")
    one_sentence(lambda: resolve(str(tmp_path / "in" / "recipe.yaml")), "folder")


def test_the_recipes_of_the_package_still_extend_each_other():
    for name in recipes.available():
        assert recipes.load(name)


def fifo(folder):
    os.mkfifo(folder / "recipe.yaml")
    return folder / "recipe.yaml"


def device(folder):
    (folder / "recipe.yaml").symlink_to("/dev/zero")
    return folder / "recipe.yaml"


def directory(folder):
    (folder / "recipe.yaml").mkdir()
    return folder / "recipe.yaml"


def extended_fifo(folder):
    os.mkfifo(folder / "_base.yaml")
    (folder / "recipe.yaml").write_text("extends: _base\n")
    return folder / "recipe.yaml"


def home_of_nobody(_):
    return "~nobody-of-this-name/recipe.yaml"


def nul(_):
    return "a\0b.yaml"


@pytest.mark.parametrize(
    "make", [fifo, device, directory, extended_fifo, home_of_nobody, nul], ids=lambda make: make.__name__
)
def test_what_is_no_file_is_no_recipe(make, tmp_path):
    path = str(make(tmp_path))
    one_sentence(lambda: resolve(path))
    if make is not extended_fifo:
        one_sentence(lambda: Grid.load(path))
        one_sentence(lambda: yaml_files.read(Path(path)))


@pytest.mark.parametrize(
    "setting",
    [
        "seed=" + "9" * 10_000,
        "train.lr=" + "[" * 20_000,
        "train.base=" + "{a: " * 3000,
        "train.base={a: &a [*a]}",
        "data=!!python/object/apply:os.getcwd []",
        'data="\\0"',
        "a." * 20_000 + "b=1",
        "." * 50_000 + "=1",
        "train=2024-01-01",
        "method=3",
        "method=[a]",
        "data=[a]",
        "data={a: b}",
        "split=b0-1000000000x1",
        "split=3",
        "train.steps=100000000000000000000",
        "data.path=!!binary aGVsbG8=",
        "methods=3",
        "train.base={1: 2}",
        "data.name=~nobody-of-this-name",
    ],
    ids=lambda text: text[:30],
)
def test_hostile_settings_are_refused_in_one_sentence(setting):
    one_sentence(lambda: resolve("digits", settings=[setting]))


@pytest.mark.parametrize("name", ["b0-1000000000x1", "b1-99999999999x1", "b0-1x" + "9" * 5000, "b99999999-1x1"])
def test_monstrous_splits_are_refused(name):
    one_sentence(lambda: parse_split(name), "split")
    one_sentence(lambda: parse_split(name, 100), "split")


# -- grids -----------------------------------------------------------------------------------------

PLAIN = {"recipe": "digits", "methods": ["fine"], "splits": ["b2-1x2"], "seeds": [0]}


@pytest.mark.parametrize(
    "content",
    [
        {"variants": {"../../../../victim": {}}},
        {"variants": {"x/../../../victim": {}}},
        {"variants": {"a\nb": {}}},
        {"variants": {"x" * 300: {}}},
        {"splits": ["../../victim"]},
        {"search": {"over": {"train.lr": [0.1]}, "split": "../../victim", "classes": 2}},
    ],
    ids=lambda content: str(content)[:40],
)
def test_no_run_of_a_grid_is_outside_its_folder(content, tmp_path):
    """With --restart, the folders of runs that failed are deleted."""
    victim = tmp_path / "victim-seed0"
    victim.mkdir()
    (victim / "precious").write_text("")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(PLAIN | content))
    words = ["bench", tmp_path / "grid.yaml", "--store", tmp_path / "store", "--results", tmp_path / "results"]
    refused(etag(*words, "--restart"))
    assert (victim / "precious").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.yaml", "victim-seed0"]


def test_values_that_are_tried_are_no_folders(tmp_path):
    search = {"over": {"data.path": ["../../../victim"]}, "split": "b1-1x1", "classes": 2}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(PLAIN | {"search": search}))
    tried, _ = Grid.load(str(tmp_path / "grid.yaml")).all_runs()
    assert tried.name == "search/b1-1x1/fine-path=.._.._.._victim-seed0"


@pytest.mark.parametrize(
    "content",
    [
        {"seeds": list(range(3000)), "methods": ["fine"] * 3000},
        {"seeds": list(range(1000)), "variants": {f"v{number}": {} for number in range(1000)}},
        {"search": {"over": {f"train.k{n}": list(range(10)) for n in range(12)}, "split": "b1-1x1", "classes": 2}},
        {"seeds": list(range(100)), "runs": [{"methods": ["fine"]}] * 200},
    ],
    ids=["seeds and methods", "seeds and variants", "search", "blocks"],
)
def test_a_grid_of_millions_of_runs_is_refused(content, tmp_path):
    (tmp_path / "grid.yaml").write_text(json.dumps(PLAIN | content))
    one_sentence(lambda: Grid.load(str(tmp_path / "grid.yaml")).all_runs(), "runs")


def test_the_report_of_a_grid_of_millions_of_runs_is_refused(tmp_path):
    from tests.report.conftest import write_run

    write_run(tmp_path / "b5-5x1" / "etag-seed0")
    (tmp_path / "grid.yaml").write_text(json.dumps(PLAIN | {"seeds": list(range(4000)), "methods": ["fine"] * 4000}))
    one_sentence(lambda: [grid.missing() for grid in read_collection([tmp_path]).grids], "runs")


def test_modules_beside_a_grid_are_not_imported_by_its_runs(tmp_path, monkeypatch):
    """The working directory may be a folder that somebody else packed."""
    mark, out = tmp_path / "mark", tmp_path / "store" / "run"
    for name in ("typer", "yaml", "rich", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit(0)\n")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(PLAIN))
    (run,) = Grid.load(str(tmp_path / "grid.yaml")).all_runs()
    out.mkdir(parents=True)
    (out / "something").write_text("so that the run ends before it trains")
    monkeypatch.chdir(tmp_path)
    job = LocalWorkers(1).start(run, out)
    signal.alarm(60)
    while (reason := job.ended()) is None:
        time.sleep(0.1)
    assert not mark.exists()
    assert "is not a run directory" in reason
