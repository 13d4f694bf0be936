"""Compilers: torch's is not imported for what it only has to stand aside from.

Optimizers and DistributedDataParallel ask ``torch._dynamo`` to leave them alone, which imports it:
some seconds, a third of a short run. Nothing is compiled here, so a stand-in answers these two. Who
asks for anything else gets the real one, which takes its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from simdp.torch.parts import Part

NAME = "torch._dynamo"

KNOWN: dict[str, dict[str, Any]] = {
    "utils": {"get_optimize_ddp_mode": "ddp_optimizer"},
    "trace_rules": {"clear_lru_cache": None},
}
"""What torch calls of its parts, and what these answer."""

DISABLED = "__dynamo_disable"
"""Under which torch keeps, with a function, what its compiler made of it."""


class StandIn(ModuleType):
    """Stands in for the compiler until somebody needs it."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self._left: list[Any] = []
        for part, answers in KNOWN.items():
            setattr(self, part, _Part(part, answers))

    def disable(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Leave a function as it is."""
        if fn is None:
            return lambda given: given
        self._left.append(fn)
        return fn

    def graph_break(self, *args: Any, **kwargs: Any) -> None:
        """Break no graph, as there is none."""

    def forget(self) -> None:
        """Let torch ask again for all functions that were left as they are."""
        for fn in self._left:
            getattr(fn, "__dict__", {}).pop(DISABLED, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # who looks at all modules, as inspect
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        return getattr(_real(), name)


class _Part(SimpleNamespace):
    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(**{call: _answering(answer) for call, answer in answers.items()})
        self._name = name

    def __getattr__(self, name: str) -> Any:
        _real()
        return getattr(import_module(f"{NAME}.{self._name}"), name)


def _answering(answer: Any) -> Callable[[], Any]:
    return lambda: answer


def _real() -> Any:
    """Torch's own, in place of the stand-in."""
    if isinstance(sys.modules.get(NAME), StandIn):
        del sys.modules[NAME]
    return import_module(NAME)


class Compilers(Part):
    """The compiler, if nobody has imported it so far."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        if NAME in sys.modules:
            yield
            return
        module = sys.modules[NAME] = StandIn()
        try:
            yield
        finally:
            module.forget()
            if sys.modules.get(NAME) is module:
                del sys.modules[NAME]
