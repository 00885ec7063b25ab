import pytest

from etag.core.errors import EtagError
from etag.experiments import yaml_files


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("-2E+4", -20000.0), ("1.5e2", 150.0), ("5", 5), ("b50-5x10", "b50-5x10"), ("null", None)],
)
def test_numbers_are_read_as_people_write_them(text, value):
    found = yaml_files.parse(text, "test")
    assert found == value
    assert type(found) is type(value)


def test_a_key_given_twice_is_refused_with_its_line():
    with pytest.raises(EtagError, match=r"recipe, line 2 .*'a' is given twice"):
        yaml_files.parse("b: 1\na: 1\na: 2\n".replace("b: 1\n", "\n"), "recipe")


@pytest.mark.parametrize(
    "value", [3, 1e-5, True, None, "plain", "with: colon", "1e-3", [1, [2]], {}, {"a": [1]}, "word " * 40]
)
def test_a_value_on_one_line_is_read_as_the_same_value(value):
    text = yaml_files.inline(value)
    assert "\n" not in text
    assert yaml_files.parse(text, "test") == value


def test_yaml_cannot_create_objects():
    with pytest.raises(EtagError):
        yaml_files.parse("!!python/object/apply:os.getcwd []", "recipe")


def test_a_file_must_hold_a_mapping(tmp_path):
    file = tmp_path / "list.yaml"
    file.write_text("- 1\n")
    with pytest.raises(EtagError, match="must hold a mapping"):
        yaml_files.read(file)


def test_a_binary_file_is_an_error(tmp_path):
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(EtagError, match="cannot be read"):
        yaml_files.read(file)
