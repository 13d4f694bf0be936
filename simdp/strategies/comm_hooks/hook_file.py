"""What a comm hook from a file is, and what it is given: NumPy arrays, and an all_reduce.

The file is the user's own program, and may do what any program may.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.errors import ScenarioError, shown, unknown_name
from simdp.files import read_text

Hook = Callable[[Any, Any], Any]

SUMMED = frozenset(
    ["float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8"]
)
"""Dtypes that can be summed."""


class HookError(Exception):
    """A hook does what it must not; the message says what, without the place."""


class Future:
    """What an all_reduce will bring (torch: Future).

    Parameters
    ----------
    sent : ndarray
        What the rank has handed over, flat.
    shape : tuple of int
        The shape that it had.
    """

    def __init__(self, sent: Array, shape: tuple[int, ...]) -> None:
        self.sent, self._shape = sent, shape
        self._callbacks: list[Callable[[Array], Any]] = []

    @property
    def goes_on(self) -> bool:
        """Whether something is done with the sum."""
        return bool(self._callbacks)

    def then(self, callback: Callable[[Array], Any]) -> Future:
        """Do something with the sum, or with what the callback before has made of it."""
        self._callbacks.append(callback)
        return self

    def result(self, summed: Array) -> Any:
        """What the callbacks make of the sum."""
        value: Any = summed.reshape(self._shape)
        for callback in self._callbacks:
            value = callback(value)
        return value


class GradBucket:
    """A rank's bucket, as a hook sees it (torch: GradBucket).

    Parameters
    ----------
    flat : ndarray, shape `(num_elements,)`
        The gradients, not yet divided by anything.
    shapes : mapping of str to tuple
        Of the gradients in it, in order, by the parameters' names.
    rank, world_size : int
        Whose it is, and how many there are.
    """

    def __init__(
        self, flat: Array, shapes: Mapping[str, tuple[int, ...]], rank: int, world_size: int
    ) -> None:
        self._flat, self._shapes = flat, shapes
        self.rank, self.world_size = rank, world_size
        self.future: Future | None = None

    def buffer(self) -> Array:
        """All gradients, flat."""
        return self._flat

    def parameters(self) -> list[str]:
        """Names of the parameters."""
        return list(self._shapes)

    def gradients(self) -> list[Array]:
        """Each gradient in its shape, as a view of the buffer."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])
        pieces = np.split(self._flat, ends[:-1])
        return [
            piece.reshape(shape) for piece, shape in zip(pieces, self._shapes.values(), strict=True)
        ]

    def all_reduce(self, array: Array) -> Future:
        """Sum an array over the ranks; one call for each bucket."""
        if self.future is not None:
            raise HookError("calls all_reduce twice; put what is to be summed into one array.")
        if not isinstance(array, np.ndarray) or array.dtype.name not in SUMMED or not array.size:
            raise HookError(
                f"hands {_told(array)} to all_reduce; hand it a NumPy array of floats or integers."
            )
        self.future = Future(np.array(array).reshape(-1), array.shape)
        return self.future


def read_hook(path: Path, name: str) -> Hook:
    """Run a file and take a function out of it.

    Raises
    ------
    ScenarioError
        If there is no such file, it is no Python, it raises, or has no such function.
    """
    inside = _inside(path, read_text(path, "a comm hook is Python"))
    found = inside.get(name)
    if not callable(found):
        functions = [key for key, value in inside.items() if callable(value)]
        known = sorted(key for key in functions if not key.startswith("_"))
        raise ScenarioError([f"{path}: {unknown_name('function', name, known)}"])
    hook: Hook = found
    return hook


@lru_cache(maxsize=16)
def _inside(path: Path, text: str) -> dict[str, Any]:
    """Run a file, once; its names."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except SyntaxError as error:
        line = f"{path}:{error.lineno}: is not valid Python: {error.msg}."
        raise ScenarioError([line]) from None
    except (Exception, SystemExit) as error:
        raise ScenarioError([f"{path}{said(error, path)}"]) from None
    finally:
        sys.path.remove(folder)
    return vars(module)


def called(function: Hook, state: dict[str, Any], bucket: GradBucket) -> Future | Array:
    """Call a hook: the future that its all_reduce gave, or the bucket's new content.

    Raises
    ------
    HookError
        If it returns something else.
    """
    found = function(state, bucket)
    if isinstance(found, Future) and found is bucket.future:
        return found
    if bucket.future is not None:
        raise HookError(
            f"calls all_reduce, but returns {_told(found)}; return what all_reduce or then gives."
        )
    return content(found, bucket.buffer())


def content(found: Any, buffer: Array) -> Array:
    """Check what is to be a bucket's content.

    Raises
    ------
    HookError
        If it is no array of its size.
    """
    if isinstance(found, np.ndarray) and found.size == buffer.size:
        return found.reshape(-1)
    raise HookError(
        f"ends at {_told(found)} for a bucket of {buffer.size} elements; return a NumPy array of "
        "as many, or what all_reduce gives."
    )


def said(error: BaseException, path: Path | str) -> str:
    """Tell in one line what a file has raised, and where in it: ``:12: raised ValueError: ...``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = f":{frames[-1].lineno}" if frames else ""
    if isinstance(error, HookError):
        return f"{line}: the hook {error}"
    detail = f": {error}" if str(error) else ""
    return f"{line}: raised {type(error).__name__}{detail}."


def _told(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name}"
    return shown(value)
