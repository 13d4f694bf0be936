"""Reads safetensors and NPZ files, and elements of typed arrays."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from simdp.errors import ScenarioError
from simdp.files.documents import open_file, read_json, refuse_special

if TYPE_CHECKING:
    import numpy as np


# Tensors ------------------------------------------------------------------------------------------

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


class TensorPlace(NamedTuple):
    """Where a tensor lies."""

    path: Path
    """In which file."""
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    """Its shape."""
    offset: int
    """Its first byte, from the file's beginning."""


class TensorFile(Mapping[str, "np.ndarray[Any, Any]"]):
    """Arrays by name, each read on access; bfloat16 becomes float32.

    Parameters
    ----------
    places : mapping of str to Place
        Where they lie.
    """

    def __init__(self, places: Mapping[str, TensorPlace]) -> None:
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


def read_tensors(path: Path) -> TensorFile:
    """Open a safetensors file, or the index of several, ``model.safetensors.index.json``.

    A file is 8 bytes of the header's length, the header as JSON, and the tensors' bytes.

    Raises
    ------
    ScenarioError
        If a file is missing, invalid, shorter than its header's sizes, or holds numbers of another
        type.

    References
    ----------
    github.com/huggingface/safetensors, README, Format.
    """
    if path.name.endswith(".json"):
        return TensorFile(_indexed(path))
    return TensorFile(_places(path))


def shards_of(path: Path) -> list[Path]:
    """The files that an index of safetensors files names; none for any other file."""
    if not path.name.endswith(".safetensors.index.json"):
        return []
    try:
        files = read_json(path).get("weight_map", {}).values()
        return [path.parent / name for name in dict.fromkeys(files)]
    except (ScenarioError, AttributeError, TypeError):  # reading it reports the error
        return []


def _indexed(path: Path) -> dict[str, TensorPlace]:
    index = read_json(path)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ScenarioError(
            [f"{path}: has no weight_map of tensors and files; name an index of safetensors files."]
        )
    places = {}
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
        places.update({tensor: there[tensor] for tensor in wanted})
    return places


def _places(path: Path) -> dict[str, TensorPlace]:
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


def _place(path: Path, name: str, entry: Any, first: int, size: int) -> TensorPlace:
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
    return TensorPlace(path, dtype, shape, first + begin)


def _counts(value: Any) -> tuple[int, ...] | None:
    """Whole numbers of at least 0, few enough to be a shape; None where these are none."""
    if not isinstance(value, list) or len(value) > MAX_AXES:
        return None
    if not all(type(number) is int and 0 <= number < 2**63 for number in value):
        return None
    return tuple(value)


def _not_one(path: Path, why: str) -> ScenarioError:
    return ScenarioError([f"{path}: is not a safetensors file: {why}."])


# Archives -----------------------------------------------------------------------------------------

MAX_UNPACKED = 512 * 2**20
"""Bytes that any archive may unpack to."""

MAX_RATIO = 16
"""What a larger one may unpack to, over its own size: arrays of measured or learned numbers shrink
to a quarter at best, and only what holds next to nothing shrinks to a thousandth."""

MAX_MEMBERS = 100_000


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read every array of an npz file; pickled objects are refused.

    Headers are believed only where the archive is as long as they say.

    Raises
    ------
    ScenarioError
        If there is no such file, it is not npz, an array needs pickle, or all of them together
        need more than `MAX_UNPACKED`, and more than `MAX_RATIO` times the file's size.
    """
    import warnings
    from zipfile import ZipFile

    try:
        with warnings.catch_warnings(), open_file(path) as stream, ZipFile(stream) as archive:
            size = os.fstat(stream.fileno()).st_size
            warnings.simplefilter("ignore")  # of headers as Python 2 wrote them
            members = archive.infolist()
            unpacked = sum(member.file_size for member in members)
            if unpacked > max(MAX_UNPACKED, MAX_RATIO * size) or len(members) > MAX_MEMBERS:
                raise ScenarioError(
                    [
                        f"{path}: unpacks from {size / 1e6:.3g} MB to {unpacked / 1e6:.4g} MB in "
                        f"{len(members)} arrays; store it without compression, by numpy.savez."
                    ]
                )
            return {
                member.filename.removesuffix(".npy"): _array(archive, member) for member in members
            }
    except ScenarioError:
        raise
    except MemoryError:
        raise ScenarioError([f"{path}: its arrays are larger than the memory left."]) from None
    except Exception as error:  # zipfile and NumPy raise all kinds of errors at damaged files
        raise ScenarioError([f"{path}: is not an npz file of arrays."]) from error


def _array(archive: Any, member: Any) -> np.ndarray[Any, Any]:
    """Read an array, once its header's size matches the file.

    Raises
    ------
    ValueError
        If it does not, or this is no array.
    """
    from numpy.lib import format as npy

    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        rest = member.file_size - stream.tell()
    fits = len(shape) <= MAX_AXES and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if not fits or not dtype.itemsize or math.prod(shape) * dtype.itemsize != rest:
        raise ValueError("the header is of another array")
    with archive.open(member) as stream:
        array: np.ndarray[Any, Any] = npy.read_array(stream, allow_pickle=False)
    return array


def fingerprint(path: Path) -> str:
    """Fingerprint that changes with the file's content; empty if it cannot be read.

    Of an archive, the checksums that it has of its members; else one of the content.
    """
    import hashlib
    from zipfile import BadZipFile, ZipFile, is_zipfile

    try:
        with open_file(path) as stream:
            if is_zipfile(stream):
                with ZipFile(stream) as archive:
                    return str([(member.filename, member.CRC) for member in archive.infolist()])
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (ScenarioError, OSError, ValueError, RuntimeError, BadZipFile):
        return ""


def put_npz(arrays: Mapping[str, np.ndarray[Any, Any]], stream: BinaryIO) -> None:
    """Write arrays into a stream as npz; for `whole_files`."""
    import numpy as np

    np.savez(stream, allow_pickle=False, **arrays)


MAX_ELEMENTS = 500_000


class XmlElement(NamedTuple):
    """An element of an XML file: its name, line, attributes, and text."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[XmlElement]


def parse_xml(text: str, where: str) -> XmlElement:
    """Read XML from a text: elements and attributes; text between them is passed over.

    A document type is refused, since the entities that it declares can grow without bounds.

    Parameters
    ----------
    text : str
        The whole file.
    where : str
        Leads the errors, for example the file.

    Raises
    ------
    ScenarioError
        With the line and the reason.
    """
    from xml.parsers import expat

    parser = expat.ParserCreate()
    top: list[XmlElement] = []
    open_elements: list[XmlElement] = []
    count = 0

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if count > MAX_ELEMENTS:
            raise ScenarioError([f"{where}:{line}: has more than {MAX_ELEMENTS} elements."])
        element = XmlElement(name, line, attributes, [])
        (open_elements[-1].children if open_elements else top).append(element)
        open_elements.append(element)

    def end(name: str) -> None:
        open_elements.pop()

    def refuse(*declaration: object) -> None:
        line = parser.CurrentLineNumber
        raise ScenarioError([f"{where}:{line}: declares a document type; leave <!DOCTYPE out."])

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ScenarioError([f"{where}:{error.lineno}: is not valid XML: {reason}."]) from None
    return top[0]
