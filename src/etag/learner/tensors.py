"""Files of tensors, named after their checksum. All safetensors files of the project get their content here."""

from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from etag.core.files import checksum, make_folder, read_file, remove, write_atomically

# what damaged or hostile files raise when they are read
UNREADABLE = (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file."""
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


class TensorFiles:
    """A folder of tensor files. Equal content is stored once, and damaged content is detected."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, tensors: Mapping[str, Tensor]) -> str:
        """Store tensors, unless the same are there already; returns their name."""
        data = to_bytes(tensors)
        name = checksum(data)
        if not self.path(name).is_file():
            make_folder(self._folder)
            write_atomically(self.path(name), data)
        return name

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors stored under a name."""
        data = read_file(self.path(name))
        if checksum(data) != name:
            raise ValueError(f"{self.path(name).name} is damaged")
        return load(data)

    def path(self, name: str) -> Path:
        """The path of a stored file; folders in `name` are ignored, so it is never outside this one."""
        return self._folder / f"{Path(str(name)).name}.safetensors"

    def remove_all_but(self, names: Collection[str]) -> bool:
        """Delete the files that nothing names any more; returns whether there were any."""
        unused = [path for path in self._folder.glob("*.safetensors") if path.stem not in names]
        for path in unused:
            remove(path)
        return bool(unused)
