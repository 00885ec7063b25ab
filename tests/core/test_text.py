import math

import pytest

from etag.core.text import (
    brief,
    csv_cell,
    data_size,
    duration,
    exact_count,
    fixed,
    listing,
    percent,
    printable,
    short_count,
    task_sizes,
)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (percent, 0.6789, "67.9"),
        (percent, 1.0, "100.0"),
        (percent, -0.0001, "0.0"),
        (percent, -0.0126, "-1.3"),
        (percent, math.nan, "–"),
        (duration, 0.04, "0.0 s"),
        (duration, 59.94, "59.9 s"),
        (duration, 59.96, "1 min 0 s"),
        (duration, 95.4, "1 min 35 s"),
        (duration, 3599.7, "1 h 0 min"),
        (duration, 12_858, "3 h 34 min"),
        (data_size, 0, "0 B"),
        (data_size, 999, "999 B"),
        (data_size, 1_000, "1.00 kB"),
        (data_size, 2_661_024, "2.66 MB"),
        (data_size, 999_700, "1.00 MB"),
        (short_count, 650, "650"),
        (short_count, 665_256, "665 k"),
        (short_count, 43_203_044, "43.2 M"),
        (short_count, 5e15, "5000 T"),
        (exact_count, 43_203_044, "43,203,044"),
        (task_sizes, [50, *[5] * 10], "50 + 10 × 5"),
        (task_sizes, [25] * 4, "4 × 25"),
        (task_sizes, [10], "10"),
        (listing, ["a"], "a"),
        (listing, ["a", "b", "c"], "a, b and c"),
    ],
)
def test_numbers_as_people_read_them(write, value, text):
    assert write(value) == text


def test_a_fixed_number_of_decimals_without_a_negative_zero():
    assert [fixed(value, 2) for value in (1 / 3, -0.001, -2.5)] == ["0.33", "0.00", "-2.50"]


def test_what_could_confuse_a_terminal_is_shown_as_an_escape():
    assert printable("a\x1b[2J\x9b\x7f\n\u202e\udcff") == r"a\x1b[2J\x9b\x7f\n\u202e\udcff"
    assert printable("a\tb\nc", keep="\t\n") == "a\tb\nc"
    assert printable("naïve 猫 🐈 – µ") == "naïve 猫 🐈 – µ"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("+x", "'+x"),
        ("-x", "'-x"),
        ("-1+1", "'-1+1"),
        ("\t=1", r"\t=1"),
        ("-1.5e-3", "-1.5e-3"),
        ("a=1", "a=1"),
        ("", ""),
        (-2, -2),
    ],
)
def test_a_spreadsheet_reads_no_formula(value, cell):
    assert csv_cell(value) == cell


def test_a_value_in_a_message_is_brief():
    assert brief("a\nb") == r"'a\nb'"
    assert len(brief("x" * 1000)) < 100
