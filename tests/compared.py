"""A comparison, made up, that several files of tests start from."""

from simdp.results.comparison import ComparedPoint, Comparison
from simdp.results.metrics import Metrics

MEMORY = 40e9


def ran(strategy, parts=(0.06, 0.01, 0.02, 0.01, 0.0), kept=10e9, **more):
    """A point that ran; parts of a step in seconds, in the order of the plot."""
    names = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
    metrics = {
        "step_time_s": sum(parts),
        "throughput_samples_per_s": 256 / sum(parts) if sum(parts) else None,
        **dict(zip(names, parts, strict=True)),
        "bytes_sent_per_rank": [4000, 6000],
        "fits_memory": kept <= MEMORY,
        "loss": more.pop("loss", [2.5, 1.25]),
        "replicas_identical": more.pop("identical", True),
    }
    usual = {"world_size": 8, "weights_difference": 0.0, "same_weights": True}
    return ComparedPoint(
        {"strategy": strategy},
        metrics=Metrics(**metrics),
        device_bytes=kept,
        capacity_bytes=MEMORY,
        **{**usual, **more},
    )


def cannot(strategy, *problems):
    """A point that could not run."""
    return ComparedPoint({"strategy": strategy}, problems=list(problems))


def comparison(*points, notes=()):
    """A comparison of these points; of a few usual ones without any."""
    points = points or (
        ran("single", (0.45, 0.02, 0.0, 0.0, 0.0), 60e9, world_size=1),
        ran("ddp", kept=30e9, weights_difference=3e-8),
        ran({"kind": "fsdp", "units": "whole"}, (0.06, 0.001, 0.05, 0.01, 0.004), 8e9),
        cannot("horovod", "strategy.join: has no such thing."),
    )
    over = {"strategy": [point.set["strategy"] for point in points]}
    return Comparison("0.1.0", {"name": "box", "seed": 0}, over, list(points), list(notes))
