"""Modules: those of a script's own folder, which each rank imports for itself.

What they keep in their globals is then each rank's own, as in processes. Installed packages are
shared by all ranks, and so is what they keep.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from simdp.torch.parts import Part
from simdp.torch.ranks import Rank, current

KEY, KEPT = "module names", "modules"
"""Under which a rank keeps what it has imported: names, and modules while it has not the baton."""

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of what is installed, which may lie in a script's folder."""


class Modules(Part):
    """Each rank's modules from the folder of its script."""

    def __init__(self) -> None:
        self.folder: Path | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Find a module of the script's folder, and note that it is the rank's own."""
        rank = current()
        if rank is None or self.folder is None or KEY not in rank.state:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not spec.origin or not Path(spec.origin).is_relative_to(self.folder):
            return None
        if not INSTALLED & set(Path(spec.origin).parts):
            rank.state[KEY][name] = None
        return spec

    def begin(self, rank: Rank) -> None:
        rank.state[KEY] = {}

    def enter(self, rank: Rank) -> None:
        sys.modules.update(rank.state.pop(KEPT, {}))

    def leave(self, rank: Rank) -> None:
        rank.state[KEPT] = _taken(rank)

    def end(self, rank: Rank) -> None:
        _taken(rank)
        rank.state.pop(KEY, None)


def _taken(rank: Rank) -> dict[str, Any]:
    names = rank.state.get(KEY, ())
    return {name: sys.modules.pop(name) for name in names if name in sys.modules}
