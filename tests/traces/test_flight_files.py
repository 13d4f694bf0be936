import gzip
import json
import os
import pickle
import tempfile
from pathlib import Path

import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from kineto import put

from simdp.errors import ScenarioError
from simdp.traces import GroupStatus, TraceGroup, kind_of, read_flight_records
from simdp.traces.flight_files import CODES


def entry(number, name="nccl:all_reduce", state="completed", **fields):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": 1_000_000 + number,
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[6]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": 2_000_000,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 31}],
    } | fields


def dump(entries, version="2.5", **fields):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    status = {
        "0": {
            "last_enqueued_collective": 2,
            "last_started_collective": 2,
            "last_completed_collective": 1,
        }
    }
    return {
        "version": version,
        "pg_config": config,
        "pg_status": status,
        "entries": entries,
    } | fields


def error_of(path):
    with pytest.raises(ScenarioError) as caught:
        read_flight_records(path)
    (line,) = caught.value.problems
    assert line.startswith(str(path))
    return line


@for_each("version", ["2.1", "2.2", "2.3", "2.4", "2.5", "2.10"])
def test_a_pickled_dump_says_all(tmp_path, version):
    raw = pickle.dumps(dump([entry(0), entry(1, duration_ms=2.5)], version), protocol=2)
    path = put(tmp_path / "nccl_trace_rank_3", raw)
    (record,) = read_flight_records(path)
    assert (record.rank, record.version, record.remarks) == (3, version, ())
    assert record.groups == {"0": TraceGroup("0", "default_pg", "", (0, 1), 2)}
    assert record.status == {"0": GroupStatus(2, 2, 1)}
    first, second = record.entries
    assert (first.name, first.group, first.sequence, first.op_id) == ("all_reduce", "0", 1, 1)
    assert (first.input_sizes, first.output_sizes) == (((2, 3),), ((6,),))
    assert (first.input_dtypes, first.output_dtypes) == (("float32",), ("bfloat16",))
    assert (first.state, first.retired, first.timeout_s) == ("completed", True, 600.0)
    assert (first.created_ns, first.started_ns, first.completed_ns) == (1_000_000, 2_000_000, None)
    assert (first.duration_s, second.duration_s) == (None, pytest.approx(2.5e-3))
    assert first.frames == ("train.py:31 step",)


@for_each("protocol", range(6))
def test_every_protocol_and_json_are_the_same(tmp_path, protocol):
    content = dump([entry(0, duration_ms=1.0)])
    (pickled,) = read_flight_records(put(tmp_path / "d0", pickle.dumps(content, protocol)))
    (written,) = read_flight_records(put(tmp_path / "d0.json", json.dumps(content)))
    assert pickled.entries == written.entries
    assert pickled.groups == written.groups
    assert kind_of(tmp_path / "d0") == kind_of(tmp_path / "d0.json") == "flight_records"


@for_each(
    ("written", "name", "peers"),
    [
        ("nccl:send 1->2", "send", (1, 2)),
        ("nccl:recv 3<-0", "recv", (0, 3)),
        ("gloo:recv 3<-?", "recv", (None, 3)),
        ("nccl:_all_gather_base", "all_gather", (None, None)),
        ("nccl2:ALLGATHER_coalesced", "all_gather", (None, None)),
        ("nccl:all_reduce_barrier", "barrier", (None, None)),
        ("nccl:new_thing", "", (None, None)),
    ],
)
def test_names_and_peers(tmp_path, written, name, peers):
    path = put(tmp_path / "d_0", pickle.dumps(dump([entry(0, written)])))
    (found,) = read_flight_records(path)[0].entries
    assert (found.name, found.profiling_name) == (name, written)
    assert (found.source, found.target) == peers
    assert found.is_p2p == (peers[1] is not None)


def test_what_a_dump_lacks_is_said(tmp_path):
    path = put(tmp_path / "dump", pickle.dumps(dump([entry(40), "x", entry(41, frames=None)])))
    (record,) = read_flight_records(path)
    assert record.rank is None
    said = " ".join(record.remarks)
    assert "says its rank" in said
    assert "begins with record 40: the buffer is circular" in said
    assert "1 of its 3 entries cannot be read" in said
    assert "TORCH_NCCL_ENABLE_TIMING=1" in said
    (empty,) = read_flight_records(put(tmp_path / "d1", pickle.dumps(dump([]))))
    assert any("holds no entries" in said for said in empty.remarks)


def test_a_folder_has_a_dump_per_rank(tmp_path):
    for rank in (2, 0, 10):
        put(tmp_path / f"nccl_trace_rank_{rank}", pickle.dumps(dump([entry(0)])))
    put(tmp_path / "notes.txt", "x")
    assert [record.rank for record in read_flight_records(tmp_path)] == [0, 2, 10]
    assert kind_of(tmp_path) == "flight_records"
    put(tmp_path / "again_10", pickle.dumps(dump([entry(0)])))
    with pytest.raises(ScenarioError, match="again_10 and nccl_trace_rank_10 are both of rank 10"):
        read_flight_records(tmp_path)


def test_a_folder_without_dumps_or_without_ranks(tmp_path):
    assert "no dump is in this folder" in error_of(tmp_path)
    for name in ("a", "b"):
        put(tmp_path / name, pickle.dumps(dump([entry(0)])))
    with pytest.raises(ScenarioError) as caught:
        read_flight_records(tmp_path)
    assert [line.split(": ")[1].split(";")[0] for line in caught.value.problems] == [
        f"{name} does not say its rank" for name in ("a", "b")
    ]


