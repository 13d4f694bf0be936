"""Measured beside simulated times, made up, that several files of tests start from."""

from simdp.results.validation import (
    CollectiveComparison,
    Excluded,
    StepComparison,
    Validation,
)


def step(measured=0.1, simulated=0.1, **more):
    """A step on 8 ranks of one cluster, in seconds."""
    usual = {
        "scenario": "resnet",
        "cluster": "box",
        "set": {},
        "world_size": 8,
        "role": "predicted",
        "low": 0.9 * simulated,
        "high": 1.1 * simulated,
        "note": None,
        "samples": 256.0,
        "linear": None,
        "ring": 2 * measured,
    }
    return StepComparison(measured=measured, simulated=simulated, **{**usual, **more})


def row(nbytes, measured, simulated, **more):
    """One size of an all_reduce of 8 ranks."""
    usual = {
        "scenario": "tables",
        "cluster": "box",
        "set": {},
        "world_size": 8,
        "role": "predicted",
        "low": 0.9 * simulated,
        "high": 1.1 * simulated,
        "note": None,
        "collective": "all_reduce",
        "table": 0,
        "nbytes": nbytes,
        "ring": 1.5 * measured,
    }
    return CollectiveComparison(measured=measured, simulated=simulated, **{**usual, **more})


def validation(points=(), rows=(), noise=0.02, excluded=()):
    """A validation of these."""
    clusters = dict.fromkeys(one.cluster for one in (*points, *rows))
    sources = dict.fromkeys((one.scenario for one in (*points, *rows)), "made up")
    levels = dict.fromkeys(clusters, noise)
    return Validation("0.1.0", tuple(points), tuple(rows), levels, sources, tuple(excluded))


def two_clusters():
    """Two clusters with curves and one with a table, as plots and tables show them."""
    points = [
        step(
            0.1 + 0.01 * n,
            0.1 + 0.011 * n,
            set={"cluster.world_size": n, "workload.microbatch": batch},
            world_size=n,
            samples=float(batch * n),
            cluster=cluster,
            scenario=f"{cluster}_resnet",
            role="calibration" if n == 1 else "predicted",
            linear=None if n == 1 else 0.11,
            note="the switch is shared: 20 ms" if n == 8 else None,
        )
        for cluster in ("box", "rack")
        for batch in (32, 64)
        for n in (1, 2, 8)
    ]
    rows = [row(2**k, 1e-5 + 2**k * 1e-10, 1.1e-5 + 2**k * 1e-10) for k in (10, 20, 30)]
    left_out = [Excluded("box_resnet", "box", {"cluster.world_size": 4}, "a shared | machine")]
    return validation(points, rows, excluded=left_out)
