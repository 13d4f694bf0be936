"""A trace per rank: torch's names and fields, and the run's own instants behind them."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from small_scenario import CLUSTER

import simdp
from simdp.errors import ScenarioError
from simdp.reports.rank_traces import MAX_RANKS, chosen_ranks, save_traces
from simdp.results.metrics import Metrics
from simdp.results.result import Result
from simdp.results.trace import COMPUTE_LANE, TraceBuilder
from simdp.scenario import checked
from simdp.traces import read_trace

LAYERS = {"model": {"kind": "mlp", "widths": [64, 512, 512, 8]}, "microbatch": 64, "steps": 3}


def run(cluster=None, strategy="ddp", **workload):
    scenario = {
        "name": "traced",
        "cluster": {**CLUSTER, **(cluster or {})},
        "workload": {k: v for k, v in {**LAYERS, **workload}.items() if v is not None},
        "strategy": strategy,
        "collectives": {"cost": "links"},
        "numerics": False,
    }
    return simdp.simulate(checked(scenario, Path()))


def read(path):
    return json.loads(gzip.decompress(Path(path).read_bytes()))


def of(trace, category):
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


def named(trace, name):
    return [event for event in trace["traceEvents"] if event.get("name") == name]


@pytest.fixture(scope="module")
def result():
    return run({"stragglers": [{"kind": "slow_rank", "rank": 2, "factor": 3.0}]})


@pytest.fixture(scope="module")
def traces(result, tmp_path_factory):
    return [read(path) for path in result.save_traces(tmp_path_factory.mktemp("traces"))]


def test_there_is_a_file_per_rank_with_torchs_ending_and_nothing_else(result, tmp_path):
    paths = save_traces(result, tmp_path / "traces")
    assert [path.name for path in paths] == [f"rank{k}.1.pt.trace.json.gz" for k in range(4)]
    assert sorted((tmp_path / "traces").iterdir()) == sorted(paths)


def test_files_of_ranks_of_an_earlier_run_go_and_others_stay(result, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    save_traces(result, tmp_path)
    (path,) = save_traces(result, tmp_path, [1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", path.name]


def test_the_same_run_gives_the_same_bytes(result, tmp_path):
    (one,) = save_traces(result, tmp_path / "one", [3])
    (two,) = save_traces(result, tmp_path / "two", [3])
    assert one.read_bytes() == two.read_bytes()


def test_the_rank_stands_on_a_line_by_itself_with_a_blank_before_its_number(result, tmp_path):
    (path,) = save_traces(result, tmp_path, [3])
    text = gzip.decompress(path.read_bytes()).decode()
    assert text.index('"rank": 3') < text.index('"traceEvents"')


def test_the_head_says_who_this_is(traces):
    said = traces[1]["distributedInfo"]
    assert (said["rank"], said["world_size"], said["backend"]) == (1, 4, "nccl")
    (group,) = said["pg_config"]
    assert (group["pg_name"], group["pg_desc"], group["pg_size"]) == ("0", "default_pg", 4)
    assert group["ranks"] == [0, 1, 2, 3]
    assert traces[1]["deviceProperties"][0]["name"] == "a100-sxm4-80gb"
    assert (traces[1]["schemaVersion"], traces[1]["baseTimeNanoseconds"]) == (1, 0)


def test_steps_count_from_1_and_take_what_the_run_says(result, traces):
    for rank, trace in enumerate(traces):
        steps = [e for e in of(trace, "user_annotation") if e["name"].startswith("ProfilerStep")]
        assert [e["name"] for e in steps] == [f"ProfilerStep#{k}" for k in (1, 2, 3)]
        ends = [(e["ts"] + e["dur"]) * 1e-6 for e in steps]
        assert ends == pytest.approx(result.step_ends[rank, 1:], abs=2e-9)


def test_every_kernel_has_a_launch_of_its_own_that_is_over_when_it_starts(traces):
    for trace in traces:
        launches = {e["args"]["correlation"]: e for e in of(trace, "cuda_runtime")}
        kernels = of(trace, "kernel") + of(trace, "gpu_memcpy")
        assert len(launches) == len(kernels) > 30
        for event in kernels:
            call = launches[event["args"]["correlation"]]
            assert call["ts"] + call["dur"] <= event["ts"] + 1e-6
            assert event["args"]["stream"] == event["tid"]


def test_launches_are_called_one_after_the_other(traces):
    for trace in traces:
        calls = of(trace, "cuda_runtime")
        for one, other in pairwise(calls):
            assert other["ts"] >= one["ts"] + one["dur"] - 1e-6


def test_kernels_of_a_stream_never_overlap(traces):
    for trace in traces:
        for stream in (7, 8):
            events = sorted(
                (e for e in of(trace, "kernel") if e["tid"] == stream), key=lambda e: e["ts"]
            )
            for one, other in pairwise(events):
                assert other["ts"] >= one["ts"] + one["dur"] - 2e-6


def test_a_device_waits_for_a_launch_before_each_kernel_and_the_rest_is_busy(result, traces):
    launch, rank = 5e-6, 0  # of a layer's kernels; the optimizer's bytes have none
    spans = [s for s in result.trace.spans if s.rank == rank]
    work = sum(s.end - s.start for s in spans if s.activity in ("forward", "backward", "update"))
    mine = [e for e in of(traces[rank], "kernel") if e["tid"] == 7]
    busy = sum(e["dur"] for e in mine) * 1e-6
    launches = [e for e in mine if "layer" in e["args"]]
    assert len(launches) == 3 * (6 + 11)
    assert busy == pytest.approx(work - launch * len(launches), rel=1e-4)


def test_a_slow_ranks_launches_take_longer_too(traces):
    fast, slow = (
        next(e for e in of(trace, "cuda_runtime") if e["name"] == "cudaLaunchKernel")
        for trace in (traces[0], traces[2])
    )
    assert slow["dur"] == pytest.approx(3 * fast["dur"], rel=1e-3)


def test_a_collective_lasts_from_when_its_rank_comes_to_when_all_are_done(result, traces):
    kernels = [[e for e in of(t, "kernel") if e["tid"] == 8] for t in traces]
    ends = np.array([[e["ts"] + e["dur"] for e in mine[1:]] for mine in kernels])
    assert np.ptp(ends, axis=0).max() < 2e-3
    first = [mine[1] for mine in kernels]  # behind the setup's broadcast
    assert max(first, key=lambda e: e["ts"])["args"] == kernels[2][1]["args"]
    waits = [s for s in result.trace.spans if s.activity == "wait" and s.step == 0 and s.rank == 0]
    assert first[0]["ts"] * 1e-6 == pytest.approx(waits[0].start, abs=1e-9)


def test_a_collective_says_what_nccl_and_torch_say_of_it(traces):
    (args,) = {
        json.dumps({k: v for k, v in e["args"].items() if k not in ("correlation", "External id")})
        for e in of(traces[3], "kernel")
        if "AllReduce" in e["name"] and e["args"]["Seq"] == 2
    }
    assert json.loads(args) == {
        "Collective name": "allreduce",
        "In msg nelems": 300_040,
        "Out msg nelems": 300_040,
        "Group size": 4,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3]",
        "Seq": 2,
        "what": "all_reduce bucket 0",
        "device": 3,
        "stream": 8,
    }
    names = {e["name"] for e in of(traces[3], "kernel") if e["tid"] == 8}
    assert names == {
        "ncclDevKernel_Broadcast_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)",
    }
    assert len(named(traces[3], "record_param_comms")) == 6
    buckets = named(traces[3], "nccl:all_reduce")
    assert [e["cat"] for e in buckets] == ["user_annotation"] * 5
    assert {e["tid"] for e in buckets} == {named(traces[3], "AddmmBackward0")[0]["tid"]}


def test_threads_of_forward_and_backward_are_named(traces):
    for trace in traces:
        names = {e["tid"]: e["args"]["name"] for e in named(trace, "thread_name")}
        assert "autograd" in names[named(trace, "AddmmBackward0")[0]["tid"]]
        assert "python" in names[named(trace, "aten::linear")[0]["tid"]]


@for_each(
    ("chosen", "name"),
    [
        ({"collectives.all_reduce": "double_binary_tree"}, "AllReduce_Sum_f32_TREE_SIMPLE("),
        (
            {"collectives.all_reduce": "halving_doubling"},
            "AllReduce_Sum_f32_HALVING_DOUBLING_SIMPLE(",
        ),
        ({"collectives.cost": "nccl"}, "AllReduce_Sum_f32_RING_LL("),
        ({"strategy": {"kind": "ddp", "comm_hook": "bf16"}}, "AllReduce_Sum_bf16_RING_SIMPLE("),
        ({"strategy": "fsdp"}, "AllGather_RING_SIMPLE("),
        ({"strategy": "fsdp"}, "ReduceScatter_Sum_f32_RING_SIMPLE("),
        (
            {"workload.precision": {"kind": "mixed", "dtype": "float16"}},
            "AllReduce_Sum_f16_RING_SIMPLE(",
        ),
    ],
)
def test_a_kernel_is_named_after_the_algorithm_and_dtype_that_the_run_used(tmp_path, chosen, name):
    scenario = {"name": "n", "cluster": CLUSTER, "workload": LAYERS, "numerics": False}
    scenario["collectives"] = {"cost": "links"}
    for key, value in chosen.items():
        place = scenario
        *path, last = key.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    (path,) = simdp.simulate(checked(scenario, Path())).save_traces(tmp_path, [0])
    found = {e["name"] for e in of(read(path), "kernel")}
    assert any(f"ncclDevKernel_{name}" in one for one in found), found


def test_operators_nodes_and_annotations_are_torchs(traces):
    trace = traces[0]
    ops = {e["name"] for e in of(trace, "cpu_op")}
    assert {"aten::linear", "aten::relu", "aten::mse_loss", "AddmmBackward0"} <= ops
    assert "autograd::engine::evaluate_function: ReluBackward0" in ops
    assert len(named(trace, "DistributedDataParallel.forward")) == 3
    assert len(named(trace, "Optimizer.step#SGD.step")) == 3
    (forward, *_), (op, *_) = named(trace, "DistributedDataParallel.forward"), of(trace, "cpu_op")
    assert forward["tid"] == named(trace, "aten::linear")[0]["tid"]
    assert forward["tid"] != named(trace, "AddmmBackward0")[0]["tid"]
    assert op["args"]["External id"] == 1


def test_a_kernel_is_joined_to_its_operator_by_its_external_id(traces):
    ops = {e["args"]["External id"]: e for e in of(traces[0], "cpu_op")}
    for kernel in (e for e in of(traces[0], "kernel") if "layer" in e["args"]):
        assert ops[kernel["args"]["External id"]]["args"]["layer"] == kernel["args"]["layer"]


def test_what_waits_for_a_collective_was_launched_before_it_ended(traces):
    trace = traces[0]
    update = named(trace, "optimizer_update")[0]
    calls = {e["args"]["correlation"]: e for e in of(trace, "cuda_runtime")}
    last = max(
        e["ts"] + e["dur"] for e in of(trace, "kernel") if e["tid"] == 8 and e["ts"] < update["ts"]
    )
    assert calls[update["args"]["correlation"]]["ts"] < last - 50


def test_a_host_that_runs_ahead_launches_back_to_back(tmp_path):
    result = run(host={"async_launch": True}, microbatch=2**14)
    (path,) = result.save_traces(tmp_path, [0])
    trace = read(path)
    kernels = [e for e in of(trace, "kernel") if "layer" in e["args"]]
    calls = {e["args"]["correlation"]: e for e in of(trace, "cuda_runtime")}
    late = [k["ts"] - calls[k["args"]["correlation"]]["ts"] for k in kernels[:6]]
    assert late[0] == pytest.approx(5.0, abs=1e-3)
    assert max(late) > 20
    assert all(c["dur"] <= 5.001 for c in calls.values())


def test_one_launch_starts_the_kernels_of_a_graph(tmp_path):
    (path,) = run(cuda_graphs=True, steps=2).save_traces(tmp_path, [0])
    trace = read(path)
    graphs = named(trace, "cudaGraphLaunch")
    assert len(graphs) == 2
    kernels = [e for e in of(trace, "kernel") if e["tid"] == 7]
    assert {k["args"]["correlation"] for k in kernels} == {g["args"]["correlation"] for g in graphs}


def test_waiting_for_samples_is_the_loaders_and_their_copy_a_memcpy(tmp_path):
    loader = {"per_sample": "1 ms", "sample_size": "1 MB", "link": "pcie4-x16", "workers": 2}
    (path,) = run(input={**loader, "pinned": False}).save_traces(tmp_path, [0])
    trace = read(path)
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert named(trace, name)[0]["dur"] == pytest.approx(64e3, rel=0.05)
    assert len([e for e in of(trace, "gpu_memcpy") if "HtoD" in e["name"]]) == 3


def test_groups_of_a_strategy_have_numbers_names_and_ranks(tmp_path):
    cluster = {"world_size": 4, "devices_per_node": 2, "inter_node": {"link": "ib-hdr"}}
    result = run({**cluster, "link": "nvlink3"}, {"kind": "hsdp"})
    (path,) = result.save_traces(tmp_path, [3])
    trace = read(path)
    config = {g["pg_desc"]: g for g in trace["distributedInfo"]["pg_config"]}
    assert config["shard"]["ranks"] == [2, 3]
    assert config["replicate"]["ranks"] == [1, 3]
    said = {
        (e["args"]["Process Group Description"], e["args"]["Process Group Ranks"], e["tid"])
        for e in of(trace, "kernel")
        if e["tid"] > 7 and "Process Group Name" in e["args"]
    }
    assert {("shard", "[2, 3]", 8), ("replicate", "[1, 3]", 9)} <= said


def test_copies_between_device_and_host_say_their_direction(tmp_path):
    result = run(
        strategy={"kind": "zero2", "communication": "deepspeed", "offload_optimizer": "cpu"},
        optimizer="adamw",
    )
    (path,) = result.save_traces(tmp_path, [0])
    trace = read(path)
    (copy, *_) = (e for e in of(trace, "gpu_memcpy") if "HtoD" in e["name"])
    rate = copy["args"]["bytes"] / copy["dur"] * 1e-3
    assert copy["args"]["memory bandwidth (GB/s)"] == pytest.approx(rate, rel=1e-3)
    steps = named(trace, "Optimizer.step#AdamW.step")
    assert len(steps) == 3
    assert not named(trace, "optimizer_update")  # the host updates


def test_one_process_copies_between_its_devices_and_sums_with_nccl(tmp_path):
    result = run(strategy="data_parallel", microbatch=None, global_batch=256)
    (path,) = result.save_traces(tmp_path, [0])
    trace = read(path)
    assert {e["name"] for e in of(trace, "gpu_memcpy")} == {"Memcpy PtoP (Device -> Device)"}
    names = {e["name"].split("_")[1] for e in of(trace, "kernel") if e["tid"] == 8}
    assert names == {"Broadcast", "Reduce"}
    assert len(named(trace, "DataParallel.forward")) == 3


def test_many_ranks_are_listed_with_dots(tmp_path):
    result = run({"world_size": 40}, steps=1)
    (path,) = result.save_traces(tmp_path, [39])
    listed = {e["args"].get("Process Group Ranks") for e in of(read(path), "kernel")} - {None}
    assert listed == {f"[{', '.join(map(str, range(32)))}, ...]"}


def test_work_of_which_nobody_knows_the_kernels_is_one(tmp_path):
    builder = TraceBuilder()
    builder.add_one(0, 0, COMPUTE_LANE, "forward", "x", 0.0, 1e-3)
    scenario = {"name": "by hand", "seed": 3, "cluster": {"world_size": 1}}
    (path,) = save_traces(Result(scenario, {}, Metrics(), builder.build()), tmp_path)
    (kernel,) = of(read(path), "kernel")
    assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("forward", 0.0, 1000.0)


def test_a_trace_says_on_which_machine_of_the_catalogue_it_ran(result, tmp_path):
    scenario = {"cluster": {"machine": "dgx-a100", "world_size": 2}, "workload": LAYERS}
    traced = simdp.simulate(checked({**scenario, "numerics": False}, Path()))
    (path,) = traced.save_traces(tmp_path, [1])
    assert read_trace(path).machine == "dgx-a100"
    (path,) = result.save_traces(tmp_path, [1])
    assert read_trace(path).machine is None


def test_a_loaded_result_has_no_traces(result, tmp_path):
    with pytest.raises(ScenarioError, match="simulate it again"):
        save_traces(Result(result.scenario, {}, Metrics()), tmp_path)


@for_each(
    ("world_size", "ranks", "reason"),
    [
        (4, [1, 4], "there is no rank 4; the run has ranks 0 to 3"),
        (4, [], "no rank is named; the run has ranks 0 to 3"),
        (MAX_RANKS + 1, None, "choose some of them: --ranks 0-63"),
    ],
)
def test_ranks_that_cannot_be_written_are_refused(world_size, ranks, reason):
    with pytest.raises(ScenarioError, match=reason):
        chosen_ranks(world_size, ranks)


def test_any_of_many_ranks_may_be_named():
    assert chosen_ranks(2**14, [5, 3, 5]) == [3, 5]
