"""One item after the other, in the process that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from simdp.studies.executor.outcome import Done, Executor, Failed, R, T, attempt


class Here(Executor):
    """Does everything in this process, in order."""

    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, Done[R] | Failed]]:
        for number, item in enumerate(items):
            yield number, attempt(function, item)
