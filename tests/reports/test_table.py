"""Tables: what they say is what the metrics say, in units that suit."""

import copy
import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from for_each import for_each
from rich.console import Console

import simdp
from simdp.reports import table
from simdp.reports.wide_table import kinds
from simdp.results.memory import MEMORY_PARTS, Holding
from simdp.results.metrics import LABELS, PART_TITLES, STEP_HEADS, Metrics, per_rank
from simdp.results.result import Result, Study

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def text(renderable, width=120):
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(renderable)
    return stream.getvalue()


def rows(renderable, begins):
    """Cells of the rows whose first cell is one of these."""
    lines = [line.replace("│", " ").split() for line in text(renderable).splitlines()]
    return [cells for cells in lines if cells and cells[0] in begins]


def study(name, **overrides):
    return simdp.sweep(simdp.load_scenario(SCENARIOS / f"{name}.yaml", overrides))


@pytest.fixture(scope="module")
def one():
    """One run with numerics and a straggler."""
    return study("8gpu_ring", **{"workload.steps": 3, "workload.model.widths": [512, 256, 10]})


@pytest.fixture(scope="module")
def many():
    """A sweep over two keys, one of them the world size."""
    return study(
        "ring_vs_tree",
        **{"sweep": {"collectives.all_reduce": ["ring", "tree"], "cluster.world_size": [1, 4]}},
    )


def made_up(**metrics):
    """A study of one run with these metrics, all others as dull as can be."""
    dull = dict.fromkeys(LABELS, 0.0) | {
        "interval_s": None,
        "without_stragglers_s": None,
        "tokens_per_s": None,
        "mfu": None,
        "bytes_sent_per_rank": [0],
        "bucket_bytes": [],
        "memory_bytes": {},
        "peak_memory_bytes": [0],
        "fits_memory": True,
        "loss": None,
        "loss_scale": None,
        "lr": [0.1],
        "skipped_steps": None,
    }
    n = len(metrics.get("peak_memory_bytes", [0]))
    cluster = {"world_size": n, "device": "t4-16gb", "topology": "switch", "link": "pcie3-x16"}
    scenario = {"name": "dull", "cluster": cluster}
    return Study("0.1.0", scenario, [Result(scenario, {}, Metrics.of(dull | metrics))])


def test_what_only_developers_need_is_shown_with_verbose(one):
    m = one.points[0].metrics
    for said, shown in (
        (text(table.summary(one)), False),
        (text(table.summary(one, verbose=True)), True),
    ):
        assert (table.seconds(m["simulated_s"]) in said) is shown
        assert ("simulated:" in said) is shown
        assert ("clock:" in said and "event fabric: no link is shared, only" in said) is shown


# Numbers


@for_each(
    ("value", "written"),
    [
        (None, "-"),
        (0.0, "0"),
        (1.5, "1.5 s"),
        (0.25, "250 ms"),
        (698.6e-6, "698.6 us"),
        (2e-9, "2 ns"),
        (3e-12, "0.003 ns"),
        (123.456, "123.5 s"),
    ],
)
def test_a_time_is_written_in_the_unit_that_suits_it(value, written):
    assert table.seconds(value) == written


@for_each(
    ("value", "written"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (999, "999 B"),
        (1240, "1.24 kB"),
        (25e6, "25 MB"),
        (80e9, "80 GB"),
    ],
)
def test_a_size_is_written_in_the_unit_that_suits_it(value, written):
    assert table.nbytes(value) == written


# One run


def test_the_summary_shows_each_part_of_a_step(one):
    m = one.points[0].metrics
    shown = text(table.summary(one))
    assert "8gpu_ring: 8 ranks" in shown
    for key, name in {"step_time_s": "step time", **PART_TITLES}.items():
        (line,) = [line for line in shown.splitlines() if f" {name} " in line and "│" in line]
        assert table.seconds(m[key]) in line
        if key != "step_time_s":
            assert f"{100 * m[key] / m['step_time_s']:.1f} %" in line


def test_the_summary_shows_what_was_learned_and_sent(one):
    m = one.points[0].metrics
    shown = text(table.summary(one))
    for part in (
        f"{m['throughput_samples_per_s']:,.0f} samples/s",
        f"{m['loss'][0]:.4g} to {m['loss'][-1]:.4g}",
        table.nbytes(m["bytes_sent_per_rank"][0]),
        table.nbytes(m["peak_memory_bytes"][0]),
        f"{len(m['bucket_bytes'])} ({', '.join(map(table.nbytes, m['bucket_bytes']))})",
    ):
        assert part in shown
    (identical,) = rows(table.summary(one), ["replicas"])
    assert identical == ["replicas", "identical:", "yes"]


