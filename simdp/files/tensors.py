"""Tensors of safetensors files: read where they lie, one when it is asked for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simdp.errors import ScenarioError
from simdp.files.documents import read_json
from simdp.files.text import open_file, refuse_special

if TYPE_CHECKING:
    import numpy as np

MAX_HEADER_NBYTES = 100_000_000
"""As the format's own reader has it."""

MAX_AXES = 32

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}
"""NumPy's names; it has no bfloat16, which is the upper half of a float32."""


class Place(NamedTuple):
    """Where a tensor lies.

    Attributes
    ----------
    path : Path
        In which file.
    dtype : str
        As safetensors calls it.
    shape : tuple of int
        Its shape.
    offset : int
        Its first byte, from the file's beginning.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Tensors(Mapping[str, "np.ndarray[Any, Any]"]):
    """Arrays by name, each read when it is asked for; bfloat16 becomes float32.

    Parameters
    ----------
    places : mapping of str to Place
        Where they lie.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = dict(places)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        import numpy as np

        place = self._places[name]
        if not math.prod(place.shape):
            return np.zeros(place.shape, dtype=DTYPES[place.dtype])
        refuse_special(place.path)  # it may have been replaced since its header was read
        try:
            stored = np.memmap(
                place.path, DTYPES[place.dtype], mode="r", offset=place.offset, shape=place.shape
            )
        except (OSError, ValueError) as error:  # it was changed since its header was read
            raise ScenarioError([f"{place.path}: cannot be read: {error}."]) from None
        if place.dtype == "BF16":
            return (stored.astype("<u4") << 16).view("<f4")
        return stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_tensors(path: Path) -> Tensors:
    """Open a safetensors file, or the index of several, ``model.safetensors.index.json``.

    A file is 8 bytes of the header's length, the header as JSON, and the tensors' bytes.

    Raises
    ------
    ScenarioError
        If a file is not there, is no such file, is shorter than its header says, or holds numbers
        of another type.

    References
    ----------
    github.com/huggingface/safetensors, README, Format.
    """
    if path.name.endswith(".json"):
        return Tensors(_indexed(path))
    return Tensors(_places(path))


def shards_of(path: Path) -> list[Path]:
    """The files that an index of safetensors files names; none for any other file."""
    if not path.name.endswith(".safetensors.index.json"):
        return []
    try:
        files = read_json(path).get("weight_map", {}).values()
        return [path.parent / name for name in dict.fromkeys(files)]
    except (ScenarioError, AttributeError, TypeError):  # whoever reads it says what is wrong
        return []


def _indexed(path: Path) -> dict[str, Place]:
    index = read_json(path)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ScenarioError(
            [f"{path}: has no weight_map of tensors and files; name an index of safetensors files."]
        )
    found = {}
    for name in dict.fromkeys(files.values()):
        if Path(name).name != name:
            raise ScenarioError([f"{path}: names {name!r}, which is no file beside it."])
        there = _places(path.parent / name)
        wanted = [tensor for tensor, file in files.items() if file == name]
        missing = [tensor for tensor in wanted if tensor not in there]
        if missing:
            raise ScenarioError(
                [f"{path.parent / name}: has no {missing[0]!r}, which {path} says."]
            )
        found.update({tensor: there[tensor] for tensor in wanted})
    return found


def _places(path: Path) -> dict[str, Place]:
    """Read a file's header."""
    try:
        with open_file(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_NBYTES):
                raise _not_one(path, "its first 8 bytes are not the length of a header")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}."]) from None
    except (ValueError, RecursionError):
        raise _not_one(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _not_one(path, "its header is not an object")
    first = 8 + length
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    return {name: _place(path, name, entry, first, size) for name, entry in entries}


def _place(path: Path, name: str, entry: Any, first: int, size: int) -> Place:
    """Where a tensor lies, after its entry has been checked."""
    given = entry if isinstance(entry, dict) else {}
    dtype = given.get("dtype")
    if isinstance(dtype, str) and dtype not in DTYPES:
        raise ScenarioError(
            [f"{path}: has {name!r} of {dtype}; store F64, F32, F16 or BF16 instead."]
        )
    shape, span = (_counts(given.get(key)) for key in ("shape", "data_offsets"))
    if not isinstance(dtype, str) or shape is None or span is None or len(span) != 2:
        raise _not_one(path, f"{name!r} has no dtype, shape and data_offsets")
    nbytes = math.prod(shape) * int(DTYPES[dtype][-1])
    begin, end = span
    if end - begin != nbytes or first + end > size:
        raise _not_one(path, f"{name!r} has {nbytes} bytes, which are not at {begin} ... {end}")
    return Place(path, dtype, shape, first + begin)


def _counts(value: Any) -> tuple[int, ...] | None:
    """Whole numbers of at least 0, few enough to be a shape; None where these are none."""
    if not isinstance(value, list) or len(value) > MAX_AXES:
        return None
    if not all(type(number) is int and 0 <= number < 2**63 for number in value):
        return None
    return tuple(value)


def _not_one(path: Path, why: str) -> ScenarioError:
    return ScenarioError([f"{path}: is not a safetensors file: {why}."])
