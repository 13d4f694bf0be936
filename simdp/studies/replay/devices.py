"""Maps the device name of a trace to the catalogue."""

from __future__ import annotations

import re

from simdp.cluster.hardware import DEVICES

SPECIAL = {"a100pg509200": "a100-sxm4-40gb", "a100pg506": "a100-sxm4-80gb"}
"""Boards that the driver calls by their number; PG509-200 are the 40 GB that Meta had."""

VENDORS = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")

UNKNOWN = {
    "name": "not in the catalogue",
    "peak": {"float32": "1 TFLOP/s", "float64": "1 TFLOP/s"},
    "memory": "1 TB",
    "memory_bandwidth": "1 TB/s",
    "launch": "0 s",
}
"""Placeholder for an unknown device: times are those of the profile."""


def catalogue_name(said: str | None) -> str | None:
    """Find a device of the catalogue.

    Parameters
    ----------
    said : str or None
        As a trace has it: ``"Tesla V100-SXM2-32GB"``, ``"NVIDIA H100 80GB HBM3"``.

    Returns
    -------
    str or None
        Its name, or None where none or several would do.
    """
    if said is None:
        return None
    names = DEVICES.names()
    if said in names:
        return said
    plain = re.sub(r"[^a-z0-9]", "", said.lower())
    for vendor in VENDORS:
        plain = plain.replace(vendor, "")
    if plain in SPECIAL:
        return SPECIAL[plain]
    exact = [name for name in names if name.replace("-", "") == plain]
    if exact:
        return exact[0]
    memory = re.search(r"(\d+) ?gb", said.lower())
    found = []
    for name in names:
        board, *form, size = name.split("-")
        if board not in plain or (memory and memory[1] + "gb" != size):
            continue
        if any(word in plain for word in ("pcie", "sxm")) and form and form[-1][:3] not in plain:
            continue
        found.append(name)
    if len(found) > 1 and "pcie" not in plain:
        found = [name for name in found if "pcie" not in name]
    longest = max((len(name.split("-")[0]) for name in found), default=0)
    found = [name for name in found if len(name.split("-")[0]) == longest]  # not l4 of an l40s
    return found[0] if len(found) == 1 else None
