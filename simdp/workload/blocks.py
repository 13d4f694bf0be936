"""Blocks: the modules that a model repeats, such as residual blocks and encoder layers.

What FSDP's wrapping policies and activation checkpointing take as a whole. Names tell them, as they
do in torch: `layers` are not asked what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simdp.workload.layers.base import Layer


@dataclass(frozen=True)
class Block:
    """Calls and parameters of one module.

    Attributes
    ----------
    name : str
        The module's, such as ``"encoder.layers.0"``; empty for the root, which has all the rest.
    calls : tuple of int
        Numbers of its calls, in the order of forward.
    parameters : tuple of str
        Names of its parameters, in torch's order of registration.
    """

    name: str
    calls: tuple[int, ...]
    parameters: tuple[str, ...]


def block_names(parameters: Sequence[str]) -> list[str]:
    """Find the blocks of a model in the names of its parameters.

    Up to and including the first part that is a number (``encoder.layers.0``, ``layer1.0``), else
    the first of several parts (``Mixed_5b``), unless that holds other blocks.
    """
    found: dict[str, None] = {}
    for name in parameters:
        parts = name.split(".")[:-1]  # the last one is the tensor's own
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is not None:
            found[".".join(parts[: number + 1])] = None
        elif len(parts) > 1:
            found[parts[0]] = None
    holding = {name[:dot] for name in found for dot, sign in enumerate(name) if sign == "."}
    return [name for name in found if name not in holding]


def grouped(
    registered: Sequence[Layer], calls: Sequence[Layer], names: Sequence[str]
) -> list[Block]:
    """Sort calls and parameters into modules.

    Parameters
    ----------
    registered : sequence of Layer
        In torch's order of registration.
    calls : sequence of Layer
        In the order of forward.
    names : sequence of str
        Of the modules; of several that hold a layer, the innermost counts.

    Returns
    -------
    list of Block
        The root, and then each module, in the order of their first calls. A layer that learns
        nothing, and whose name is of no module, goes with the call before it. A parameter that
        layers of several modules use is the root's.
    """
    modules = set(names)

    def home(name: str) -> str:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    homes, users = list[str](), dict[str, set[str]]()
    for layer in calls:
        learned = [parameter.name for parameter in layer.parameters()]
        found = home(layer.name)
        if not found and not learned and homes:
            found = homes[-1]
        homes.append(found)
        for name in learned:
            users.setdefault(name, set()).add(found)
    numbers: dict[str, list[int]] = {}
    for number, of_call in enumerate(homes):
        numbers.setdefault(of_call, []).append(number)
    ordered = list(dict.fromkeys(["", *homes, *names]))
    sorted_names: dict[str, list[str]] = {name: [] for name in ordered}
    for name in dict.fromkeys(p.name for layer in registered for p in layer.parameters()):
        used_by = users.get(name, {home(name)})
        sorted_names[next(iter(used_by)) if len(used_by) == 1 else ""].append(name)
    return [
        Block(
            name,
            tuple(numbers.get(name, ())),
            tuple(sorted_names[name]),
        )
        for name in ordered
    ]


def within(calls: Sequence[Layer], units: Sequence[str]) -> list[frozenset[str]]:
    """Find the units that each call runs in, of units that may lie within each other.

    Parameters
    ----------
    calls : sequence of Layer
        In the order of forward.
    units : sequence of str
        Names of modules; several in one, with commas between them, are a unit together.

    Returns
    -------
    list of frozenset of str
        What learns nothing and has no name runs where the call before it does, unless that is a
        module of one layer.
    """
    known = {name: unit for unit in units for name in unit.split(", ")}
    found, before = list[frozenset[str]](), frozenset[str]()
    for layer in calls:
        parts = layer.name.split(".") if layer.name else []
        names = [".".join(parts[: end + 1]) for end in range(len(parts))]
        here = frozenset(known[name] for name in names if name in known)
        if not (layer.name or layer.parameters()):
            here = before
        found.append(here)
        before = here - {known[layer.name]} if layer.name in known else here
    return found
