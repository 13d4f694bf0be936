"""Random generators and modules of each rank.

The generators of torch, NumPy and Python are process-wide, as are torch's flags; each rank has
separate states, which are installed whenever the rank resumes. torch's start as in a fresh process.
The generators of NumPy and Python start with seeds of the program and the rank, instead of the
system's random seeds.

Modules of the script's folder are loaded per rank, with separate globals, as in processes, and so
are a few installed packages. All others, and their state, are shared by all ranks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simdp.files import INSTALLED
from simdp.rng import stream
from simdp.torch.ranks import Patches, Rank, RankLocal, Swapped, current

FRESH = 67280421310721
"""Seed of torch's generator in every fresh process."""


FLAGS = torch.float32, 0, False, True
"""Default dtype, determinism, and TF32 of cuBLAS and cuDNN in every fresh process."""


class Generators(Swapped):
    """Each rank's generators, default dtype, and flags of determinism and of TF32."""

    key = "generators"

    def fresh(self, rank: Rank) -> tuple[Any, ...]:
        seeds = stream(rank.seed, "generators", rank.rank)
        torch.default_generator.manual_seed(FRESH)
        random.seed(int(seeds.integers(2**63)))
        np.random.seed(int(seeds.integers(2**32)))  # noqa: NPY002
        return (*generator_states(), *FLAGS)

    def seen(self) -> tuple[Any, ...]:
        return (
            *generator_states(),
            torch.get_default_dtype(),
            torch.get_deterministic_debug_mode(),
            torch._C._get_cublas_allow_tf32(),
            torch._C._get_cudnn_allow_tf32(),
        )

    def show(self, state: tuple[Any, ...]) -> None:
        restore_generators(state[:3])
        if torch.get_default_dtype() != state[3]:
            torch.set_default_dtype(state[3])
        if torch.get_deterministic_debug_mode() != state[4]:
            torch.set_deterministic_debug_mode(state[4])
        if torch._C._get_cublas_allow_tf32() != state[5]:
            torch._C._set_cublas_allow_tf32(state[5])
        if torch._C._get_cudnn_allow_tf32() != state[6]:
            torch._C._set_cudnn_allow_tf32(state[6])


def generator_states() -> tuple[Any, ...]:
    """Return the states of the generators of torch, Python and NumPy."""
    return (
        torch.default_generator.get_state(),
        random.getstate(),
        np.random.get_state(),  # noqa: NPY002
    )


def restore_generators(states: tuple[Any, ...]) -> None:
    """Set the states of these generators."""
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002


def seed_generators(seed: int) -> None:
    """Seed these generators."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


KEY, KEPT = "module names", "modules"
"""Keys of a rank's imported names, and of its modules while it is paused."""

PER_RANK = frozenset({"hydra", "absl", "gin"})
"""Installed packages with settings of a process, which each rank imports for itself."""


class Modules(RankLocal):
    """Each rank's modules from the folder of its script."""

    def __init__(self) -> None:
        self.folder: Path | None = None

    def patch(self, patches: Patches) -> None:
        sys.meta_path.insert(0, self)
        patches.undo(partial(sys.meta_path.remove, self))

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Find a module of the script's folder, and record that it belongs to the rank."""
        rank = current()
        if rank is None or KEY not in rank.state:
            return None
        if name.partition(".")[0] in PER_RANK:
            rank.state[KEY][name] = None
            return None
        if self.folder is None:
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
