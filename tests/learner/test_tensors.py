"""Files of tensors, named after their content."""

import pytest
import torch

from etag.learner.tensors import UNREADABLE, TensorFiles


@pytest.fixture
def files(tmp_path):
    return TensorFiles(tmp_path / "tensors")


def test_equal_content_is_one_file(files, tmp_path):
    values = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2], dtype=torch.uint8)}
    name = files.write(values)
    assert files.write({key: value.clone() for key, value in values.items()}) == name
    assert [path.name for path in (tmp_path / "tensors").iterdir()] == [f"{name}.safetensors"]
    found = files.read(name)
    assert found.keys() == values.keys()
    assert all(torch.equal(found[key], values[key]) and found[key].dtype == values[key].dtype for key in values)
    assert files.write(values | {"b": torch.tensor([1, 3], dtype=torch.uint8)}) != name


def test_memory_order_does_not_matter(files):
    value = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert files.write({"w": value.contiguous(memory_format=torch.channels_last)}) == files.write({"w": value})


def test_a_flipped_bit_is_detected(files):
    name = files.write({"a": torch.zeros(8)})
    data = bytearray(files.path(name).read_bytes())
    data[-1] ^= 1
    files.path(name).write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        files.read(name)


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "", None, 5])
def test_no_name_leads_outside_the_folder(files, tmp_path, name):
    (tmp_path / "outside.safetensors").write_bytes(b"secret")
    assert files.path(name).parent == tmp_path / "tensors"
    with pytest.raises(UNREADABLE):
        files.read(name)


def test_unused_files_are_removed(files):
    first, second = files.write({"a": torch.zeros(1)}), files.write({"a": torch.ones(1)})
    files.remove_all_but({second})
    assert not files.path(first).exists()
    assert files.read(second)["a"].item() == 1
