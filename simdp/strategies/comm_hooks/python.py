"""python: a function from a file of the user's own sends a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import PrivateAttr

from simdp.errors import ScenarioError
from simdp.files import read_text
from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts
from simdp.steps.ops import AllReduce, Hold
from simdp.steps.own_hook import CallHook, EndHook, OwnHook
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, Sent
from simdp.strategies.comm_hooks.hook_file import (
    Future,
    GradBucket,
    Hook,
    called,
    content,
    read_hook,
    said,
)
from simdp.workload import Workload
from simdp.workload.precision.rounding import numpy_dtype

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
            return Sent()
        tag = next(tags)
        yield Hold("temporary", sent.nbytes)
        yield CallHook(hook)
        yield AllReduce(tag, label, sent.nbytes, sent, wait)
        return Sent((tag,), (EndHook(hook), Hold("temporary", -sent.nbytes)))

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
            if isinstance(found, Future):
                content(found.result(np.zeros_like(found.sent)), bucket.buffer())
        except Exception as error:
            raise ScenarioError([f"{self._file}{said(error, self._file)}"]) from None
        if not isinstance(found, Future):
            return Tried(0, dtype, False)
        return Tried(found.sent.size, found.sent.dtype.name, found.goes_on)
