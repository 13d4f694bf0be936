"""The entrants that come with simdp."""

from __future__ import annotations

from benchmarks.leaderboard.adapters.astra_sim import AstraSim
from benchmarks.leaderboard.adapters.base import Adapter, AdapterError, Answer, checked
from benchmarks.leaderboard.adapters.calculon import Calculon
from benchmarks.leaderboard.adapters.linear import Linear
from benchmarks.leaderboard.adapters.nccl_tuner import NcclTuner
from benchmarks.leaderboard.adapters.program import Program
from benchmarks.leaderboard.adapters.ring import Ring

ADAPTERS: dict[str, type[Adapter]] = {
    "linear": Linear,
    "ring": Ring,
    "calculon": Calculon,
    "astra-sim": AstraSim,
    "nccl-tuner": NcclTuner,
}
"""Those that answer at once; simdp's own answers are `benchmarks.leaderboard.adapters.ours`."""

__all__ = ["ADAPTERS", "Adapter", "AdapterError", "Answer", "Program", "checked"]
