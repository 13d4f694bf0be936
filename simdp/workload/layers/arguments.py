"""Checks of what is written in YAML that several layers and models share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from simdp.spec import problem
from simdp.workload.layers.base import Module


def numbered(modules: list[Any], lead: str = "") -> list[Any]:
    """Name those modules that have no name by their place, as torch.nn.Sequential does.

    Numbers among ``inputs`` become names too.

    Parameters
    ----------
    modules : list
        As written: kinds, mappings, or anything else, which is left for others to refuse.
    lead : str
        What stands before a number.
    """
    named = []
    for number, module in enumerate(modules):
        if isinstance(module, str):
            module = {"kind": module}
        if isinstance(module, dict):
            module = {"name": f"{lead}{number}", **module}
            if isinstance(module.get("inputs"), list):
                names = [str(name) if type(name) is int else name for name in module["inputs"]]
                module["inputs"] = names
        named.append(module)
    return named


def check_names(modules: Sequence[Module]) -> None:
    """Refuse modules that share a name, since their parameters would."""
    name, times = Counter(module.name for module in modules).most_common(1)[0]
    if times > 1:
        raise problem(f"{times} layers are called {name!r}; give each a name of its own.")


def check_heads(heads: str, num_heads: int, width: str, num_features: int) -> None:
    """Refuse heads that do not share the features evenly; the words are the two keys."""
    if num_features % num_heads:
        raise problem(
            f"{heads}: {num_heads} heads do not share {width} {num_features} evenly; "
            "choose a divisor of it."
        )


def check_groups(groups: int, in_channels: int, out_channels: int) -> None:
    """Refuse groups that do not share the channels of a convolution evenly."""
    for key, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
        if channels % groups:
            raise problem(
                f"groups: {groups} does not divide {key}, {channels}; "
                "write a number that divides both."
            )


def check_token(key: str, token: int | None, num_tokens: int) -> None:
    """Refuse a number that is no token of a vocabulary."""
    if token is not None and not 0 <= token < num_tokens:
        raise problem(f"{key}: {token} is not a token; tokens are 0 ... {num_tokens - 1}.")
