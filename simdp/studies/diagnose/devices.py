"""Maps a driver's device name to the catalogue and to machines that have the device."""

from __future__ import annotations

import re
from pathlib import Path

from simdp.cluster.hardware import DEVICES, MACHINES, read_machine

WAYS = ("sxm2", "sxm4", "sxm5", "pcie")
"""How a device is built in, where there are several ways."""

STANDS_FOR = {"hbm3": "sxm5", "hbm3e": "sxm5"}
"""What drivers say in place of it."""


def device_of(name: str | None) -> str | None:
    """Find the catalogue's name of a device.

    Parameters
    ----------
    name : str or None
        As the driver says it: ``"NVIDIA A100-SXM4-80GB"``; or as we do.

    Returns
    -------
    str or None
        None where none fits, or several do.
    """
    if not name or name in DEVICES.names():
        return name or None
    words = re.findall(r"[a-z0-9]+", name.lower())
    joined = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    found = [known for known in DEVICES.names() if "".join(_model(known)) in joined]
    ways = {way for word in words if (way := STANDS_FOR.get(word, word)) in WAYS}
    sizes = {word for word in words if re.fullmatch(r"\d+gb", word)}
    for said in (ways, sizes):
        fitting = [known for known in found if said & set(known.split("-"))]
        found = fitting or found
    return found[0] if len(found) == 1 else None


def _model(known: str) -> list[str]:
    parts = known.split("-")
    return [part for part in parts if part not in WAYS and not re.fullmatch(r"\d+gb", part)]


def machines_with(device: str) -> list[str]:
    """Catalogue machines with devices of this kind alone."""
    return [
        name
        for name in MACHINES.mentioning(device)
        if read_machine(name, Path()).cluster.get("device") == device
    ]
