"""``python -m simdp diagnose``: a page, or JSON and nothing else."""

import gzip
import json
import os
from pathlib import Path

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


@pytest.fixture
def denied(monkeypatch):
    """Refuse to open files whose names begin with ``denied``, as for lack of a permission."""
    opened = os.open

    def open_some(path, *more, **options):
        if Path(path).name.startswith("denied"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more, **options)

    monkeypatch.setattr("simdp.files.documents.os.open", open_some)


def test_what_cannot_be_read_is_a_remark_and_the_rest_is_answered(
    folder, tmp_path, denied, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (folder / "denied.json").write_text("{}")
    Path("poem.txt").write_text("roses are red")
    Path("piped").write_text("violets are blue")
    with Path("piped").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        paths = ["traces", "gone.log", "denied.log", "poem.txt", "-"]
        assert run_command_line(["diagnose", *paths, "--json", "--no-remedies"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"][0]["ranks"] == [1]
    starts = [
        "Not read: traces/denied.json: cannot be read: Permission denied.",
        "Not read: gone.log: there is no such file.",
        "Not read: denied.log: cannot be read: Permission denied.",
        "Not read: poem.txt: holds nothing that is read here; allowed are traces of ",
        "Not read: standard input: holds nothing that is read here; allowed are traces of ",
    ]
    lines = found["remarks"][-len(starts) :]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


def test_where_nothing_can_be_read_each_file_has_a_line(folder, denied, capsys):
    for file in folder.iterdir():
        file.rename(folder / f"denied-{file.name}")
    assert run_command_line(["diagnose", str(folder), str(folder / "gone")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("/")[2] for line in lines] == [
        "denied-rank0.json.gz: cannot be read: Permission denied.",
        "denied-rank1.json.gz: cannot be read: Permission denied.",
        "gone: there is no such file.",
    ]


@pytest.mark.parametrize("command", ["diagnose", "replay"])
def test_a_folder_that_vanishes_or_is_closed_is_a_line(command, folder, capsys, monkeypatch):
    def gone(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "iterdir", gone)
    assert run_command_line([command, str(folder)]) == 2
    line = f"{folder}: cannot be read: No such file or directory.\n"
    assert capsys.readouterr().err == line

    is_dir = Path.is_dir

    def closed(path):
        if path == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", closed)
    assert run_command_line([command, str(folder)]) == 2
    assert capsys.readouterr().err == f"{folder}: cannot be read: Permission denied.\n"


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
