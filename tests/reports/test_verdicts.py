"""Verdicts: what a run or a sweep loses, where, and to what."""

import dataclasses
import io
from pathlib import Path

import pytest
from for_each import for_each
from rich.console import Console

import simdp
from simdp.reports import answers, table
from simdp.reports.page.run import sections
from simdp.reports.page.sweep import verdict as of_page
from simdp.reports.sweep_table import sweep_verdict
from simdp.results.metrics import exposed_by_collective
from simdp.scenario import checked

LINK = {"alpha": "5 us", "bandwidth": "10 GB/s"}
DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "80 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "2 us",
}


def study(n=8, per_node=4, strategy="ddp", stragglers=(), sweep=None, **cluster):
    inter = {"topology": "switch", "link": {"alpha": "10 us", "bandwidth": "2 GB/s"}}
    raw = {
        "name": "tried",
        "cluster": {
            "world_size": n,
            "devices_per_node": per_node,
            "device": DEVICE,
            "topology": "ring",
            "link": LINK,
            "inter_node": inter,
            "stragglers": list(stragglers),
            **cluster,
        },
        "workload": {
            "model": {"kind": "mlp", "widths": [1024] * 4},
            "microbatch": 2048,
            "steps": 3,
        },
        "strategy": strategy,
        "collectives": {"all_reduce": "ring"} if strategy == "ddp" else {},
        "numerics": False,
        "sweep": sweep or {},
    }
    return simdp.sweep(checked(raw, Path()))


def printed(document):
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(table.summary(document))
    return " ".join(stream.getvalue().split())


def test_a_sweep_says_what_is_lost_where_and_to_what():
    found = study(sweep={"cluster.world_size": [1, 2, 4, 8]})
    lines, good = sweep_verdict(found)
    m = found.points[-1].metrics
    efficiency, exposed = m["scaling_efficiency"], m["exposed_comm_s"] / m["step_time_s"]
    assert lines[0] == (
        f"8 GPUs: {8 * efficiency:.3g}x of 8 ({100 * efficiency:.1f} %); of each step "
        f"{100 * exposed:.1f} % is exposed all_reduce between nodes."
    )
    assert not good
    fourth = found.points[2].metrics["scaling_efficiency"]
    eighth = 100 * efficiency
    assert fourth > answers.GOOD > efficiency
    assert lines[1:] == [f"Efficiency stays above 80 % up to 4, and is {eighth:.1f} % at 8."]
    assert f"verdict: {' '.join(lines)}" in printed(found)
    assert of_page(found)[0].lines == lines


def test_a_sweep_gives_the_interval_of_its_fastest_step_where_it_is_known():
    found = study(sweep={"cluster.world_size": [1, 8]})
    last = found.points[-1]
    last.metrics = dataclasses.replace(last.metrics, step_time_s=0.328, interval_s=[0.253, 0.425])
    (line, *_), _ = sweep_verdict(found)
    assert "%), a step takes 328 ms (90 %: 253 ms to 425 ms); of each step " in line


@for_each(("compute", "named"), [(1.05, True), (1.04, False)])
def test_a_sweep_names_the_growth_of_compute_per_sample_from_5_percent_on(compute, named):
    found = study(sweep={"cluster.world_size": [1, 2]})
    for one, seconds in zip(found.points, (1.0, compute), strict=True):
        n = one.world_size
        one.metrics = dataclasses.replace(
            one.metrics, compute_s=seconds, step_time_s=2.0, throughput_samples_per_s=n / 2
        )
    (line, *_), _ = sweep_verdict(found)
    assert ("compute of a sample takes 5.0 % longer than on 1" in line) == named


def test_a_sweep_whose_efficiency_is_high_says_so():
    found = study(
        sweep={"cluster.world_size": [1, 2]}, link={"alpha": "0 us", "bandwidth": "1 TB/s"}
    )
    lines, good = sweep_verdict(found)
    assert lines[-1] == "Efficiency stays above 80 % at every size."
    assert good


