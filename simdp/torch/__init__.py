"""TORCH: unmodified torch scripts on virtual ranks, with real tensors and a virtual clock.

A rank is a thread, of which one runs at a time; process-wide state of torch and Python is stored
per rank. ``import torch`` in this package is the real one.

`workload` converts any module to a scenario's workload, without running it.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "RecordedWorkload": "simdp.torch.recording.tape",
    "workload": "simdp.torch.recording.workload",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simdp.torch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
