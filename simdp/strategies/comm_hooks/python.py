"""Hooks written in Python by the user.

The file is the user's own program, and may do what any program may.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import PrivateAttr

from simdp.arrays import Array
from simdp.errors import ScenarioError, shown, unknown_name
from simdp.files import read_text
from simdp.steps.facts import Facts
from simdp.steps.ops import AllReduce, CallHook, EndHook, Hold, OwnHook
from simdp.steps.partition import Bucket
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks import CommHook, Sending, SentBucket
from simdp.workload import Workload
from simdp.workload.precision import numpy_dtype

# Hook file ----------------------------------------------------------------------------------------

Hook = Callable[[Any, Any], Any]

SUMMED = frozenset(
    ["float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8"]
)
"""Dtypes that can be summed."""


class HookError(Exception):
    """A hook does what it must not; the message says what, without the place."""


class HookFuture:
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

    def then(self, callback: Callable[[Array], Any]) -> HookFuture:
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
        self.future: HookFuture | None = None

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

    def all_reduce(self, array: Array) -> HookFuture:
        """Sum an array over the ranks; one call for each bucket."""
        if self.future is not None:
            raise HookError("calls all_reduce twice; put what is to be summed into one array.")
        if not isinstance(array, np.ndarray) or array.dtype.name not in SUMMED or not array.size:
            raise HookError(
                f"hands {_told(array)} to all_reduce; hand it a NumPy array of floats or integers."
            )
        self.future = HookFuture(np.array(array).reshape(-1), array.shape)
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


def called(function: Hook, state: dict[str, Any], bucket: GradBucket) -> HookFuture | Array:
    """Call a hook: the future that its all_reduce gave, or the bucket's new content.

    Raises
    ------
    HookError
        If it returns something else.
    """
    found = function(state, bucket)
    if isinstance(found, HookFuture) and found is bucket.future:
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


TRIED = 2**24
"""Elements of the largest bucket that is tried as it is."""


class Tried(NamedTuple):
    """What a hook does with a bucket of zeros.

    Attributes
    ----------
    num_elements : int
        That it hands to all_reduce; 0 if it calls none.
    dtype : str
        Of these.
    goes_on : bool
        Whether it does something with the sum.
    """

    num_elements: int
    dtype: str
    goes_on: bool


class Python(CommHook):
    """Call ``name(state, bucket)`` of a Python file, on every rank (torch: register_comm_hook).

    A state is a dictionary of the rank, which the function may keep arrays and numbers in. A bucket
    has, as torch's GradBucket, ``buffer()``, ``gradients()`` and ``parameters()``, the last one
    names, and ``rank`` and ``world_size``; gradients are not divided yet. The function returns what
    ``bucket.all_reduce(array)`` gives, with ``.then(callback)`` of a function of the sum; or an
    array, and then nothing travels. What it ends at is the bucket's content.

    ::

        def half(state, bucket):
            sent = bucket.buffer().astype("float16")
            return bucket.all_reduce(sent).then(lambda total: total / bucket.world_size)

    The bytes that travel are those of the array, as a bucket of zeros tells them before the run; of
    more than 2^24 elements the ratio counts. Time: each half reads what it begins with and writes
    what it ends at, once. The file is a program of your own, which is run with your rights.

    Attributes
    ----------
    path : str
        The file; a relative path starts from the scenario's folder.
    name : str
        The function.
    """

    kind: Literal["python"] = "python"
    path: str
    name: str

    _file: Path | None = PrivateAttr(default=None)
    _text: str = PrivateAttr(default="")

    def settled(self, base: Path) -> Self:
        """The same hook with its file read.

        Raises
        ------
        ScenarioError
            If it cannot be read, or has no such function.
        """
        found = self.model_copy()
        found._file = base / self.path
        read_hook(found._file, self.name)
        found._text = read_text(found._file)
        return found

    def divided(self, divisor: float) -> float:
        return 1.0

    def problem_with(self, workload: Workload) -> str | None:
        if self._file is None:  # its file is at fault, which the scenario's checks report
            return None
        parameters = workload.graph.parameters
        fewest = min(parameters, key=lambda parameter: parameter.num_elements)
        own = workload.precision.gradient_dtype(workload.dtype)
        try:
            self._tried({fewest.name: fewest.shape}, own, 2)
        except ScenarioError as error:
            return f"comm_hook: {error.problems[0]}"
        return None

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        if self._file is None:
            raise ValueError(f"{self.path} has not been read; call settled with its folder first")
        names, function = bucket.names, read_hook(self._file, self.name)
        tried = facts.once((self, names), lambda: self._try(facts, bucket, function))
        sent = None
        if tried.num_elements:
            nbytes = float(tried.num_elements * numpy_dtype(tried.dtype).itemsize)
            sent = Bucket(names, tried.num_elements, tried.dtype, nbytes, of=f"hook {label}")
        hook = OwnHook(str(self._file), self.name, bucket, sent, tried.goes_on, label)
        if sent is None:
            yield CallHook(hook)
            return SentBucket()
        tag = next(tags)
        yield Hold("temporary", sent.nbytes)
        yield CallHook(hook)
        yield AllReduce(tag, label, sent.nbytes, sent, wait)
        return SentBucket((tag,), (EndHook(hook), Hold("temporary", -sent.nbytes)))

    def _try(self, facts: Facts, bucket: Bucket, function: Hook) -> Tried:
        """What it does with a bucket, or with a smaller one, from which the ratio follows."""
        by_name = {parameter.name: parameter.shape for parameter in facts.parameters}
        shapes: dict[str, tuple[int, ...]] = {name: by_name[name] for name in bucket.names}
        if bucket.num_elements <= TRIED:
            return self._tried(shapes, bucket.dtype, facts.world_size, function)
        found = self._tried({bucket.names[0]: (TRIED,)}, bucket.dtype, facts.world_size, function)
        scaled = found.num_elements * bucket.num_elements / TRIED
        return found._replace(num_elements=round(scaled))

    def _tried(
        self,
        shapes: dict[str, tuple[int, ...]],
        dtype: str,
        world_size: int,
        function: Hook | None = None,
    ) -> Tried:
        assert self._file is not None, "the file has been read"
        size = sum(int(np.prod(shape)) for shape in shapes.values())
        bucket = GradBucket(np.zeros(size, numpy_dtype(dtype)), shapes, 0, world_size)
        state: dict[str, Any] = {}
        try:
            found = called(function or read_hook(self._file, self.name), state, bucket)
            if isinstance(found, HookFuture):
                content(found.result(np.zeros_like(found.sent)), bucket.buffer())
        except Exception as error:
            raise ScenarioError([f"{self._file}{said(error, self._file)}"]) from None
        if not isinstance(found, HookFuture):
            return Tried(0, dtype, False)
        return Tried(found.sent.size, found.sent.dtype.name, found.goes_on)
