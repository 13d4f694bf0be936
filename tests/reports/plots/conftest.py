"""Small real studies to draw, each simulated once."""

from __future__ import annotations

import pytest
from calibrated import calibration, step_calibration
from compared import comparison
from jobs_drawn import three_jobs
from measured_times import two_clusters

import simdp
from simdp.cluster import Cluster
from simdp.reports.charts import CHARTS
from simdp.reports.plots import draw
from simdp.reports.plots.style import style
from simdp.results.calibration import CalibrationStudy, StepCalibration
from simdp.results.collective import CollectiveStudy
from simdp.results.comparison import Comparison
from simdp.results.job import JobStudy
from simdp.results.validation import Validation
from simdp.studies.collective import make_algorithm, sweep_collective

SCENARIO = """
name: small
cluster:
  world_size: 4
  device: a100-sxm4-80gb
  topology: ring
  link: {alpha: 5 us, bandwidth: 25 GB/s}
  stragglers: [{kind: slow_rank, rank: 1, factor: 1.5}]
workload:
  model: {kind: mlp, widths: [64, 64, 10]}
  dataset: {kind: blobs, num_samples: 512}
  loss: cross_entropy
  optimizer: {kind: sgd, lr: 0.1}
  microbatch: 8
  steps: 5
strategy: {kind: ddp, bucket_cap: 0 B}
collectives: {all_reduce: ring}
"""

SIZES = {"cluster.world_size": [2, 4, 8]}


@pytest.fixture(scope="session")
def play(tmp_path_factory):
    path = tmp_path_factory.mktemp("plots") / "small.yaml"
    path.write_text(SCENARIO)
    return lambda **sections: simdp.sweep(simdp.load_scenario(path, sections.get("set", {})))


@pytest.fixture(scope="session")
def single(play):
    return play()


@pytest.fixture(scope="session")
def sizes(play):
    return play(set={"sweep": SIZES})


@pytest.fixture(scope="session")
def grid(play):
    return play(set={"sweep": {**SIZES, "strategy.overlap": [True, False]}})


@pytest.fixture(scope="session")
def microbatches(play):
    """A sweep over numbers that are no world sizes."""
    return play(set={"sweep": {"workload.microbatch": [4, 8, 16]}})


@pytest.fixture(scope="session")
def overlaps(play):
    """A sweep over what is no number."""
    return play(set={"sweep": {"strategy.overlap": [False, True]}})


@pytest.fixture(scope="session")
def large(play):
    return play(
        set={
            "cluster.world_size": 40,
            "cluster.stragglers.0.rank": 21,
            "numerics": False,
        }
    )


@pytest.fixture(scope="session")
def uneven(play):
    """The last rank has fewer samples than the others."""
    return play(set={"workload.microbatch": None, "workload.global_batch": 41})


@pytest.fixture(scope="session")
def time_collective():
    """Time collectives on clusters of one node."""

    def time_collective(
        algorithms=("ring",), world_sizes=(8,), sizes=(2**10, 2**17, 2**24), **more
    ):
        name = more.pop("collective", "all_reduce")
        topology = more.pop("topology", "switch")
        made = [make_algorithm(name, written) for written in algorithms]
        link = {"alpha": "5 us", "bandwidth": "25 GB/s"}
        clusters = [
            Cluster(world_size=n, device="a100-sxm4-80gb", topology=topology, link=link)
            for n in world_sizes
        ]
        return sweep_collective(name, made, clusters, sizes, name="box", **more)

    return time_collective


@pytest.fixture(scope="session")
def collectives(time_collective):
    return time_collective(("ring", "tree"), (2, 4, 8))


@pytest.fixture(scope="session")
def auto(time_collective):
    between = {"kind": "auto", "candidates": ["ring", "recursive_doubling"]}
    return time_collective([between], (16,), topology="full_mesh")  # where predictions are exact


@pytest.fixture(scope="session")
def fit(grid, microbatches, overlaps, uneven, collectives):
    """Give a study that a kind of plot can draw."""
    of_one = {"throughput_curves": two_clusters().of("box"), "memory_per_rank": uneven}
    of_one |= {"points": overlaps, "sweep": microbatches}
    drawn = {CollectiveStudy: collectives, Validation: two_clusters()}
    drawn |= {CalibrationStudy: calibration(), StepCalibration: step_calibration()}
    drawn |= {Comparison: comparison(), JobStudy: three_jobs()}
    return lambda kind: of_one.get(kind) or drawn.get(CHARTS[kind].reads, grid)


@pytest.fixture
def drawn():
    """Draw a kind of picture of a study, and lay it out."""

    def drawn(kind, study):
        with style():
            figure, axes = draw(CHARTS[kind].picture(study))
            figure.draw_without_rendering()
        return axes

    return drawn
