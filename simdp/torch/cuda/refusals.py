"""Refusals: what runs code of its own on a device, which virtual devices cannot; and compiling."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from simdp.errors import ProgramError
from simdp.torch.cuda.machine import machine
from simdp.torch.cuda.patches import Patches

KERNELS = ("load", "load_inline", "CUDAExtension", "CppExtension")
"""What compiles kernels of a script's own."""


def _extensions() -> Any:
    """Torch's module of them, which complains of hosts without GPUs when it is imported."""
    log = logging.getLogger("torch.utils.cpp_extension")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        return import_module("torch.utils.cpp_extension")
    finally:
        log.setLevel(before)


def patch(patches: Patches) -> None:
    """Put all of them in place."""
    cpp_extension = _extensions()
    for name in KERNELS:
        patches.wrap(cpp_extension, name, _refusing)
    patches.wrap(torch, "compile", _eager)
    patches.wrap(torch.nn.Module, "compile", _left)


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if machine() is None:
            return original(*args, **kwargs)
        raise ProgramError(
            f"torch.utils.cpp_extension.{original.__name__}: a virtual device cannot run "
            "kernels of a script's own, nor time them; write them with torch's operators."
        )

    return call


def _remark() -> None:
    warnings.warn(
        "torch.compile: operators run one by one here, with the times and memory of eager mode; "
        "workload.compile in a scenario prices fused kernels.",
        stacklevel=3,
    )


def _eager(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same numbers, and the times of what was not compiled."""

    def compile(model: Any = None, **options: Any) -> Any:
        if machine() is None:
            return original(model, **options)
        _remark()
        return (lambda function: function) if model is None else model

    return compile


def _left(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile(self: Any, *args: Any, **options: Any) -> None:
        if machine() is None:
            original(self, *args, **options)
        else:
            _remark()

    return compile
