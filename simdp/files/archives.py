"""Archives of arrays: npz, read to a limit that its headers must keep."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from simdp.errors import ScenarioError
from simdp.files.text import open_file

if TYPE_CHECKING:
    import numpy as np

MAX_UNPACKED = 512 * 2**20
"""Bytes that any archive may unpack to."""

MAX_RATIO = 16
"""What a larger one may unpack to, over its own size: arrays of measured or learned numbers shrink
to a quarter at best, and only what holds next to nothing shrinks to a thousandth."""

MAX_MEMBERS = 100_000
MAX_AXES = 32


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
    """Read an array whose header promises as many bytes as there are.

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
    """What tells whether a file still holds the same; empty where it cannot be read.

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
