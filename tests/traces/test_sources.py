import gzip
import io
import json
import tarfile

import numpy as np
import pytest
from for_each import for_each
from kineto import document, kernel, one_step, put

from simdp.errors import ScenarioError
from simdp.traces import kind_of, read_traces
from simdp.traces.sources import MAX_FILES


def folder_of(path, texts):
    path.mkdir(exist_ok=True)
    for name, text in texts.items():
        put(path / name, text)
    return path


def ranks(num, **fields):
    return {f"r{i}.json": document(one_step(50.0 * i), i, num, **fields) for i in range(num)}


def pack(path, texts):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, text in texts.items():
            raw = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
            info = tarfile.TarInfo(f"job/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def problems_of(path):
    with pytest.raises(ScenarioError) as caught:
        read_traces(path)
    assert all(line.startswith(str(path)) for line in caught.value.problems)
    return caught.value.problems


def test_a_folder_has_a_file_per_rank_and_others_are_passed_over(tmp_path):
    texts = dict(reversed(ranks(3).items())) | {"result.json": '{"points": []}', "notes.txt": "x"}
    path = folder_of(tmp_path / "job", texts)
    traces = read_traces(path)
    assert [trace.rank for trace in traces] == [0, 1, 2]
    assert [trace.path.name for trace in traces] == ["r0.json", "r1.json", "r2.json"]
    assert np.diff([trace.origin_ns for trace in traces]).tolist() == [50_000, 50_000]
    assert kind_of(path) == "traces"
    passed = "Files of its folder that are no traces were passed over: result.json."
    assert [trace.remarks for trace in traces] == [(passed,), (), ()]


@for_each("name", ["job.tar", "job.tar.gz"])
def test_an_archive_is_read_without_being_unpacked(tmp_path, name):
    texts = ranks(3)
    texts["r2.json.gz"] = texts.pop("r2.json")
    path = pack(tmp_path / name, texts | {"readme.txt": "x"})
    traces = read_traces(path)
    assert [trace.rank for trace in traces] == [0, 1, 2]
    assert traces[1].path == path / "job" / "r1.json"
    assert kind_of(path) == "traces"


def test_an_archive_that_is_damaged_or_holds_no_trace(tmp_path):
    whole = pack(tmp_path / "a.tar", ranks(2)).read_bytes()
    half = put(tmp_path / "half.tar", whole[:3000])
    assert "is a damaged archive" in problems_of(half)[0]
    empty = pack(tmp_path / "b.tar.gz", {"x.txt": "x"})
    assert "no trace is in this archive" in problems_of(empty)[0]


@for_each(
    ("names", "found"),
    [
        (["rank_0.json", "rank-12.json"], [0, 12]),
        (["worker3_step_12.169412.pt.trace.json", "worker1_step_12.169412.pt.trace.json"], [1, 3]),
        (["job_rank1.json.gz", "job_rank0.json.gz"], [0, 1]),
    ],
)
def test_ranks_may_be_told_by_the_names_of_files(tmp_path, names, found):
    texts = {name: document(one_step(), distributedInfo=None) for name in names}
    traces = read_traces(folder_of(tmp_path / str(len(names[0])), texts))
    assert [trace.rank for trace in traces] == found
    assert f"its rank: {found[0]} is taken from the name" in traces[0].remarks[-1]


def test_files_without_any_rank_are_named(tmp_path):
    texts = {name: document(one_step(), distributedInfo=None) for name in ("a.json", "b.json")}
    first, second = problems_of(folder_of(tmp_path / "job", texts))
    assert "a.json does not say its rank" in first
    assert "b.json does not say its rank" in second
    assert read_traces(tmp_path / "job" / "a.json")[0].rank is None


def test_two_files_of_one_rank_are_named(tmp_path):
    texts = ranks(2) | {"again.json": document(one_step(), 1, 2)}
    (line,) = problems_of(folder_of(tmp_path / "job", texts))
    assert "again.json and r1.json are both of rank 1" in line


def group(size, members):
    return [{"pg_name": "0", "pg_size": size, "ranks": members}]


def info(rank, size, members=None):
    config = group(len(members), members) if members else []
    return {"rank": rank, "world_size": size, "pg_config": config}


@for_each(
    ("other", "why"),
    [
        (
            document(one_step(), 1, 4),
            "a.json and b.json are of different jobs: of 2 and of 4 ranks",
        ),
        (document(one_step(), 7, 2), "b.json is of rank 7, but of a job of 2 ranks"),
        (
            document(one_step(number=90), 1, 2),
            "a.json and b.json have no step in common: 1 to 1 and 90 to 90",
        ),
        (
            document(one_step(), distributedInfo=info(1, 2, [1, 5])),
            "their process group '0' has the ranks (0, 1) and (1, 5)",
        ),
        (document(one_step(), 1, 2, otherData={"scenario": "s"}), "only one is simulated"),
    ],
)
def test_files_of_different_jobs_are_named(tmp_path, other, why):
    texts = {"a.json": document(one_step(), 0, 2), "b.json": other}
    (line,) = problems_of(folder_of(tmp_path / "job", texts))
    assert why in line
    assert line.endswith("keep the files of one job only.")


def test_subgroups_may_have_other_members_on_other_ranks(tmp_path):
    texts = {}
    for rank in range(2):
        head = info(rank, 2, [0, 1])
        head["pg_config"] += [{"pg_name": "tp", "pg_size": 1, "ranks": [rank]}]
        texts[f"{rank}.json"] = document(one_step(), distributedInfo=head)
    traces = read_traces(folder_of(tmp_path / "job", texts))
    assert [trace.groups["tp"].ranks for trace in traces] == [(0,), (1,)]


def test_clocks_that_are_hours_apart_are_said(tmp_path):
    texts = {
        f"{rank}.json": document(one_step(), rank, 2, base=(1_700_000_000 + rank * 7200) * 10**9)
        for rank in range(2)
    }
    first, second = read_traces(folder_of(tmp_path / "job", texts))
    assert first.remarks == ("By their clocks, the traces of the ranks begin 2.0 hours apart.",)
    assert second.remarks == ()


def test_a_folder_without_traces(tmp_path):
    path = folder_of(tmp_path / "job", {"a.json": "{}", "b.txt": "x"})
    (line,) = problems_of(path)
    assert "no trace is in this folder (1 files end in .json or .json.gz)" in line
    with pytest.raises(ScenarioError, match="holds nothing that is read here; allowed are traces"):
        kind_of(path)
    assert "there is no such file" in problems_of(tmp_path / "none")[0]


def test_a_folder_of_thousands_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr("simdp.traces.sources.MAX_FILES", 2)
    path = folder_of(tmp_path / "job", ranks(3))
    assert "holds 3 files; at most 2 are read at once" in problems_of(path)[0]
    assert MAX_FILES >= 1024, "jobs of a thousand ranks are read"


def test_kernels_alone_are_a_trace_and_other_lists_are_none(tmp_path):
    path = put(tmp_path / "a.json", json.dumps([kernel(1, 0, 5)]))
    assert kind_of(path) == "traces"
    with pytest.raises(ScenarioError, match="holds nothing that is read here"):
        kind_of(put(tmp_path / "b.json", "[1, 2]"))