# Attacks -----------------------------------------------------------------------------------------


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@for_each("protocol", range(6))
def test_a_pickle_that_would_run_a_command_does_not(tmp_path, protocol):
    touched = tmp_path / "touched"
    raw = pickle.dumps(dump([entry(0), Attack(touched)]), protocol)
    line = error_of(put(tmp_path / "d0", raw))
    assert "this pickle asks for the global posix.system, which could run any program" in line
    assert not touched.exists()
    pickle.loads(raw)  # as every other reader would
    assert touched.exists()
    touched.unlink()


@for_each(
    ("raw", "why"),
    [
        (b"\x80\x02cbuiltins\neval\n(Vprint(1)\ntR.", "the global builtins.eval"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04evil\x93.", "the global builtins.evil"),
        (b"(ios\nsystem\n.", "the global os.system"),
        (b"\x80\x02}Pabc\n.", "the instruction PERSID"),
        (b"\x80\x02\x82\x01.", "the instruction EXT1"),
        (b"\x80\x02)}R.", "the instruction REDUCE"),
        (b"\x80\x02)}\x81.", "the instruction NEWOBJ"),
        (b"\x80\x02}}b.", "the instruction BUILD"),
        (pickle.dumps(bytearray(9), 5), "the instruction BYTEARRAY8"),
    ],
)
def test_whatever_could_call_anything_is_refused_by_name(tmp_path, raw, why):
    assert f"asks for {why}" in error_of(put(tmp_path / "d0", raw))


def test_a_small_pickle_cannot_ask_for_much_memory(tmp_path):
    raw = b"\x80\x02}r\xff\xff\xff\x7f."  # to be remembered at place 2,147,483,647
    assert "holds no list of entries" in error_of(put(tmp_path / "d0", raw))
    raw = b"\x80\x02\x8b\xff\xff\xff\x7f."  # a number of two billion bytes
    assert "is a damaged pickle" in error_of(put(tmp_path / "d0", raw))


def test_only_codes_of_plain_values_are_understood():
    assert not {"REDUCE", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "EXT1"} & set(CODES)
    assert set(CODES) < set(vars(pickle))


@for_each(
    ("raw", "why"),
    [
        (b"", "is empty"),
        (b"hello", "is a damaged pickle"),
        (pickle.dumps(dump([]))[:-20], "is a damaged pickle"),
        (pickle.dumps([1, 2]), "holds no list of entries, so it is no dump"),
        (pickle.dumps({"entries": 3}), "holds no list of entries"),
        (pickle.dumps(dump([], "1.5")), "is of version '1.5'; versions 2.0 to 2.x are read"),
        (pickle.dumps(dump([], 3)), "is of version 3"),
        (b'{"version": "2.5", "entries": [', "is no JSON"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (gzip.compress(b"x" * 1000)[:20], "cannot be read"),
    ],
)
def test_what_is_no_dump_is_refused_in_a_line(tmp_path, raw, why):
    path = tmp_path / "d0"
    path.write_bytes(raw)
    assert why in error_of(path)


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("simdp.traces.flight_files.read_bytes.__defaults__", ("x", 2**20))
    assert "is larger than 1 MiB" in error_of(put(tmp_path / "d0", b"\x80" + bytes(2**20)))


@given(st.data())
@draws(20, 60, deadline=None)
def test_a_damaged_pickle_gives_a_record_or_a_line(data):
    raw = bytearray(pickle.dumps(dump([entry(0), entry(1)]), data.draw(st.integers(0, 5))))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder) / "d0", bytes(raw[: data.draw(st.integers(1, len(raw)))]))
        try:
            (record,) = read_flight_records(path)
        except ScenarioError as error:
            (line,) = error.problems
            assert line.startswith(str(path))
        else:
            assert len(record.entries) <= 2


def test_strange_values_do_no_harm(tmp_path):
    loop = []
    loop.append(loop)
    odd = entry(0, input_sizes=[loop, 3], frames=[{"line": "x"}, 7], retired="yes", op_id=1e300)
    odd |= {"process_group": None, "pg_id": 5, "duration_ms": float("nan"), "input_dtypes": loop}
    content = dump([odd], pg_config={1: 2, "x": {"ranks": "[0, ..."}}, pg_status={"0": 3})
    (record,) = read_flight_records(put(tmp_path / "d0", pickle.dumps(content)))
    (found,) = record.entries
    assert (found.input_sizes, found.retired, found.op_id) == (((-1,), ()), False, -1)
    assert (found.group, found.duration_s, found.frames) == ("5", None, (":0", ""))
    assert record.status == {"0": GroupStatus(-1, -1, -1)}


def test_a_json_dump_without_entries_and_gloos_nameless_group(tmp_path):
    content = dump([entry(0)], pg_config={"": {"name": "", "desc": "", "ranks": "[0, 1]"}})
    (record,) = read_flight_records(put(tmp_path / "d0.json", json.dumps(content)))
    assert record.groups == {"0": TraceGroup("0", "", "", (0, 1), 2)}
    del content["entries"]
    (record,) = read_flight_records(put(tmp_path / "d0.json", json.dumps(content)))
    assert record.entries == ()