def test_money_is_told_where_somebody_asks_for_it():
    """The catalogue has a price of the device, but the scenario does not speak of money."""
    short = {"sweep": None, "numerics": False}
    plain = study("einsum_2gpu", **short, **{"cluster.device": "a100-sxm4-80gb"})
    assert "a step costs" not in text(table.summary(plain))
    said = text(table.summary(plain, verbose=True))
    assert "a step costs" in said
    assert "list price of 2026-05" in said
    priced = study("einsum_2gpu", **short, **{"cluster.price": "2 USD/h"})
    assert "2 USD/h a device" in text(table.summary(priced))


def test_a_model_that_does_not_fit_is_named():
    assert "does not fit" in text(table.summary(made_up(fits_memory=False)))
    assert "does not fit" not in text(table.summary(made_up()))


def test_a_run_in_which_nothing_happens_has_dashes_and_no_division_by_zero():
    shown = text(table.summary(made_up(throughput_samples_per_s=None, utilization=None)))
    assert shown.splitlines()[0].strip() == "dull: 1 rank"
    (line,) = rows(table.summary(made_up(throughput_samples_per_s=None)), ["throughput:"])
    assert line == ["throughput:", "-"]
    assert "nan" not in shown


@for_each(
    ("metrics", "said"),
    [
        ({"skipped_steps": []}, ["skipped steps: none"]),
        (
            {"skipped_steps": [], "loss_scale": [65536.0] * 2},
            ["skipped steps: none", "loss scale: 65,536"],
        ),
        (
            {"skipped_steps": [3], "loss_scale": [8.0, 16.0, 16.0, 8.0]},
            ["skipped steps: 3", "loss scale: 8; 16 from step 2; 8 from 4"],
        ),
        (
            {"skipped_steps": list(range(1, 99)), "loss_scale": [2.0**-k for k in range(98)]},
            [
                "skipped steps: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, ...",
                "loss scale: 1; 0.5 from step 2; 0.25 from 3; 0.125 from 4; ...",
            ],
        ),
    ],
)
@for_each("loss", [None, [0.5, 0.25]])
def test_skipped_steps_are_told_with_the_way_of_the_loss_scale(metrics, said, loss):
    lines = text(table.summary(made_up(loss=loss, **metrics)), 80).splitlines()
    found = [" ".join(line.split()) for line in lines if line.startswith(("skipped", "loss scale"))]
    assert found == said


def test_without_a_loss_scale_no_steps_are_told_to_be_skipped():
    assert "skipped" not in text(table.summary(made_up()))


def test_the_summary_tells_how_much_communication_is_hidden():
    shown = text(table.summary(made_up(comm_s=4e-3, exposed_comm_s=1e-3)))
    (line,) = [line for line in shown.splitlines() if "communication in all" in line]
    assert "4 ms" in line
    assert "75.0 % hidden" in line
    assert "hidden" not in text(table.summary(made_up()))


def test_equal_buckets_are_told_in_one_and_a_long_list_is_cut():
    def told(*sizes):
        (line,) = rows(table.summary(made_up(bucket_bytes=list(sizes))), ["buckets:"])
        return " ".join(line[1:])

    assert told(500_000, 4_000_000) == "2 (500 kB, 4 MB)"
    assert told(2_370_000, *[28_400_000] * 12, 95_300_000) == "14 (2.37 MB, 12 x 28.4 MB, 95.3 MB)"
    assert told(*range(1000, 30_000, 1000)).endswith("6 kB, 7 kB, ...)")
    assert told() == "none"


def test_a_loss_that_is_no_number_is_a_dash_in_a_loaded_result():
    assert "0.5 to -" in text(table.summary(made_up(loss=[0.5, None])))


# A sweep


def test_a_sweep_has_a_row_for_each_point_in_its_order(many):
    scale = 1e-3 if "time in ms" in text(table.summary(many)) else 1e-6
    found = rows(table.summary(many), ["ring", "tree"])
    assert [cells[:2] for cells in found] == [
        ["ring", "1"],
        ["ring", "4"],
        ["tree", "1"],
        ["tree", "4"],
    ]
    for cells, point in zip(found, many.points, strict=True):
        m = point.metrics
        assert cells[2] == f"{m['step_time_s'] / scale:.4g}"
        assert cells[3] == f"{m['compute_s'] / scale:.4g}"
        assert cells[-3:-1] == [f"{100 * m['scaling_efficiency']:.1f}", "%"]
        first = many.points[0].metrics["throughput_samples_per_s"]
        assert cells[-1].rstrip("*") == f"{m['throughput_samples_per_s'] / first:.3g}x"


