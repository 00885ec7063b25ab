"""Every number of the paper's tables, compared with the paper's LaTeX source."""

import re

import pytest
from tests.conftest import SHARED_DATA, skip_unless_required

from etag.experiments.paper import column_of, published

SOURCE = SHARED_DATA.parent / "paper" / "etag.tex"
OUR_NAMES = {"bi-r": "bir"}


@pytest.fixture(scope="module")
def table():
    """table(label): the cells of the table with this LaTeX label, as plain text, row by row."""
    if not SOURCE.is_file():
        skip_unless_required("ETAG_REQUIRE_DATA", f"the paper's source is not in {SOURCE}")
    text = SOURCE.read_text()

    def cells(label):
        body = text.split(rf"\label{{{label}}}")[1].split(r"\begin{tabular}")[1].split(r"\end{tabular}")[0]
        body = body.partition(r"\toprule")[2]
        rows = [[plain(cell) for cell in row.split("&")] for row in body.split(r"\\")]
        return [row for row in rows if len(row) > 1]

    return cells


def plain(cell):
    """A cell without commands and braces: `56.76 (±1.62)` becomes `56.76 1.62`."""
    cell = re.sub(r"\\rowcolor\{Gray\}|\\(tiny|textbf|underline|pm|midrule)", " ", cell)
    return " ".join(re.sub(r"[{}()$+]", " ", cell).split())


def ours(name):
    name = name.replace(" ", "").lower()
    return OUR_NAMES.get(name, name)


def numbers(cell):
    value, *deviation = map(float, cell.split())
    return (value, deviation[0] if deviation else None)


def test_table_1(table):
    _, *whole = [row for row in table("tab:1") if len(row) == 13]  # the first names the metrics
    rows = {ours(name): cells for name, *cells in whole}
    assert list(rows) == published().methods
    columns = list(published().table1)
    assert columns == [f"{data}-{tasks}" for data in ("cifar100", "imagenet-sub") for tasks in (5, 10, 25)]
    for method, row in rows.items():
        for number, column in enumerate(columns):
            result = published().table1[column][method]
            assert (result.A, result.A_std) == numbers(row[2 * number])
            assert (result.F, result.F_std) == numbers(row[2 * number + 1])


def test_table_2(table):
    by_name = {row[0]: row[1:] for row in table("tab:2")}
    marks = {r"\xmark": False, r"\cmark": True}
    methods = [ours(name) for name in by_name["Method"]]
    assert methods == list(published().ablation)
    for method, ge, kd, ss, db, a in zip(
        methods, *(by_name[name] for name in ("GE", "KD", "SS", "DB", r"A \uparrow")), strict=True
    ):
        column = published().ablation[method]
        assert ("none" if ge == r"\xmark" else ge, kd) == (column.GE, column.KD)
        assert (marks[ss], marks[db], float(a)) == (column.SS, column.DB, column.A)


def test_self_supervised_tasks(table):
    assert list(map(float, table("tab:difssl")[-1])) == list(published().self_supervised.values())


def test_times(table):
    names, train, test = table("tab:ablstu")
    assert [ours(name) for name in names] == list(published().time)
    assert list(map(float, train)) == [seconds.train for seconds in published().time.values()]
    assert list(map(float, test)) == [seconds.test for seconds in published().time.values()]


def test_generative_methods(table):
    names, values = table("tab:comwit")
    assert [ours(name) for name in names] == list(published().generative)
    assert [numbers(value) for value in values] == [(a.A, a.A_std) for a in published().generative.values()]


def test_the_one_doubtful_value_is_marked():
    result = published().table1["imagenet-sub-25"]["eewc"]
    assert (result.F, result.F_std) == (result.A, result.A_std)
    assert published().doubt("imagenet-sub-25", "eewc", "F") == "repeats the accuracy beside it"
    assert published().doubt("imagenet-sub-25", "eewc", "A") is None


@pytest.mark.parametrize(
    ("data", "split", "column"),
    [
        ("cifar100", "b50-5x10", "cifar100-5"),
        ("imagenet-sub", "b50-25x2", "imagenet-sub-25"),
        ("cifar100", "b8-4x3", None),
        ("digits", "b50-5x10", None),
    ],
)
def test_columns_are_found_by_data_and_split(data, split, column):
    assert column_of(data, split) == column
