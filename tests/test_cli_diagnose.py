"""``python -m simdp diagnose``: a page, or JSON and nothing else."""

import gzip
import json

import pytest

from simdp.cli import run_command_line


def event(name, cat, ts, dur, **args):
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "ts": ts,
        "dur": dur,
        "pid": 0,
        "tid": 7,
        "args": args,
    }


def kineto(rank, late):
    """Two ranks of which one computes longer, in microseconds."""
    events, correlation = [], 0
    for step in range(3):
        begin = 200_000.0 * step
        events.append(event(f"ProfilerStep#{step + 1}", "user_annotation", begin, 200_000.0))
        entry = begin + 50_000 + late
        work = [
            ("gemm", begin + 10, entry - begin - 10, {}),
            ("update", begin + 160_000, 40_000, {}),
        ]
        sent = {
            "Collective name": "allreduce",
            "In msg nelems": 1_000_000,
            "Out msg nelems": 1_000_000,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
        }
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        work.append((name, entry, begin + 160_000 - entry, sent))
        for kernel, ts, dur, args in work:
            correlation += 1
            both = {"correlation": correlation}
            events.append(
                event("cudaLaunchKernel", "cuda_runtime", begin + correlation, 1.0, **both)
            )
            place = {"device": 0, "stream": 20 if args else 7}
            events.append(event(kernel, "kernel", ts, dur, **both, **place, **args))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    }


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "traces"
    made.mkdir()
    for rank, late in enumerate([0, 90_000]):
        with gzip.open(made / f"rank{rank}.json.gz", "wt") as file:
            json.dump(kineto(rank, late), file)
    return made


def test_the_page_names_the_late_rank(folder, capsys):
    assert run_command_line(["diagnose", str(folder), "--no-remedies"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("traces: 2 ranks, step 200 ms")
    assert "verdict: straggler 45.0 % (rank 1)" in out


def test_json_has_the_fields_of_the_contract_and_is_written_too(folder, tmp_path, capsys):
    out = tmp_path / "new" / "diagnosis.json"
    arguments = ["diagnose", str(folder), "--json", "--no-remedies", "--out", str(out)]
    assert run_command_line(arguments) == 0
    printed = capsys.readouterr().out
    document = json.loads(printed)
    assert document["step_time_s"] == pytest.approx(0.2)
    assert document["verdict"][0]["cause"] == "straggler"
    assert document["verdict"][0]["ranks"] == [1]
    assert document["buckets"] == [{"num_elements": 1_000_000, "dtype": "float32"}]
    assert out.read_text() == printed


def test_the_page_is_written_where_it_is_asked_for(folder, tmp_path, capsys):
    file = tmp_path / "new" / "slow.html"
    assert run_command_line(["diagnose", str(folder), "--no-remedies", "--html", str(file)]) == 0
    text = file.read_text()
    assert "<h1>traces: why its step takes so long</h1>" in text
    assert "python -m simdp diagnose" in text
    assert [path.name for path in file.parent.iterdir()] == ["slow.html"]


def test_traces_and_text_are_one_diagnosis(folder, tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("a:1:2 [0] x.cc:1 NCCL WARN Call to shm_open failed : No space left on device\n")
    assert run_command_line(["diagnose", str(folder), str(log), "--no-remedies"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 files: 2 ranks, step 200 ms")
    assert "  and text: train.log (NCCL_DEBUG=INFO logs and nccl-tests output)" in out
    assert "verdict: shared_memory_full, certain: " in out
    assert "also: straggler 45.0 % (rank 1)" in out


def test_traces_may_be_given_one_by_one(folder, capsys):
    files = [str(file) for file in sorted(folder.iterdir())]
    assert run_command_line(["diagnose", *files, "--json", "--no-remedies"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"][0]["ranks"] == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere"),
        (["TRACES", "--machine", "dgx-h10"], "--machine: dgx-h10: there is no such file"),
        (["TRACES", "--model", "gpt2"], "--model: is compared with sizes in logs, and there is"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, words, folder, capsys):
    arguments = [str(folder) if one == "TRACES" else one for one in arguments]
    assert run_command_line(["diagnose", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_dumps_of_the_flight_recorder_are_told_apart(tmp_path, capsys):
    for rank in range(2):
        entries = [
            {
                "record_id": i,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": i,
                "p2p_seq_id": 0,
                "op_id": i,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": i,
                "input_sizes": [[100 + i]],
                "output_sizes": [[100 + i]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "completed",
                "retired": True,
                "timeout_ms": 600000,
                "is_p2p": False,
                "frames": [],
            }
            for i in range(1, 4 - rank)
        ]
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        dump = {"version": "2.5", "pg_config": config, "pg_status": {}, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump))
    assert run_command_line(["diagnose", str(tmp_path), "--machine", "dgx-h100"]) == 2
    assert capsys.readouterr().err == (
        "--machine: is for traces and logs, and there is none; leave it out.\n"
    )
    assert run_command_line(["diagnose", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step_time_s"] is None
    assert document["verdict"][0]["cause"] == "desynchronised"
    assert document["verdict"][0]["ranks"] == [1]