def test_a_sweep_over_another_key_names_its_fastest_point_and_what_it_still_loses():
    slow = {"kind": "slow_rank", "rank": 5, "factor": 2.0}
    found = study(stragglers=[slow], sweep={"cluster.stragglers.0.factor": [1.0, 2.0]})
    lines, _ = sweep_verdict(found)
    assert lines[0].startswith("The fastest of 2 points is factor 1: ")
    assert "of each step" in lines[0]
    last = found.points[-1]
    (lost,) = last.lost
    share = 100 * lost["seconds"] / last.metrics["step_time_s"]
    assert share > 10
    assert lines[1].startswith(f"The straggler rank 5 costs {share:.1f} % of a step (")
    assert lines[1].endswith(" at factor 2.")


def test_sizes_of_several_methods_name_the_method():
    sweep = {"strategy": ["ddp", "local_sgd"], "cluster.world_size": [4, 8]}
    lines, _ = sweep_verdict(study(sweep=sweep))
    assert lines[0].startswith("The fastest of 4 points is strategy ")
    assert "x of 2 from 4 GPUs" in lines[1]


@for_each(("other", "named"), [(0.02, True), (0.019, False)])
def test_a_verdict_names_parts_from_a_hundredth_of_a_step_on(other, named):
    (run,) = study().points
    run.metrics = dataclasses.replace(run.metrics, step_time_s=2.0, wait_s=0.0, other_s=other)
    (line,) = answers.of_run(run).lines
    assert ("is host, copies and input" in line) == named


def test_a_run_says_in_its_verdict_what_a_straggler_costs():
    found = study(stragglers=[{"kind": "slow_rank", "rank": 3, "factor": 1.5}])
    result = found.points[0]
    m = result.metrics
    share = 100 * (1 - m["without_stragglers_s"] / m["step_time_s"])
    lines, _ = answers.of_run(result)
    assert (
        f"{100 * m['wait_s'] / m['step_time_s']:.1f} % waits for the straggler rank 3" in lines[0]
    )
    assert lines[1].startswith(f"The straggler rank 3 costs {share:.1f} % of a step (")
    assert lines[1] in printed(found)
    assert sections(result)[0].lines[: len(lines)] == lines


@for_each(
    ("straggler", "name"),
    [
        ({"kind": "slow_node", "node": 1, "factor": 1.5}, "the slow node 1"),
        ({"kind": "lognormal", "sigma": 0.3}, "the lognormal straggler"),
        (
            {"kind": "degraded_link", "link": [1, 2], "bandwidth": 0.05},
            "the degraded link of ranks 1 and 2",
        ),
        ({"kind": "degraded_link", "node": 1, "bandwidth": 0.1}, "the degraded links of node 1"),
    ],
)
def test_stragglers_are_named_by_where_they_are(straggler, name):
    result = study(stragglers=[straggler]).points[0]
    (said,) = answers.straggler_costs(result)
    assert said.startswith(f"{name} costs ")


def test_exposed_communication_divides_by_collective():
    result = study(strategy="fsdp").points[0]
    split = exposed_by_collective(result.trace, 8, 3)
    assert {name for name, _ in split} == {"all_gather", "reduce_scatter"}
    assert sum(split.values()) == pytest.approx(result.metrics["exposed_comm_s"], rel=1e-9)
    assert list(split.values()) == sorted(split.values(), reverse=True)
    lines, _ = answers.of_run(result)
    assert "% is exposed all_gather between nodes" in lines[0]
    assert "% is exposed reduce_scatter between nodes" in lines[0]


def test_a_result_without_a_trace_has_communication_in_one():
    result = study().points[0]
    result.trace = None
    assert "% is exposed communication" in answers.of_run(result).lines[0]


def test_the_summary_and_the_page_say_where_the_mfu_goes():
    found = study()
    result = found.points[0]
    said = printed(found)
    assert "where the MFU goes: of a step: " in said
    for words in ("matrix products", "(at 50.0 % of the peak)", "exposed comm"):
        assert words in said
    (section,) = [one for one in sections(result) if one.title == "Where the MFU goes"]
    total = sum(row[1].value for row in section.rows)
    assert total == pytest.approx(1.0)
    assert section.rows[0][0] == "matrix products"
