"""Profile text: layers as the CSV file that a model of kind profile reads."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.studies.replay.tensors import ReplayedLayer

COLUMNS = (
    "name",
    "forward_us",
    "backward_us",
    "gradient_bytes",
    "forward_host_us",
    "backward_host_us",
    "products",
    "buffer_bytes",
    "counter_bytes",
)

US = 1e6


def text_of(
    layers: Sequence[ReplayedLayer], itemsize: int, buffers: tuple[int, int], about: str
) -> str:
    """Write the table.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of backward.
    itemsize : int
        Bytes of a gradient's element.
    buffers : (int, int)
        Bytes of the model's buffers, and of its counters; the first line has them.
    about : str
        A comment.
    """
    lines = list[list[str]]()
    seen = dict[str, int]()
    for layer in layers:
        tensors = layer.tensors or ((layer.name, 0),)
        for number, (name, elements) in enumerate(tensors):
            timed = not number
            lines.append(
                [
                    _fresh(name, seen),
                    _us(layer.forward) if timed else "0",
                    _us(layer.backward) if timed else "0",
                    str(elements * itemsize),
                    _us(layer.forward_host) if timed else "0",
                    _us(layer.backward_host) if timed else "0",
                    f"{min(layer.products, 1.0):.4g}" if timed else "0",
                    "0",
                    "0",
                ]
            )
    lines.reverse()  # forward's order
    lines[0][-2:] = str(buffers[0]), str(buffers[1])
    used = [k for k in range(len(COLUMNS)) if k < 4 or any(line[k] != "0" for line in lines)]
    rows = [",".join(line[k] for k in used) for line in (list(COLUMNS), *lines)]
    return "\n".join([f"# {about}", *rows]) + "\n"


def _us(seconds: float) -> str:
    return f"{seconds * US:.9g}"


def _fresh(name: str, seen: dict[str, int]) -> str:
    """The name, or with a number where it was there before; without what CSV and keys use."""
    name = name.replace(",", ";").replace('"', "'").strip() or "layer"
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else _fresh(f"{name}~{seen[name]}", seen)
