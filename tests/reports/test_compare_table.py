"""Tables of comparisons: a row per point, and what explains the rows below."""

import io

from compared import cannot, comparison, ran
from rich.console import Console

from simdp.reports.compare_table import table
from simdp.results.comparison import ComparedPoint, Comparison


def printed(found):
    stream = io.StringIO()
    Console(file=stream, width=80).print(table(found), soft_wrap=True)
    return [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]


def row(found, label):
    return next(line.split() for line in printed(found) if line.split()[0] == label)


def test_the_columns_are_what_tells_strategies_apart():
    lines = printed(comparison())
    assert lines[0] == "box: strategy compared, times in ms"
    assert lines[1].split("  ")[0].strip() == "strategy"
    for head in ("ranks", "step", "samples/s", "speed-up", "exposed", "memory", "fits", "sent"):
        assert head in lines[1]
    assert lines[1].endswith("last loss  same weights")


def test_a_row_has_the_values_of_its_point():
    wanted = "single 1 470 544.7 0 60 GB no 6 kB 1.25 first"
    assert row(comparison(), "single") == wanted.split()
    wanted = "ddp 8 100 2560 20 30 GB yes 6 kB 1.25 yes (3e-08)"
    assert row(comparison(), "ddp") == wanted.split()


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
    ends = {line.split()[0]: line.split("1.25  ")[-1] for line in printed(found)[3:9]}
    assert ends == {
        "single": "first",
        "ddp": "yes",
        "apex": "no (2e-02)",
        "fsdp": "no",
        "zero1": "-",
        "data_parallel": "yes, ranks differ",
    }


def test_models_that_differ_in_few_parameters_name_them_once():
    few = {"weights_difference": 2.0, "same_weights": False, "num_parameters": 41}
    bias = ["layer.0.key.bias", "layer.1.key.bias", "layer.2.key.bias"]
    found = comparison(
        ran("single"),
        ran("ddp", differing=bias, **few),
        ran("fsdp", differing=bias, **few),
        ran("apex", differing=[f"p{i}" for i in range(30)], **few),
    )
    lines = printed(found)
    ends = [line.split("1.25  ")[-1] for line in lines[4:7]]
    assert ends == ["all but 3 of 41 (2e+00)"] * 2 + ["no (2e+00)"]
    (said,) = [line for line in lines if "key.bias" in line]
    assert said == (
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
    assert row(comparison(ran("ddp"), cannot("fsdp", "x")), "fsdp") == ["fsdp", *"-" * 8]
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
