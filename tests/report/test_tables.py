import csv

import pytest

from etag.report.agreement import Spread
from etag.report.tables import BEST, EMPTY, SECOND, Cell, Column, Row, Table, number_cell, spread_cell


@pytest.fixture
def table():
    columns = [
        Column("method", is_numeric=False),
        Column("A (%)", "my_data"),
        Column("paper", "my_data"),
        Column("seeds"),
    ]
    rows = [
        Row([Cell("Lucir ‡"), spread_cell(Spread(12.345, 0.5), rank=SECOND), number_cell(10.68), Cell("0, 1")]),
        Row([Cell("a|b_c"), spread_cell(Spread(50, None), rank=BEST), EMPTY, Cell("0")], shaded=True, line_above=True),
    ]
    return Table("main", "What & where", columns, rows, ["‡ keeps exemplars."])


def test_groups_have_their_widths(table):
    assert table.groups == [("", 1), ("my_data", 2), ("", 1)]


def test_csv_has_plain_numbers_and_deviations_apart(table):
    head, first, second = csv.reader(table.csv().splitlines())
    assert head == ["method", "my_data A (%)", "my_data A (%) std", "my_data paper", "seeds"]
    assert first == ["Lucir ‡", "12.345", "0.5", "10.68", "0, 1"]
    assert second == ["a|b_c", "50", "", "", "0"]


def test_markdown_marks_the_best_and_escapes(table):
    lines = table.markdown().splitlines()
    assert lines[2:4] == ["| method | my\\_data A (%) | my\\_data paper | seeds |", "| :--- | ---: | ---: | ---: |"]
    assert lines[4:6] == ["| Lucir ‡ | <u>12.35 ± 0.50</u> | 10.68 | 0, 1 |", "| a\\|b\\_c | **50.00** | – | 0 |"]
    assert lines[-1] == "‡ keeps exemplars."


def test_latex_is_a_tabular(table):
    text = table.latex()
    assert r"Lucir $^\ddagger$ & \underline{12.35 $\pm$ 0.50} & 10.68 & 0, 1 \\" in text
    assert "\\midrule\n\\rowcolor[gray]{0.92}\na|b\\_c & \\textbf{50.00} & -- & 0 \\\\" in text
    assert r"\multicolumn{2}{c}{my\_data}" in text
    assert text.startswith("% What \\& where\n\\begin{tabular}{lrrr}")
    assert text.count("{") == text.count("}")
