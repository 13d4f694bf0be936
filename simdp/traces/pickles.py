"""Pickles: read without running anything, since a pickle may ask for any function to be called.

Python's own reader is given only the codes that make numbers, texts, lists, tuples, sets and
dictionaries. Its version in Python keeps what it remembers in a dictionary, so that a small file
cannot ask for much memory either.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from simdp.errors import ScenarioError, shown

CODES = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT",
    "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_SET",
    "ADDITEMS", "FROZENSET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
    "LONG_BINGET",
)  # fmt: skip
"""What is understood; in pickle's own words."""

GLOBALS = ("GLOBAL", "STACK_GLOBAL", "INST")
"""Codes that ask for a function or a class by its name."""


class RefusedError(Exception):
    """The pickle asks for more than plain values."""


def _other(code: str) -> Callable[[Any], NoReturn]:
    def refuse(_: Any) -> NoReturn:
        raise RefusedError(f"the instruction {code}")

    return refuse


class _Plain(pickle._Unpickler):  # type: ignore[misc, name-defined, unused-ignore]
    """Makes plain values only."""

    dispatch: ClassVar[dict[int, Callable[..., Any]]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]]  # type: ignore[attr-defined, unused-ignore]
        if name in (*CODES, *GLOBALS)
        else _other(name)
        for name, code in vars(pickle).items()
        if name.isupper() and isinstance(code, bytes) and len(code) == 1
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError(f"the global {module}.{name}")


def read_plain(raw: bytes, where: str, wanted: str) -> Any:
    """Read a pickle of plain values.

    Parameters
    ----------
    raw : bytes
        The pickle.
    where : str
        How messages call it.
    wanted : str
        What it should have been.

    Raises
    ------
    ScenarioError
        If it asks for any global, or for anything to be called, or is damaged.
    """
    try:
        return _Plain(io.BytesIO(raw)).load()
    except RefusedError as refused:
        raise ScenarioError(
            [
                f"{where}: this pickle asks for {shown(str(refused))[1:-1]}, which could run any "
                f"program; only plain values are read: {wanted}."
            ]
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        said = shown(str(error) or type(error).__name__)[1:-1]
        raise ScenarioError([f"{where}: is a damaged pickle ({said}); {wanted}."]) from None
