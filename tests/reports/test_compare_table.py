"""Tables of comparisons: a row per point, and what explains the rows below."""

import dataclasses
import io
import re

from compared import cannot, comparison, ran
from rich.console import Console

from simdp.reports.sweep_table import table
from simdp.results.comparison import ComparedPoint, Comparison


def printed(found):
    stream = io.StringIO()
    Console(file=stream, width=80).print(table(found), soft_wrap=True)
    return [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]


def cells(found, label):
    """What the tables say of a point, whatever lies below each other; or their heads."""
    split = [re.split(r"\s{2,}", line.strip()) for line in printed(found)]
    first = [parts for parts in split if parts[0] == label]
    return [label, *(cell for parts in first for cell in parts[1:])]


def row(found, label):
    return " ".join(cells(found, label)).split()


def test_the_columns_are_what_tells_strategies_apart():
    lines = printed(comparison())
    assert lines[0] == "box: strategy compared, times in ms"
    heads = "strategy ranks step samples/s speed-up exposed memory fits sent last_loss same_weights"
    found = [head.replace(" ", "_") for head in cells(comparison(), "strategy")]
    assert found == heads.split()


def test_a_row_has_the_values_of_its_point_and_the_fastest_that_fits_a_star():
    wanted = "single 1 470 544.7 1x 0 60 GB no 6 kB 1.25 first"
    assert row(comparison(), "single") == wanted.split()
    wanted = "ddp 8 100 2560 4.7x* 20 30 GB yes 6 kB 1.25 yes (3e-08)"
    assert row(comparison(), "ddp") == wanted.split()


def test_nothing_is_wider_than_a_terminal():
    lines = printed(comparison(ran("single"), cannot("fsdp", "strategy: no, " * 20)))
    assert max(map(len, lines)) <= 80


def test_ranks_have_no_column_where_all_points_have_as_many():
    found = comparison(ran("ddp"), ran("fsdp"))
    assert "ranks" not in printed(found)[1]


def test_ranks_have_no_column_beside_the_world_size_that_is_compared():
    points = [ran("ddp", world_size=n) for n in (2, 4)]
    for point in points:
        point.set["cluster.world_size"] = point.world_size
    found = comparison(*points)
    found.over["cluster.world_size"] = [2, 4]
    lines = printed(found)
    assert lines[0] == "box: strategy x world_size compared, times in ms"
    assert "ranks" not in lines[1]
    assert lines[3].split()[:2] == ["ddp", "2"]


def test_weights_are_the_same_or_differ_by_a_number_or_by_none():
    found = comparison(
        ran("single"),
        ran("ddp"),
        ran("apex", weights_difference=0.02, same_weights=False),
        ran("fsdp", weights_difference=None, same_weights=False),
        ran("zero1", weights_difference=None, same_weights=None),
        ran("data_parallel", identical=False),
    )
    wanted = {
        "single": "first",
        "ddp": "yes",
        "apex": "no (2e-02)",
        "fsdp": "no",
        "zero1": "-",
        "data_parallel": "yes, ranks differ",
    }
    for label, said in wanted.items():
        assert cells(found, label)[-1].startswith(said), label


def test_models_that_differ_in_few_parameters_name_them_once():
    few = {"weights_difference": 2.0, "same_weights": False, "num_parameters": 41}
    bias = ["layer.0.key.bias", "layer.1.key.bias", "layer.2.key.bias"]
    found = comparison(
        ran("single"),
        ran("ddp", differing=bias, **few),
        ran("fsdp", differing=bias, **few),
        ran("apex", differing=[f"p{i}" for i in range(30)], **few),
    )
    ends = [cells(found, label)[-1] for label in ("ddp", "fsdp", "apex")]
    assert ends == ["all but 3 of 41 (2e+00)"] * 2 + ["no (2e+00)"]
    assert " ".join(printed(found)).count("key.bias") == 2
    said = " ".join(printed(found))
    assert said[said.index("ddp, fsdp:") :].startswith(
        "ddp, fsdp: other weights in layer.0.key.bias, layer.1.key.bias and 1 more alone; where "
        "the losses are the same, the model does not feel them, and rounding decides."
    )


def test_the_column_of_weights_is_explained_where_there_is_one():
    bare = {"loss": None, "weights_difference": None, "same_weights": None}
    assert any(line.startswith("same weights: rank 0's") for line in printed(comparison()))
    lines = printed(comparison(ran("single", **bare), ran("ddp", **bare)))
    assert not any("same weights" in line for line in lines)


def test_without_numbers_there_are_no_columns_for_them():
    bare = {"loss": None, "weights_difference": None, "same_weights": None}
    head = printed(comparison(ran("single", **bare), ran("ddp", **bare)))[1]
    assert "loss" not in head
    assert "weights" not in head


def test_a_point_that_cannot_run_has_dashes_and_says_why_below():
    lines = printed(comparison(ran("ddp"), cannot("fsdp", "strategy: no.", "cluster: no.")))
    assert row(comparison(ran("ddp"), cannot("fsdp", "x")), "fsdp") == ["fsdp", *"-" * 9]
    assert lines[-1] == "fsdp cannot run: strategy: no. (and 1 more in comparison.json)"


def test_notes_stand_below():
    assert printed(comparison(notes=["single runs on one device."]))[-2:] == [
        "single runs on one device.",
        "horovod cannot run: strategy.join: has no such thing.",
    ]


def test_values_are_written_in_short():
    label = ComparedPoint(
        {
            "strategy": {"kind": "fsdp", "units": "whole", "forward_prefetch": False},
            "collectives.all_reduce.kind": "ring",
            "workload.optimizer.betas": [0.9, None],
        }
    ).label
    assert label == (
        "fsdp(units=whole, forward_prefetch=false), all_reduce: ring, betas: [0.9, none]"
    )


def test_a_bracket_in_a_value_is_no_markup():
    point = ran("ddp")
    point.set = {"workload.optimizer.betas": ["bold", "red"]}
    found = Comparison("1", {"name": "box"}, {"workload.optimizer.betas": []}, [point], [])
    assert printed(found)[3].split()[:2] == ["[bold,", "red]"]


def test_points_with_a_target_have_columns_of_it():
    point = ran("ddp")
    assert "to target" not in " ".join(printed(comparison(ran("single"), point)))
    point.bill = {"price_usd_per_h": 3.0, "price_date": "2026-05"}
    point.target = {"time_s": {"mean": 600.0}, "cost_usd": {"mean": 4.0}, "energy_kwh": None}
    found = comparison(ran("single"), point)
    said = " ".join(printed(found))
    assert "to target" in said
    assert "price: 3 USD/h a device, list price of 2026-05" in said
    assert {"10", "min", "4"} <= set(row(found, "ddp"))
    assert "-" in row(found, "single")


def test_a_step_has_its_interval_beside_it_where_one_is_known():
    point = ran("ddp")
    point.metrics = dataclasses.replace(point.metrics, interval_s=[0.08, 0.125])
    found = comparison(ran("single"), point)
    assert cells(found, "strategy")[:3] == ["strategy", "step", "90 %"]
    assert row(found, "ddp")[2] == "80.0-125"
    assert row(found, "single")[2] == "-"
    assert "90 %: the 90 % interval of the step" in printed(found)