def test_columns_in_which_nothing_happens_are_left_out(many):
    alone = Study(many.version, many.scenario, many.points[:1])
    assert "wait" not in text(table.summary(alone))
    head = text(table.summary(many)).splitlines()
    (line,) = [line for line in head if " world_size " in line and "step" in line]
    assert line.split() == [
        "all_reduce",
        "world_size",
        "step",
        "compute",
        "update",
        "exposed",
        "wait",
        "eff.",
        "speed-up",
    ]


def test_a_sweep_over_options_shows_their_values():
    kinds = [{"kind": "ddp", "overlap": False}, "ddp"]
    found = rows(
        table.summary(study("naive_vs_overlap", sweep={"strategy": kinds})),
        ["ddp(overlap=false)", "ddp"],
    )
    assert len(found) == 2


def test_a_sweep_whose_points_differ_in_memory_shows_it():
    """ZeRO-1 deals Adam's state out; overlap changes nothing."""
    shards = {"sweep": {"strategy.kind": ["ddp", "zero1"]}, "workload.optimizer": "adam"}
    (head,) = rows(table.summary(study("naive_vs_overlap", **shards)), ["kind"])
    assert "memory" in head
    (head,) = rows(table.summary(study("naive_vs_overlap")), ["overlap"])
    assert "memory" not in head


def made_up_sweep(keys, *points):
    """A study of points with dull metrics, given what each sets and the metrics that are not."""
    dull = made_up(step_time_s=1.0, throughput_samples_per_s=1e3, scaling_efficiency=None).points[0]
    scenario = {"name": "dull", "sweep": dict.fromkeys(keys), "cluster": {"world_size": 1}}
    made = [
        Result(scenario, dict(zip(keys, chosen, strict=True)), replace(dull.metrics, **metrics))
        for chosen, metrics in points
    ]
    return Study("0.1.0", scenario, made)


def heads(study):
    """Heads of the columns of a sweep."""
    lines = text(table.summary(study), 80).splitlines()
    return next(head for head, rule in pairwise(lines) if "──" in rule).split()


def test_a_sweep_tells_the_last_loss_and_counts_skipped_steps():
    study = made_up_sweep(
        ["a.lr"],
        ([0.1], {"loss": [2.0, 0.5], "skipped_steps": [1]}),
        ([1e9], {"loss": [2.0, None], "skipped_steps": []}),
    )
    assert heads(study) == ["lr", "step", "samples/s", "last", "loss", "skipped", "speed-up"]
    assert rows(table.summary(study), ["0.1", "1e+09"]) == [
        ["0.1", "1.000", "1", "k", "0.5", "1", "1x*"],
        ["1e+09", "1.000", "1", "k", "-", "0", "1x"],
    ]


def test_what_is_less_than_a_thousandth_of_a_step_has_no_column():
    study = made_up_sweep(["a.n"], ([1], {"update_s": 9e-4, "compute_s": 0.5, "wait_s": 2e-3}))
    assert heads(study) == ["n", "step", "compute", "wait", "samples/s", "speed-up"]


def test_a_wide_sweep_does_without_what_it_can_spare():
    busy = dict.fromkeys(("compute_s", "update_s", "exposed_comm_s", "wait_s"), 0.2)
    busy |= {"loss": [1.0], "scaling_efficiency": 1.0}
    keys = ["cluster.world_size", "workload.sync_batchnorm"]
    study = made_up_sweep(keys, ([1, False], busy), ([1024, True], busy))
    wanted = ["step", "compute", "exposed", "eff.", "last", "loss", "speed-up"]
    assert heads(study) == ["world_size", "sync_batchnorm", *wanted]
    study = made_up_sweep([*keys, "strategy.weight_by_shard"], ([1, False, True], busy))
    assert "wait" not in heads(study)
    assert "…" not in text(table.summary(study), 80)


def test_keys_that_end_alike_are_written_in_full():
    study = made_up_sweep(["workload.loss.kind", "strategy.kind"], (["mse", "ddp"], {}))
    assert heads(study)[:2] == ["workload.loss.kind", "strategy.kind"]


# Every rank


