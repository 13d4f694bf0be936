"""The table of a sweep: speed-ups, the best point, what fits, and 80 columns."""

import io

from rich.console import Console

from simdp.reports import table
from simdp.reports.figures import speedup
from simdp.reports.page.sweep import points_table
from simdp.results.comparison import best_of
from simdp.results.metrics import LABELS, Metrics
from simdp.results.result import Result, Study


def study(points, sweep=("cluster.world_size",)):
    """Points of (values, metrics), all other metrics as dull as can be."""
    dull = dict.fromkeys(LABELS, 0.0) | {
        "step_time_s": 1e-3,
        "throughput_samples_per_s": 1000.0,
        "peak_memory_bytes": [1000],
        "fits_memory": True,
        "loss": None,
        "skipped_steps": None,
        "scaling_efficiency": None,
    }
    scenario = {"name": "dull", "cluster": {"world_size": 1}, "sweep": dict.fromkeys(sweep)}
    results = [
        Result(scenario, dict(zip(sweep, values, strict=True)), Metrics.of(dull | metrics))
        for values, metrics in points
    ]
    return Study("0.1.0", scenario, results)


def lines(of):
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(table.summary(of), soft_wrap=True)
    return stream.getvalue().splitlines()


def test_speed_ups_are_over_the_first_point_and_the_fastest_that_fits_has_a_star():
    found = lines(
        study(
            [
                ((1,), {}),
                ((2,), {"throughput_samples_per_s": 1900.0}),
                ((4,), {"throughput_samples_per_s": 3000.0, "fits_memory": False}),
            ]
        )
    )
    rows = [line.split() for line in found]
    assert ["1", "1.000", "1", "k", "yes", "1x"] in rows
    assert ["2", "1.000", "1.9", "k", "yes", "1.9x*"] in rows
    assert ["4", "1.000", "3", "k", "no", "3x"] in rows
    assert any("* the fastest point that fits" in line for line in found)


def test_where_everything_fits_there_is_no_column_for_it():
    found = lines(study([((1,), {}), ((2,), {})]))
    assert not any("fits" in line for line in found)


def test_nothing_is_wider_than_a_terminal():
    long = {"kind": "hierarchical", "inner": "bidirectional_ring", "outer": "halving_doubling"}
    busy = dict.fromkeys(("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s"), 2e-4)
    busy |= {"loss": [0.5], "scaling_efficiency": 0.5, "mfu": 0.5}
    points = [((number, [long] * 2), busy) for number in range(4)]
    found = lines(study(points, ("cluster.world_size", "collectives.all_reduce")))
    assert max(map(len, found)) <= 80
    assert "".join("".join(found).split()).count("halving_doubling") or any(
        "halving" in line for line in found
    )
    assert any("speed-up" in line for line in found)


def test_idle_cards_are_said_of_the_first_point_that_has_them():
    made = study([((1,), {}), ((2,), {}), ((4,), {})])
    for point in made.points[1:]:
        point.network = {"cards": {"used": 1, "of": 8}}
    (said,) = [line for line in lines(made) if "network cards" in line]
    assert said.startswith("network cards at 2: 1 of 8")


def test_the_best_has_the_most_samples_of_those_that_fit():
    def point(rate, fits=True):
        return Metrics(throughput_samples_per_s=rate, fits_memory=fits)

    assert best_of([]) is None
    assert best_of([point(None), None]) is None
    assert best_of([point(1.0), None, point(3.0, False), point(2.0), point(2.0)]) == 3
    assert best_of([point(1.0, False), point(2.0, False)]) == 1
    assert speedup(None, 1.0) == speedup(1.0, None) == "- "


