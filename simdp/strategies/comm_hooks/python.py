"""Hooks written in Python by the user; the file can run any code."""

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
from simdp.steps.facts import Facts, Tags
from simdp.steps.ops import AllReduce, CallHook, EndHook, Hold, OwnHook
from simdp.steps.partition import Bucket
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
    """A hook is invalid; the message explains why, without the place."""


class HookFuture:
    """The result of an all_reduce (torch: Future), of a flat array with its original shape."""

    def __init__(self, sent: Array, shape: tuple[int, ...]) -> None:
        self.sent, self._shape = sent, shape
        self._callbacks: list[Callable[[Array], Any]] = []

    @property
    def goes_on(self) -> bool:
        """Whether callbacks use the sum."""
        return bool(self._callbacks)

    def then(self, callback: Callable[[Array], object]) -> HookFuture:
        """Call a function with the sum, or with the result of the previous callback."""
        self._callbacks.append(callback)
        return self

    def result(self, summed: Array) -> Any:
        """Return the callbacks' result for the sum."""
        value: Any = summed.reshape(self._shape)
        for callback in self._callbacks:
            value = callback(value)
        return value


class GradBucket:
    """A rank's bucket, as passed to a hook (torch: GradBucket), not divided yet."""

    def __init__(
        self, flat: Array, shapes: Mapping[str, tuple[int, ...]], rank: int, world_size: int
    ) -> None:
        self._flat, self._shapes = flat, shapes
        self.rank, self.world_size = rank, world_size
        self.future: HookFuture | None = None

    def buffer(self) -> Array:
        """Return all gradients, flat."""
        return self._flat

    def parameters(self) -> list[str]:
        """Return names of the parameters."""
        return list(self._shapes)

    def gradients(self) -> list[Array]:
        """Return each gradient in its shape, as a view of the buffer."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])
        pieces = np.split(self._flat, ends[:-1])
        return [
            piece.reshape(shape) for piece, shape in zip(pieces, self._shapes.values(), strict=True)
        ]

    def all_reduce(self, array: Array) -> HookFuture:
        """Sum an array over the ranks; once per bucket."""
        if self.future is not None:
            raise HookError("calls all_reduce twice; concatenate the arrays to be summed.")
        if not isinstance(array, np.ndarray) or array.dtype.name not in SUMMED or not array.size:
            raise HookError(
                f"passes {_described(array)} to all_reduce; "
                "pass a NumPy array of floats or integers."
            )
        self.future = HookFuture(np.array(array).reshape(-1), array.shape)
        return self.future


def read_hook(path: Path, name: str) -> Hook:
    """Run a file and return one of its functions.

    Raises
    ------
    ScenarioError
        If the file is missing, is not valid Python, raises, or lacks the function.
    """
    inside = _inside(path, read_text(path, "a comm hook is Python"))
    function = inside.get(name)
    if not callable(function):
        functions = [key for key, value in inside.items() if callable(value)]
        known = sorted(key for key in functions if not key.startswith("_"))
        raise ScenarioError([f"{path}: {unknown_name('function', name, known)}"])
    hook: Hook = function
    return hook


@lru_cache(maxsize=16)
def _inside(path: Path, text: str) -> dict[str, Any]:
    """Run a file once, and return its names."""
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
        raise ScenarioError([f"{path}{message_of(error, path)}"]) from None
    finally:
        sys.path.remove(folder)
    return vars(module)


def called(function: Hook, state: dict[str, object], bucket: GradBucket) -> HookFuture | Array:
    """Call a hook and return the future of its all_reduce, or the bucket's new content.

    Raises
    ------
    HookError
        If it returns something else.
    """
    returned = function(state, bucket)
    if isinstance(returned, HookFuture) and returned is bucket.future:
        return returned
    if bucket.future is not None:
        raise HookError(
            f"calls all_reduce, but returns {_described(returned)}; return the result of "
            "all_reduce or then."
        )
    return content(returned, bucket.buffer())


def content(returned: object, buffer: Array) -> Array:
    """Return a bucket's new content, flat.

    Raises
    ------
    HookError
        If it is not an array of the bucket's size.
    """
    if isinstance(returned, np.ndarray) and returned.size == buffer.size:
        return returned.reshape(-1)
    raise HookError(
        f"ends at {_described(returned)} for a bucket of {buffer.size} elements; return a NumPy "
        "array of as many, or the result of all_reduce."
    )


def message_of(error: BaseException, path: Path | str) -> str:
    """Format a hook file's exception with its place, ``:12: raised ValueError: ...``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = f":{frames[-1].lineno}" if frames else ""
    if isinstance(error, HookError):
        return f"{line}: the hook {error}"
    detail = f": {error}" if str(error) else ""
    return f"{line}: raised {type(error).__name__}{detail}."


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name}"
    return shown(value)


TRIED = 2**24
"""Elements of the largest bucket that is tried in its own size."""


class Tried(NamedTuple):
    """The all_reduce of a hook on a bucket of zeros."""

    num_elements: int  # all_reduced; 0 without an all_reduce
    dtype: str
    goes_on: bool  # whether callbacks use the sum


class Python(CommHook):
    """Call ``name(state, bucket)`` of a Python file, on every rank (torch: register_comm_hook).

    A state is a dictionary per rank in which the function may keep arrays and numbers. A bucket
    has, as torch's GradBucket, ``buffer()``, ``gradients()`` and ``parameters()``, the last one
    names, and ``rank`` and ``world_size``; gradients are not divided yet. The function returns the
    result of ``bucket.all_reduce(array)``, optionally with ``.then(callback)`` of a function of the
    sum; or an array, and then nothing is sent. The final result is the bucket's content.

    ::

        def half(state, bucket):
            sent = bucket.buffer().astype("float16")
            return bucket.all_reduce(sent).then(lambda total: total / bucket.world_size)

    The bytes sent are those of the array, found with a bucket of zeros before the run; beyond 2^24
    elements they are scaled. Time: each half reads its input and writes its result once. The file
    runs with your rights.
    """

    kind: Literal["python"] = "python"
    path: str
    """The file; a relative path starts from the scenario's folder."""
    name: str
    """The function."""

    _file: Path | None = PrivateAttr(default=None)
    _text: str = PrivateAttr(default="")

    def settled(self, base: Path) -> Self:
        """Return the same hook with its file read.

        Raises
        ------
        ScenarioError
            If it cannot be read, or lacks the function.
        """
        hook = self.model_copy()
        hook._file = base / self.path
        read_hook(hook._file, self.name)
        hook._text = read_text(hook._file)
        return hook

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
        """Run the hook on a bucket of zeros, a smaller one if needed, and scale the result."""
        by_name = {parameter.name: parameter.shape for parameter in facts.parameters}
        shapes: dict[str, tuple[int, ...]] = {name: by_name[name] for name in bucket.names}
        if bucket.num_elements <= TRIED:
            return self._tried(shapes, bucket.dtype, facts.world_size, function)
        tried = self._tried({bucket.names[0]: (TRIED,)}, bucket.dtype, facts.world_size, function)
        scaled = tried.num_elements * bucket.num_elements / TRIED
        return tried._replace(num_elements=round(scaled))

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
            returned = called(function or read_hook(self._file, self.name), state, bucket)
            if isinstance(returned, HookFuture):
                content(returned.result(np.zeros_like(returned.sent)), bucket.buffer())
        except Exception as error:
            raise ScenarioError([f"{self._file}{message_of(error, self._file)}"]) from None
        if not isinstance(returned, HookFuture):
            return Tried(0, dtype, False)
        return Tried(returned.sent.size, returned.sent.dtype.name, returned.goes_on)
