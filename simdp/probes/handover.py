"""Handover: what rank 0, a process of its own, found, for the process that started it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

Collect = Callable[[dict[str, Any]], None]
"""Takes what was found; it can be pickled."""

Read = Callable[[], dict[str, Any] | None]
"""Gives it back; None where nothing was found, as on the other ranks of torchrun."""


@contextmanager
def handover() -> Iterator[tuple[Collect, Read]]:
    """Make both ends of a handover, through a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        yield partial(_write, path), partial(_read, path)


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found))


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None