def test_every_rank_has_its_row(one):
    result = one.points[0]
    found = per_rank(result.trace, 8, 3)._asdict()
    lines = rows(table.ranks(one), [str(rank) for rank in range(8)])
    m = result.metrics
    assert len(lines) == 8
    for rank, cells in enumerate(lines):
        # All times have as many decimals as the longest, which shows four digits.
        assert 100 <= found["step_time_s"][rank] / 1e-6 < 1000
        times = [f"{found[key][rank] / 1e-6:.1f}" for key in STEP_HEADS]
        sent, loss = m["bytes_sent_per_rank"][rank], m["loss_per_rank"][-1][rank]
        assert cells == [str(rank), *times, *table.nbytes(sent).split(), f"{loss:.4g}"]


def test_the_slow_rank_stands_out_and_the_others_wait(one):
    cells = rows(table.ranks(one), [str(rank) for rank in range(8)])
    names = ["rank", *STEP_HEADS]
    compute, wait = names.index("compute_s"), names.index("wait_s")
    slow = cells.pop(3)
    assert all(float(slow[compute]) > 1.4 * float(other[compute]) for other in cells)
    assert all(float(slow[wait]) < float(other[wait]) for other in cells)


def test_the_ranks_of_a_sweep_are_those_of_its_last_point(many):
    shown = text(table.ranks(many))
    assert "every rank at tree, 4" in shown
    assert len(rows(table.ranks(many), "0123")) == 4


def test_many_ranks_are_cut_and_the_table_says_so(one, monkeypatch):
    monkeypatch.setattr(table, "MAX_RANKS", 3)
    assert len(rows(table.ranks(one), "01234567")) == 3
    assert "ranks 3 ... 7 are left out" in text(table.ranks(one))


def test_a_loaded_result_has_no_ranks_to_show(one, tmp_path):
    one.save(tmp_path / "result.json")
    loaded = Study.load(tmp_path / "result.json")
    assert text(table.ranks(loaded)).strip() == "no trace"
    assert "8gpu_ring: 8 ranks" in text(table.summary(loaded))


# All of them


def test_tables_fit_into_80_columns(one, many):
    for renderable in (table.summary(one), table.summary(many), table.ranks(one)):
        wide, narrow = text(renderable, 300).splitlines(), text(renderable, 80).splitlines()
        assert len(wide) == len(narrow)
        assert max(map(len, narrow)) <= 80
        assert "…" not in "".join(narrow)


def test_a_table_leaves_its_study_as_it_is(one):
    before, metrics = one.to_json(), copy.deepcopy(one.points[0].metrics)
    start = one.points[0].trace.start.copy()
    text(table.summary(one))
    text(table.ranks(one))
    assert one.to_json() == before
    assert one.points[0].metrics == metrics
    assert (one.points[0].trace.start == start).all()


def test_kinds_are_listed_one_a_line():
    shown = text(kinds({"colours": {"blue": "the sky", "red": "[bold]`wine`"}, "none": {}}))
    assert [line.split() for line in shown.splitlines()] == [
        ["colours", "blue", "the", "sky"],
        ["colours", "red", "[bold]wine"],
    ]


# Memory


def test_the_summary_says_what_the_peak_is_made_of():
    parts = {"parameters": 8_000_000, "gradients": 0, "activations": 3_000_000, "other": 500_000}
    said = text(table.summary(made_up(memory_bytes=parts, peak_memory_bytes=[11_500_000] * 2)))
    assert "peak memory:" in said
    assert "parameters 8 MB, activations 3 MB, the rest 500 kB" in said
    assert "gradients" not in said
    assert "by rank" not in said


def test_large_parts_have_a_name_where_there_is_a_trace_and_small_ones_are_the_rest():
    study = made_up(
        memory_bytes={"parameters": 800, "other": 205}, peak_memory_bytes=[1005], simulated_s=1.0
    )
    ranks, nothing = np.arange(1), dict.fromkeys(MEMORY_PARTS, 0)
    held = [
        Holding(ranks, 0, MEMORY_PARTS.index(part), np.zeros(1), float(nbytes))
        for part, nbytes in {**nothing, "parameters": 800, "gathered": 200, "inputs": 5}.items()
    ]
    study.points[0].trace = SimpleNamespace(memory=held)
    assert "parameters 800 B, gathered 200 B, the rest 5 B" in text(table.summary(study))
    del held[0]  # an account that is not of this peak names nothing
    study.points[0].trace = SimpleNamespace(memory=held)
    assert "parameters 800 B, the rest 205 B" in text(table.summary(study))


def test_ranks_that_keep_different_sizes_are_told_apart():
    peaks = [9_000_000, 2_000_000, 2_000_000, 3_000_000]
    said = text(table.summary(made_up(peak_memory_bytes=peaks, fits_memory=False)))
    assert "9 MB, does not fit" in said
    assert "9 MB on 0, 2 MB on 1-2, 3 MB on 3" in said
