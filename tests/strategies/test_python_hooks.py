"""Comm hooks from a file: what they send, what it costs, and what is refused."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from every_strategy import WIDTHS, scenario
from for_each import for_each

import simdp
from simdp.engine.simulate import simulate
from simdp.errors import ProgramError, ScenarioError
from simdp.scenario import checked
from simdp.steps.ops import AllReduce
from simdp.steps.program import flat
from simdp.strategies.comm_hooks.python import TRIED, Python
from simdp.strategies.ddp import DDP

FILE = Path(__file__).parents[1] / "own_hooks.py"
NUM_ELEMENTS = sum((a + 1) * b for a, b in pairwise(WIDTHS))


def ddp(name, path=FILE, **options):
    return {"kind": "ddp", "comm_hook": {"kind": "python", "path": str(path), "name": name}} | {
        **options
    }


def learned(strategy, **workload):
    return simdp.simulate(scenario(strategy, numerics=True, **workload)).replicas


def reduced(strategy, **workload):
    chosen = scenario(strategy, **workload)
    batches = next(chosen.workload.batches(4, 0, chosen.base))
    return [op.nbytes for op in flat(chosen.program.plan(1, batches)) if isinstance(op, AllReduce)]


def same(found, wanted, atol=0.0):
    for own, other in zip(found, wanted, strict=True):
        for name, array in other.items():
            np.testing.assert_allclose(own[name], array, rtol=0, atol=atol)


def written(tmp_path, *lines):
    file = tmp_path / "hook.py"
    file.write_text("\n".join(["import numpy as np", "", *lines, ""]))
    return file


def hook(tmp_path, *lines):
    """A file with a function ``f`` of these lines; its first is the file's fourth."""
    return written(tmp_path, "def f(state, bucket):", *(f"    {line}" for line in lines))


# What it does -----------------------------------------------------------------------------------


@for_each("options", [{}, {"bucket_cap": "100 B"}, {"static_graph": True}])
def test_the_mean_is_what_no_hook_makes(options):
    same(learned(ddp("mean", **options)), learned({"kind": "ddp", **options}))


def test_half_is_the_mean_of_rounded_gradients():
    same(learned(ddp("half")), learned({"kind": "ddp", "comm_hook": "fp16"}), 1e-6)


def test_without_an_all_reduce_every_rank_goes_its_own_way():
    found = learned(ddp("doubled"), steps=1)
    assert any((found[0][name] != found[1][name]).any() for name in found[0])
    assert reduced(ddp("doubled")) == []


def test_gradients_are_views_by_name():
    found, plain = (learned(ddp(name), steps=1) for name in ("by_name", "mean"))
    first = learned({"kind": "ddp"}, steps=1, optimizer="none")
    for name in plain[0]:
        wanted = first if name.endswith("bias") else plain
        np.testing.assert_allclose(found[0][name], wanted[0][name], rtol=0, atol=1e-7)


def test_its_bytes_are_those_of_the_array():
    assert reduced(ddp("mean")) == [4 * NUM_ELEMENTS]
    assert reduced(ddp("half")) == [2 * NUM_ELEMENTS]


def test_its_work_reads_one_and_writes_the_other():
    cluster = {"overheads": {"launch": "0 s"}}
    spans = simdp.simulate(scenario(ddp("half"), cluster=cluster)).trace.spans
    found = {s.name for s in spans if s.activity == "compress"}
    assert found == {"bucket 0 hook", "bucket 0 end of hook"}
    spans = simdp.simulate(scenario(ddp("mean"), cluster=cluster)).trace.spans
    took = [s.end - s.start for s in spans if s.name == "bucket 0 end of hook"]
    assert max(took, default=0.0) == 0.0


def test_of_a_large_bucket_the_ratio_counts():
    wide = {"model": {"kind": "mlp", "widths": [4200, 4200]}, "dataset": "none", "microbatch": 1}
    found = reduced(ddp("half", bucket_cap="1 GB"), **wide)
    elements = 4201 * 4200
    assert elements > TRIED
    assert found == [2 * elements]


def test_a_relative_path_starts_from_the_scenarios_folder(tmp_path):
    (tmp_path / "mine.py").write_text(FILE.read_text())
    raw = scenario(ddp("mean")).resolved()
    raw["strategy"]["comm_hook"]["path"] = "mine.py"
    found = checked(raw, tmp_path)
    assert found.strategy.comm_hook.path == "mine.py"
    assert found.program.calls == [("broadcast", 0), ("all_reduce", 0)]


def test_it_must_be_read_first():
    bare = Python(path="mine.py", name="f")
    with pytest.raises(ValueError, match=r"mine\.py has not been read; call settled"):
        next(bare.send(None, None, "bucket 0", 0.0, 1.0, iter(())))
    assert DDP(comm_hook=bare).problem_with(2, scenario({"kind": "ddp"}).workload) is None


