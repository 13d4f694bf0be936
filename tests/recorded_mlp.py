"""A small MLP that real torch was run with on gloo ranks; tests compare losses with its figures."""

import tempfile
from pathlib import Path

import numpy as np
from small_scenario import FAST

import simdp
from simdp.scenario import checked

LAYERS = [("a", 6, 8), ("b", 8, 7), ("c", 7, 3)]
WIDER = [("a", 6, 40), ("b", 40, 30), ("c", 30, 3)]


INSIDE = [("e.a", 6, 8), ("e.b", 8, 7), ("c", 7, 3)]


def first_weights(layers=LAYERS):
    """The weights that the script begins with, by name."""
    random, found = np.random.default_rng(1), {}
    for name, before, behind in layers:
        found[f"{name}.weight"] = 0.3 * random.standard_normal((behind, before))
        found[f"{name}.bias"] = 0.3 * random.standard_normal(behind)
    return found


def trained(
    strategy,
    world_size,
    layers=LAYERS,
    steps=4,
    scale=1.0,
    cluster=None,
    between=("relu",),
    **options,
):
    """Simulate SGD(lr=0.1) on micro-batches of 4 of each rank; the data are not shuffled.

    Activations ``between`` two layers are modules beside these, or inside what holds both.

    In torch: rank r takes the samples r, r + n, ... of ``default_rng(3)``'s inputs, times scale,
    and targets.
    """
    options = {"dtype": "float32", "grad_accum": 1, **options}
    num_samples = 4 * steps * world_size * options["grad_accum"]
    random, dtype = np.random.default_rng(3), options["dtype"]
    x, y = (
        scale * random.standard_normal((num_samples, 6)),
        random.standard_normal((num_samples, 3)),
    )
    flat = []
    for number, (name, before, behind) in enumerate(layers):
        flat.append({"kind": "linear", "name": name, "in_features": before, "out_features": behind})
        holding = name.rpartition(".")[0]
        within = holding and layers[(number + 1) % len(layers)][0].startswith(f"{holding}.")
        path = f"{holding}." if within else ""
        flat += [{"kind": kind, "name": f"{path}{kind}{number}"} for kind in between]
    flat = flat[: -len(between)]
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "data.npz", x=x.astype(dtype), y=y.astype(dtype))
        weights = {name: array.astype(dtype) for name, array in first_weights(layers).items()}
        np.savez(Path(folder) / "weights.npz", **weights)
        raw = {
            "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
            "workload": {
                "model": {"kind": "sequential", "layers": flat, "input_shape": [6]},
                "dataset": {"kind": "npz", "path": "data.npz"},
                "weights": "weights.npz",
                "loss": "mse",
                "optimizer": {"kind": "sgd", "lr": 0.1},
                "microbatch": 4,
                "steps": steps,
                **options,
            },
            "strategy": strategy,
        }
        return simdp.simulate(checked(raw, Path(folder)))
