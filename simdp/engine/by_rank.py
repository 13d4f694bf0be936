"""By rank: a state's arrays, by rank and name, where a rank that is like the first has none."""

from __future__ import annotations

from collections.abc import Mapping

from simdp.arrays import Array
from simdp.errors import ScenarioError


def of_rank(arrays: Mapping[str, Array], rank: int, name: str, shape: tuple[int, ...]) -> Array:
    """A rank's array of a state; where it has none of its own, that of rank 0.

    Raises
    ------
    ScenarioError
        If there is none, or it has another shape.
    """
    found = arrays.get(f"{rank}/{name}", arrays.get(f"0/{name}"))
    if found is None:
        raise ScenarioError([f"the state has no {name}, which this run keeps from step to step."])
    if found.shape != shape:
        raise ScenarioError(
            [f"{name} of the state has the shape {found.shape}, but that of this run is {shape}."]
        )
    return found


def without_repeats(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Leave out what is the same on a later rank as on the first."""
    found: dict[str, Array] = {}
    for key, value in arrays.items():
        rank, _, name = key.partition("/")
        first = arrays.get(f"0/{name}")
        alike = rank != "0" and first is not None and value.tobytes() == first.tobytes()
        if not alike:
            found[key] = value
    return found