# What is refused --------------------------------------------------------------------------------


def refused(path, name="f"):
    with pytest.raises(ScenarioError) as error:
        scenario(ddp(name, path))
    (line,) = error.value.problems
    return line


def test_a_file_must_be_there(tmp_path):
    line = refused(tmp_path / "no.py")
    assert line.startswith("strategy.comm_hook: ")
    assert line.endswith("no.py: there is no such file.")


def test_it_must_be_python(tmp_path):
    assert refused(written(tmp_path, "def f(:")).endswith(
        "hook.py:3: is not valid Python: invalid syntax."
    )


def test_it_must_run(tmp_path):
    line = refused(written(tmp_path, "f = 1 / 0"))
    assert line.endswith("hook.py:3: raised ZeroDivisionError: division by zero.")


def test_it_must_have_the_function(tmp_path):
    line = refused(hook(tmp_path, "return 0"), "g")
    assert line.endswith("hook.py: unknown function 'g'; known: f.")


@for_each(
    ("lines", "said"),
    [
        (["return 1 / 0"], ":4: raised ZeroDivisionError: division by zero."),
        (
            ["return 3"],
            ": the hook ends at 3 for a bucket of 3 elements; return a NumPy array of as many, or "
            "the result of all_reduce.",
        ),
        (
            ["bucket.all_reduce(bucket.buffer())", "return bucket.all_reduce(bucket.buffer())"],
            ":5: the hook calls all_reduce twice; concatenate the arrays to be summed.",
        ),
        (
            ["return bucket.all_reduce([1.0])"],
            ":4: the hook passes [1.0] to all_reduce; pass a NumPy array of floats or integers.",
        ),
        (
            ["bucket.all_reduce(bucket.buffer())", "return bucket.buffer()"],
            ": the hook calls all_reduce, but returns an array of 3 float32; return the "
            "result of all_reduce or then.",
        ),
        (
            ["return bucket.all_reduce(bucket.buffer()[:1])"],
            ": the hook ends at an array of 1 float32 for a bucket of 3 elements; return a NumPy "
            "array of as many, or the result of all_reduce.",
        ),
        (
            ["return bucket.all_reduce(bucket.buffer()).then(lambda total: total[9])"],
            ":4: raised IndexError: index 9 is out of bounds for axis 0 with size 3.",
        ),
    ],
)
def test_a_bucket_of_zeros_tells_what_is_wrong(tmp_path, lines, said):
    file = hook(tmp_path, *lines)
    assert refused(file).endswith(f"hook.py{said}")


@for_each(
    ("lines", "said"),
    [
        (
            [
                "found = bucket.buffer()",
                "found = found.astype('float16') if found.any() else found",
                "return bucket.all_reduce(found)",
            ],
            "passes 119 float16 to all_reduce, but 119 float32 for zeros; size and dtype may",
        ),
        (
            [
                "if bucket.buffer().any():",
                "    return bucket.buffer()",
                "return bucket.all_reduce(bucket.buffer())",
            ],
            "calls no all_reduce, but called one for zeros.",
        ),
        (["if bucket.buffer().any():", "    raise KeyError", "return bucket.buffer()"], "KeyError"),
    ],
)
def test_a_run_does_what_zeros_told(tmp_path, lines, said):
    with pytest.raises(ProgramError) as error:
        learned(ddp("f", hook(tmp_path, *lines)))
    assert str(error.value).startswith("rank 0, ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_state_of_arrays_and_numbers_is_saved_and_others_are_refused(tmp_path):
    lines = ["state['kept'] = object()", "return bucket.buffer()"]
    with pytest.raises(ScenarioError) as error:
        simulate(scenario(ddp("f", hook(tmp_path, *lines)), numerics=True), keep_state=True)
    assert error.value.problems == [
        "strategy.comm_hook: the state of rank 0 holds 'kept', which cannot be saved; keep arrays "
        "and numbers by names."
    ]


def test_a_neighbours_hook_is_read_from_the_same_folder(tmp_path):
    (tmp_path / "mine.py").write_text(FILE.read_text())
    raw = scenario({"kind": "ddp"}).resolved()
    link = {"alpha": "1 us", "bandwidth": "10 GB/s"}
    raw["cluster"] |= {"devices_per_node": 2, "inter_node": {"topology": "switch", "link": link}}
    own = {"kind": "ddp", "comm_hook": {"kind": "python", "path": "mine.py", "name": "half"}}
    job = {"world_size": 4, "workload": raw["workload"], "strategy": own}
    found = checked({**raw, "neighbours": [job]}, tmp_path).neighbour(0)
    assert found.program.calls == [("broadcast", 0), ("all_reduce", 0)]
    own["comm_hook"]["path"] = "no.py"
    with pytest.raises(ScenarioError, match=r"neighbours\.0\.strategy\.comm_hook: .*no\.py: there"):
        checked({**raw, "neighbours": [job]}, tmp_path)