def test_long_samples_are_counted_in_tokens():
    def of(length):
        rates = {"tokens_per_s": 1000.0 * length, "tokens_per_s_per_gpu": 500.0 * length}
        return rates | {"mfu": 0.25}

    found = lines(study([((1,), of(1000)), ((2,), of(1000))]))
    assert any("tok/s/GPU    MFU speed-up" in line for line in found)
    assert ["1", "1.000", "500,000", "25.0", "%", "1x*"] in [line.split() for line in found]
    short = lines(study([((1,), of(999)), ((2,), of(999))]))
    assert any("samples/s" in line for line in short[:3])
    assert not any("tok" in line for line in short)
    no_flops = lines(study([((1,), of(1000) | {"mfu": None})]))
    assert not any("MFU" in line for line in no_flops)


def test_speed_ups_are_of_tokens_where_samples_differ_in_length():
    slow = {"tokens_per_s": 1e6, "tokens_per_s_per_gpu": 1e6}
    fast = {"tokens_per_s": 2e6, "tokens_per_s_per_gpu": 2e6, "throughput_samples_per_s": 500.0}
    found = lines(study([((1000,), slow), ((4000,), fast)]))
    assert ["4000", "1.000", "2,000,000", "0.0", "%", "2x*"] in [line.split() for line in found]
    assert any(line.startswith("speed-up: tokens/s over") for line in found)


def test_long_values_are_broken_before_memory_is_left_out():
    busy = dict.fromkeys(("compute_s", "exposed_comm_s", "wait_s", "other_s"), 2e-4)
    points = [
        ((7, {"kind": "fsdp", "reshard_after_forward": False, "offload": "cpu"}), busy),
        ((8, "ddp"), busy | {"peak_memory_bytes": [5000]}),
    ]
    found = lines(study(points, ("workload.microbatch", "strategy")))
    assert max(map(len, found)) <= 80
    assert any("memory" in line for line in found)


def test_a_sweep_that_has_a_target_or_a_price_has_columns_of_it_and_says_whose_price_it_is():
    plain = study([((1,), {}), ((2,), {})])
    for point, usd in zip(plain.points, (1.5, 2.5), strict=True):
        point.cost = {
            "million_samples": {"cost_usd": usd, "energy_kwh": None},
            "price_usd_per_h": 3.0,
            "price_date": "2026-05",
        }
    assert "USD" not in " ".join(lines(plain))
    plain.scenario["cluster"]["price"] = "3 USD/h"
    said = " ".join(lines(plain))
    assert "USD/M" in said
    assert "price: 3 USD/h a device, list price of 2026-05" in said
    plain.points[1].target = {"time_s": {"mean": 600.0}, "cost_usd": {"mean": 4.0}, "steps": 3}
    plain.points[1].target["energy_kwh"] = None
    told = lines(plain)
    assert "to target" in " ".join(told)
    assert any("10 min" in line for line in told)


def test_times_to_the_target_sort_by_seconds_on_the_page():
    of = study([((n,), {}) for n in (1, 2, 3, 4)])
    for point, time in zip(of.points, (7200.0, 180.0, 259200.0, None), strict=True):
        point.target = {"time_s": time and {"mean": time}, "cost_usd": None, "energy_kwh": None}
    of.scenario["target"] = "loss 1"
    found = points_table(of)
    cells = [row[found.heads.index("to target")] for row in found.rows]
    assert cells == ["2 h", "3 min", "3 days", "never"]
    assert [cell.value for cell in cells] == [7200.0, 180.0, 259200.0, None]


def test_a_step_has_its_interval_beside_it_where_one_is_known():
    points = [((1,), {}), ((2,), {"step_time_s": 0.328, "interval_s": [0.253, 0.425]})]
    found = lines(study([((1,), {"interval_s": None}), points[1]]))
    assert "and its 90 % interval" in found[0]
    rows = [line.split() for line in found]
    assert ["2", "328.0", "253-425"] in [row[:3] for row in rows]
    assert ["1", "1.0", "-"] in [row[:3] for row in rows]
    assert not any("90 %" in line for line in lines(study([points[0], ((2,), {})])))
