import gzip
import json
import re

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from kineto import document, event, kernel, launch, one_step, put, step

import simdp
from simdp.errors import ScenarioError
from simdp.traces import KERNEL_KINDS, read_trace, read_traces
from simdp.traces.building import read_stream

WHOLE = document([*one_step(), *one_step(100.125, 2)])
WANTED = "export_chrome_trace"


def error_of(path, read=read_trace):
    with pytest.raises(ScenarioError) as caught:
        read(path)
    (line,) = caught.value.problems
    assert line.startswith(str(path))
    return line


@for_each(
    ("content", "why"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("hello", "is no JSON"),
        ('{"traceEvents" [', "is no JSON from character 15 on"),
        ("3", "is no JSON"),
        ("{}", "is JSON without traceEvents: its fields are nothing"),
        ('{"a": 1, "b": [', "its fields are a, and there it is cut"),
        ('{"schema": "1.1", "nodes": []}', "it is an execution trace, which holds no times"),
        ('{"traceEvents": 3}', "is JSON without traceEvents"),
        ('{"traceEvents": []}', "holds no events"),
        ("[]", "holds no events"),
        (
            document([event("gpu_user_annotation", "x", 0, 1)]),
            "no event of an operator or a kernel",
        ),
        (document([event("tf_op", "MatMul", 0, 1)]), "is a Chrome trace of another tool"),
        (document([{"ph": "B", "name": "f", "ts": 0}]), "another tool: its events are of the"),
        (document([kernel(1, 0, "NaN")]), "none of its 1 events has finite times"),
        ("\x00\x01\x02", "is no JSON"),
        ('{"a": ' + "[" * 100_000, "is no JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_line(tmp_path, content, why):
    line = error_of(put(tmp_path / "t.json", content))
    assert why in line
    assert WANTED in line


def test_a_path_that_is_not_there_or_is_a_folder(tmp_path):
    assert error_of(tmp_path / "none.json").endswith("there is no such file.")
    assert "is a folder; name a file in it" in error_of(tmp_path)


def test_a_file_with_several_ranks_is_not_one_trace(tmp_path):
    events = [kernel(0, 0, 5) | {"pid": pid} for pid in (0, 1)]
    text = document(events, otherData={"scenario": "s"})
    path = put(tmp_path / "trace.json", text)
    assert "holds 2 ranks, where one is due" in error_of(path)
    assert [trace.rank for trace in read_traces(path)] == [0, 1]


@for_each("share", [0.3, 0.5, 0.77, 0.95])
def test_what_is_cut_is_read_as_far_as_it_goes(tmp_path, share):
    cut = WHOLE[: int(len(WHOLE) * share)]
    trace = read_trace(put(tmp_path / "t.json", cut))
    num_read = len(trace.kernels) + len(trace.host)
    found = re.match(
        r"The file ends in the middle: (\d+) events before character (\d+)", trace.remarks[0]
    )
    assert int(found[1]) == num_read == cut.count('"ph"') - (not cut.rstrip(", \n").endswith("}"))
    assert 0 < int(found[2]) <= len(cut)
    assert "what came behind them is missing" in trace.remarks[0]


def in_kinetos_order(num_steps=4):
    """Operators first, then the launches and kernels of each thread: forward's, then backward's."""
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    host, device = [], []
    for number in range(num_steps):
        at = 100 * number
        host += [step(number + 1, at, 99), event("cpu_op", "aten::mm", at + 1, 20)]
        host.append(event("cpu_op", engine, at + 40, 20, tid=200))
    for thread, begin in ((100, 5), (200, 45)):
        for number in range(num_steps):
            correlation = 10 * thread + number
            device.append(launch(correlation, 100 * number + begin, tid=thread))
            device.append(kernel(correlation, 100 * number + begin + 10, 20))
    return host, device


def cut_after(tmp_path, num_device):
    host, device = in_kinetos_order()
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    listed = json.dumps([*host, *device[:num_device]])[1:-1]
    end = "" if num_device < len(device) else "]}"
    return put(tmp_path / "t.json", f'{json.dumps(head)[:-1]}, "traceEvents": [{listed}{end}')


@pytest.mark.parametrize("number", [0, 1])
def test_a_trace_that_is_cut_before_its_kernels_is_refused(tmp_path, number):
    line = error_of(cut_after(tmp_path, number))
    assert f"is cut before the kernels of its steps: {12 + number} events of the host" in line
    assert "copy the whole file again" in line


def test_a_trace_without_the_kernels_of_backward_is_no_diagnosis(tmp_path):
    path = cut_after(tmp_path, 8)
    assert read_trace(path).remarks[1].startswith("It is cut before the kernels of its steps")
    with pytest.raises(ScenarioError) as caught:
        simdp.diagnose(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: it is cut before the kernels of its steps: 16 events")


def test_steps_that_are_cut_are_left_out(tmp_path):
    trace = read_trace(cut_after(tmp_path, 12))
    assert trace.steps.number.tolist() == [1]
    assert "It is cut before kernels of these steps, which are left out: 2, 3, 4." in trace.remarks
    assert read_trace(cut_after(tmp_path, 16)).steps.number.tolist() == [1, 2, 3, 4]


def test_an_empty_trace_says_how_the_profiler_makes_one(tmp_path):
    line = error_of(put(tmp_path / "t.json", document([], deviceProperties=[])))
    assert "give its schedule repeat=1, and export in on_trace_ready" in line


def test_a_packed_file_that_is_cut(tmp_path):
    many = document([one for i in range(300) for one in one_step(100.5 * i, i)])
    packed = gzip.compress(many.encode())
    trace = read_trace(put(tmp_path / "t.json", packed[: len(packed) // 2]))
    assert "since its compressed data is damaged, or ends too early" in trace.remarks[0]
    assert 10 < len(trace.steps) < 300
    assert "compressed data is damaged" in error_of(put(tmp_path / "u.json", packed[:12]))


def test_a_packed_file_with_a_wrong_sum_is_read_to_its_end(tmp_path):
    packed = bytearray(gzip.compress(WHOLE.encode()))
    packed[-6] ^= 0xFF
    trace = read_trace(put(tmp_path / "t.json", bytes(packed)))
    assert len(trace.kernels) == 6


@for_each(
    "junk",
    [
        '{"ph": nan},',
        "oops,",
        '{"ph": "X", "dur": -nan, "args": {"a": 1}},',
        "}}]]"[:2],
        '"text",',
        "\\",
    ],
)
def test_junk_between_events_is_passed_over(tmp_path, junk):
    first, last = (json.dumps(kernel(i, 10 * i, 5)) for i in (1, 2))
    trace = read_trace(put(tmp_path / "t.json", f"[{first},\n{junk}\n{last}]"))
    assert len(trace.kernels) == 2
    assert trace.remarks[0].startswith("1 places of the file hold no event that can be read")


@for_each(
    "times",
    [
        {"dur": "NaN"},
        {"dur": -1},
        {"dur": None},
        {"ts": "Infinity"},
        {"ts": "1e400"},
        {"ts": 10**40},
        {"dur": "x"},
        {"ts": [1]},
        {"ts": True},
    ],
)
def test_events_without_finite_times_are_left_out(tmp_path, times):
    trace = read_trace(put(tmp_path / "t.json", document([*one_step(), kernel(9, 0, 1) | times])))
    assert len(trace.kernels) == 3
    assert "1 events have no finite times, or end before they begin" in trace.remarks[0]


def test_names_with_ends_of_lines_in_them_are_read(tmp_path):
    text = document([kernel(1, 0, 5, "@")]).replace('"@"', '"a\tb\n\x01"')
    assert read_trace(put(tmp_path / "t.json", text)).kernels.names == ("a\tb\n\x01",)


def test_ranks_that_were_put_together_are_noticed(tmp_path):
    other = [event("cpu_op", "aten::mm", 0, 5) | {"pid": 200}]
    trace = read_trace(put(tmp_path / "t.json", document([*one_step(), *other])))
    assert trace.remarks[0].startswith("2 processes call operators in it, as if several ranks")


def test_numbers_that_json_does_not_know_are_left_out_too(tmp_path):
    text = document([*one_step(), kernel(9, "@", 1)])
    for number in ("NaN", "-Infinity"):
        trace = read_trace(put(tmp_path / "t.json", text.replace('"@"', number)))
        assert len(trace.kernels) == 3


def test_traces_without_steps_or_collectives_say_so(tmp_path):
    trace = read_trace(put(tmp_path / "t.json", document([kernel(1, 0, 5)])))
    assert (len(trace.steps), len(trace.collectives)) == (0, 0)
    assert [said.split(",")[0] for said in trace.remarks] == [
        "It has no ProfilerStep",
        "It holds no collective",
    ]
    assert trace.kernels.step.tolist() == [-1]


def test_unknown_categories_are_said(tmp_path):
    trace = read_trace(
        put(tmp_path / "t.json", document([*one_step(), event("my_tool", "x", 0, 1)]))
    )
    assert trace.remarks == ("1 events of unknown categories (my_tool) were passed over.",)


def test_a_step_with_a_strange_name_is_none(tmp_path):
    events = [step("x", 0, 5), step("1" * 40, 0, 5), step("²", 0, 5), *one_step(number=7)]
    assert read_trace(put(tmp_path / "t.json", document(events))).steps.number.tolist() == [7]


# Whatever comes ----------------------------------------------------------------------------------

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["X", "kernel", "cpu_op", "NaN", "1.5", "nccl:all_reduce", "gloo:broadcast"]),
    st.lists(st.integers(-2, 9), max_size=2),
)
fields = st.dictionaries(
    st.sampled_from(
        [
            *("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "stream", "correlation"),
            *("Collective name", "In msg nelems", "Process Group Ranks", "Input Dims", "Ev Idx"),
        ]
    ),
    odd,
    max_size=4,
)


@st.composite
def documents(draw):
    """Some events in any order, changed at will; then cut, or with junk in it."""
    events = [*one_step(), *one_step(100, 2)]
    events = [*draw(st.permutations(events)), kernel(5, 3, 4)]
    for at in draw(st.lists(st.integers(0, len(events) - 1), max_size=4)):
        events[at] = events[at] | draw(fields)
        if isinstance(events[at].get("args"), dict):
            events[at]["args"] = events[at]["args"] | draw(fields)
    head = draw(st.dictionaries(st.sampled_from(["distributedInfo", "baseTimeNanoseconds"]), odd))
    text = document(events, **head)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=6)) + text[at + draw(st.integers(0, 30)) :]
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@pytest.mark.slow
@given(documents())
@draws(20, 60, deadline=None)
def test_anything_gives_a_trace_or_a_line(text):
    import io
    from pathlib import Path

    try:
        traces = read_stream(io.BytesIO(text.encode("utf-8", "replace")), Path("t.json"))
    except ScenarioError as error:
        (line,) = error.problems
        assert line.startswith("t.json: ")
        assert "\n" not in line
        return
    for trace in traces:
        kernels, found = trace.kernels, trace.collectives
        columns = [value for value in vars(kernels).values() if isinstance(value, np.ndarray)]
        assert {len(column) for column in columns} == {len(kernels)}
        assert (kernels.end >= kernels.start).all()
        assert (np.diff(kernels.start) >= 0).all()
        assert set(kernels.kind.tolist()) <= set(range(len(KERNEL_KINDS)))
        assert ((kernels.step >= -1) & (kernels.step < len(trace.steps))).all()
        assert ((kernels.op >= -1) & (kernels.op < len(trace.host))).all()
        assert ((found.kernel >= -1) & (found.kernel < len(kernels))).all()
        assert all(said.endswith(".") for said in trace.remarks)
