"""Bar names: what can be read in a timeline's bars; layers gathered into blocks, buckets cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Floats
from simdp.reports import theme

PADDING = 2.0
"""What stays free around a name, both sides together [points]."""

MIN_BLOCKS, MIN_SHARE = 3, 0.6
"""A pass is shown in blocks if so many of them have room for their names, over so much of it."""


def fits(text: str, width: float) -> bool:
    """Tell whether there is room for a name in a bar as wide as this [points]."""
    return theme.text_width(text, theme.TINY_SIZE) + PADDING <= width


def shorter(name: str) -> list[str]:
    """Write a bar's name in ever fewer letters.

    ``all_reduce bucket 3`` is at last ``b3``; ``broadcast buffers 0`` is ``buffers``, and
    ``all_gather layer1.0.bn1 statistics`` is ``bn1``; ``step 7`` is ``7``.
    """
    if name in ("forward", "backward"):
        return [name, {"forward": "fwd", "backward": "bwd"}[name]]
    words = name.split()
    if words[0] == "step":
        return [name, words[-1]]
    if len(words) < 3:  # as in "used parameters", which says it all
        return [name]
    if words[1] == "bucket":  # and, behind its number, which part of it
        rest = "".join(f" {word}" for word in words[3:] if len(word) == 1)
        return [name, " ".join(words[1:3]) + rest, f"b{words[2]}{rest}"]
    _, what, last = words[0], words[-2], words[-1]
    tail = f"{what} {last}"
    if what == "unit":
        return [name, tail, f"u{last}"]
    return [name, tail, what, what.rpartition(".")[2]]


def blocks(layers: Sequence[str], start: Floats, end: Floats) -> dict[str, str]:
    """Gather the layers of a pass into blocks whose names can be read, as small as they may be.

    Parameters
    ----------
    layers : sequence of str
        Names in the order of one rank's pass, such as ``layer1.0.conv1``.
    start, end : ndarray, shape `(num_layers,)`
        Where each one's bar begins and ends [points].

    Returns
    -------
    dict of str to str
        What stands in a layer's bar, such as ``layer1.0`` or ``layer1``; ``""`` where it has no
        room. Empty if most of the pass would have no name.
    """
    for gather in (_block, _stage):
        paths = [gather(layer) for layer in layers]
        heads = [i for i, path in enumerate(paths) if not i or path != paths[i - 1]]
        if not heads or len(heads) > len(set(paths)):  # a block in several pieces tells nothing
            continue
        tails = [i - 1 for i in (*heads[1:], len(layers))]
        width = end[tails] - start[heads]
        named = {paths[i]: ".".join(paths[i].split(".")[-2:]) for i in heads}
        read = np.array([fits(named[paths[i]], w) for i, w in zip(heads, width, strict=True)])
        if read.sum() >= MIN_BLOCKS and width[read].sum() >= MIN_SHARE * width.sum():
            kept = {paths[i] for i, shown in zip(heads, read, strict=True) if shown}
            return {
                layer: named[path] if path in kept else ""
                for layer, path in zip(layers, paths, strict=True)
            }
    return {}


def _block(layer: str) -> str:
    """Cut a layer's path behind its first number, else before its last part."""
    parts = layer.split(".")
    for place, part in enumerate(parts[1:], 2):
        if part.isdigit():
            return ".".join(parts[:place])
    return ".".join(parts[:-1]) or layer


def _stage(layer: str) -> str:
    return layer.partition(".")[0]
