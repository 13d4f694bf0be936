"""What no table had to which a machine was fitted, and how much wider intervals are for it."""

import json
from math import exp, hypot, log
from pathlib import Path

import pytest
from for_each import for_each

from benchmarks import novelty as benchmark
from simdp.cluster.hardware import Calibration, read_machine
from simdp.scenario import load_scenario
from simdp.studies.collective import Request, answer
from simdp.studies.intervals import (
    NORMAL_90,
    NOVELTY_SPREAD,
    Interval,
    Known,
    collective_novelty_spread,
    novelty_of,
    tables_of,
    widened,
)

TABLES = {"all_reduce": [1, 2], "all_gather": [1]}
LARGE = 1 << 20


@for_each(
    ("collective", "num_nodes", "new"),
    [
        ("all_reduce", 2, ()),
        ("all_reduce", 8, ("nodes",)),
        ("all_gather", 2, ("nodes",)),
        ("all_to_all", 2, ("collective",)),
        ("all_to_all", 4, ("collective", "nodes")),
    ],
)
def test_new_is_what_no_table_had(collective, num_nodes, new):
    assert novelty_of(TABLES, collective, num_nodes) == new


def test_who_measured_inside_a_node_alone_knows_nothing_of_the_network():
    assert novelty_of({"all_reduce": [1]}, "all_reduce", 2) == ("network",)
    assert novelty_of({"all_reduce": [1]}, "all_gather", 2) == ("collective", "network")
    assert novelty_of({"all_reduce": [2]}, "all_reduce", 1) == ("nodes",)


def test_a_machine_without_tables_tells_nothing():
    assert novelty_of({}, "all_reduce", 8) == ()
    assert (
        collective_novelty_spread((), LARGE) == NOVELTY_SPREAD["size"]["large"]
    )  # which always is new


def test_the_tables_of_all_that_is_known_are_joined():
    known = [
        Known(name, Calibration(data=name, tables={"all_reduce": [n]}))
        for name, n in (("a", 1), ("b", 2))
    ]
    assert tables_of(known) == {"all_reduce": [1, 2]}


def test_what_is_new_twice_is_further_off_than_either():
    for one, other in (("collective", "network"), ("cluster", "nodes"), ("nodes", "network")):
        for nbytes in (1, 1 << 16, LARGE):
            size = collective_novelty_spread((), nbytes) ** 2
            parts = [collective_novelty_spread((new,), nbytes) ** 2 - size for new in (one, other)]
            assert collective_novelty_spread((one, other), nbytes) ** 2 == pytest.approx(
                size + sum(parts)
            )


def test_another_collective_on_other_nodes_is_further_off_than_the_two_by_themselves():
    for nbytes in (1, 1 << 16, LARGE):
        alone = hypot(
            collective_novelty_spread(("collective",), nbytes),
            collective_novelty_spread(("nodes",), nbytes),
        )
        assert collective_novelty_spread(("collective", "nodes"), nbytes) > alone


def test_an_interval_is_widened_by_a_factor_to_both_sides():
    told = Interval(1.0, 1.0)
    low, high = widened(1.0, told, 0.2)
    assert low == pytest.approx(exp(-0.2 * NORMAL_90))
    assert high == pytest.approx(1 / low)
    assert widened(1.0, Interval(0.5, 4.0), 0.0) == (0.5, 4.0)
    low, high = widened(1.0, Interval(0.5, 4.0), 1.0)
    assert log(high) ** 2 == pytest.approx(log(4) ** 2 + NORMAL_90**2)
    assert 0 < low < 0.5


def test_an_interval_that_reaches_zero_is_widened_to_the_other_side():
    low, high = widened(1.0, Interval(0.0, 2.0), 0.3)
    assert low == 0
    assert log(high) ** 2 == pytest.approx(log(2) ** 2 + (0.3 * NORMAL_90) ** 2)


def test_what_takes_no_time_takes_none_for_sure():
    assert widened(0.0, Interval(0.0, 0.0), 0.3) == (0.0, 0.0)


def test_entries_declare_the_tables_that_they_were_fitted_to():
    fitted = {}
    for path in sorted(benchmark.TABLES.glob("*.yaml")):
        scenario = load_scenario(path)
        _, made = scenario.measured_scenarios()
        for table, one in zip(scenario.measured.collectives, made, strict=True):
            if table.calibration != "none":
                tables = fitted.setdefault(one.cluster.machine, {})
                tables.setdefault(table.collective, set()).add(one.cluster.num_nodes)
    assert fitted
    for machine, tables in fitted.items():
        declared = read_machine(machine, Path()).calibration.tables
        assert declared == {key: sorted(nodes) for key, nodes in tables.items()}, machine


def widths(collective, world_size, machine="polaris-ofi", algorithms=()):
    study = answer(Request(collective, Path(machine), algorithms, str(world_size), "1MiB:64MiB:8"))
    return [
        (point.low and log(point.high / point.low), point.seconds)
        for curve in study.curves
        for point in curve.points
    ]


def test_a_collective_by_itself_is_less_sure_on_more_nodes_and_least_of_another_kind():
    same, more, other = widths("all_reduce", 8), widths("all_reduce", 32), widths("all_gather", 32)
    for few, many, strange in zip(same, more, other, strict=True):
        assert 0 < few[0] < many[0] < strange[0]


def test_only_times_of_a_machines_own_constants_have_an_interval():
    assert widths("all_reduce", 8, "dgx-1", ["ring"])[0][0] is None
    none = {"intra": 0.01, "inter": 0.01}
    own = {"kind": "nccl", "efficiency": none, "launch": "1 s", "ramp": "1 s"}
    assert widths("all_reduce", 8, "dgx-1", [own])[0][0] is None


def test_a_cluster_that_nobody_has_measured_is_least_sure():
    known, pool = (
        widths("all_reduce", 8, name, ["nccl"])[-1][0] for name in ("dgx-1", "8gpu_ring")
    )
    assert known < pool


def test_json_has_the_interval_and_a_log_is_held_against_it(tmp_path):
    log_file = tmp_path / "box.csv"
    log_file.write_text("size_bytes,time_us\n1048576,55\n67108864,800000\n")
    study = answer(Request("all_reduce", Path("dgx-1"), (), "8", against=log_file))
    (curve,) = json.loads(study.to_json())["curves"]
    for point in curve["points"]:
        assert point["low_s"] < point["time_s"] < point["high_s"]
    assert study.curves[0].held()[-1] is False


@pytest.mark.long
@pytest.mark.slow
def test_the_benchmark_counts_what_is_inside(capsys):
    assert benchmark.main() == 0
    said = capsys.readouterr().out
    assert "collective and nodes" in said
    for new in NOVELTY_SPREAD:
        assert new in said or new in ("network", "cluster", "size", "both")
