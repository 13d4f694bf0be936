"""Launching: clusters, results, the clock, what ranks have for themselves, and errors."""

import os
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from ranks_left import no_rank_is_left

import simdp.distributed as dist
from simdp.distributed.launch import find, run_script
from simdp.errors import ProgramError, ScenarioError
from simdp.reports.charts import CHARTS
from simdp.reports.plots import draw
from simdp.reports.plots.style import style

# Results ----------------------------------------------------------------------------------------


def busy(rank, factor=1.0):
    dist.init_process_group()
    tensor = np.full(10_000, float(rank))
    works = []
    for layer in range(3):
        dist.compute(seconds=1e-5 * factor * (rank + 1), name=f"layer {layer}")
        works.append(dist.all_reduce(tensor.copy(), async_op=True))
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.compute(seconds=1e-5 * rank)
        dist.all_reduce(tensor, group=pair)
    for work in works:
        work.wait()
    return dist.clock()


def columns(trace):
    return [
        (span.rank, span.lane, span.activity, span.name, span.start, span.end, span.nbytes)
        for span in trace.spans
    ]


def test_the_same_program_gives_the_same_trace_to_the_last_bit(box):
    one, other = (dist.launch(busy, 4, cluster=box) for _ in range(2))
    assert columns(one.trace) == columns(other.trace)
    assert one.values == other.values == one.clocks.tolist()
    assert one.simulated_s == max(one.clocks)


def test_arguments_reach_the_function(box):
    slow = dist.launch(busy, 4, cluster=box, args=(100.0,))
    assert slow.simulated_s > 3 * 1e-5 * 100 * 4


def test_spans_of_a_lane_never_overlap(box):
    trace = dist.launch(busy, 4, cluster=box).trace
    lanes = {}
    for span in trace.spans:
        lanes.setdefault((span.rank, span.lane), []).append(span)
    assert {lane for _, lane in lanes} == {"compute", "comm", "comm 2"}
    for spans in lanes.values():
        for before, after in pairwise(spans):
            assert before.end <= after.start


def test_pictures_have_all_communication_on_one_lane(box):
    result = dist.launch(busy, 4, cluster=box)
    (point,) = result.study(one_lane=True).points
    assert {span.lane for span in point.trace.spans} == {"compute", "comm"}
    lost = [s for s in result.trace.spans if s.lane == "comm 2" and s.activity == "wait"]
    assert len(lost) == len(result.trace) - len(point.trace) > 0
    beside = [s for s in point.trace.spans if s.name == ""]
    assert len(beside) == sum(s.lane == "comm 2" for s in result.trace.spans) - len(lost) > 0
    assert point.world_size == result.world_size == 4


def test_a_handle_that_nobody_waits_for_still_takes_its_time(run):
    def program(rank):
        dist.all_reduce(np.zeros(1000), async_op=True)
        return dist.clock()

    result = run(program)
    assert result.values == [0.0] * 4
    assert result.simulated_s > 0


# The clock --------------------------------------------------------------------------------------


def test_compute_takes_what_it_says_or_what_the_device_takes(box):
    device = box.devices()[0]

    def program(rank):
        dist.compute(seconds=0.25)
        begin = dist.clock()
        dist.compute(flops=1e12, dtype="bfloat16")
        return begin, dist.clock() - begin

    expected = (1e12 + device.half_work) / device.rate("bfloat16") + device.launch
    for found in dist.launch(program, 2, cluster=box).values:
        assert found == (0.25, pytest.approx(expected))


@for_each("number", [np.float32(0.5), np.float64(0.5), np.int64(2), 2])
def test_numbers_of_numpy_are_numbers(box, number):
    def program(rank):
        dist.compute(seconds=number)
        return dist.clock()

    assert dist.launch(program, 2, cluster=box).values == [float(number)] * 2


def test_work_runs_beside_communication(run):
    def program(rank):
        work = dist.all_reduce(np.zeros(10**6), async_op=True)
        dist.compute(seconds=1e-3)
        work.wait()
        return dist.clock()

    def alone(rank):
        dist.all_reduce(np.zeros(10**6))
        return dist.clock()

    communication = run(alone).simulated_s
    assert communication > 1e-3
    assert run(program).simulated_s == communication


def test_a_straggler_of_the_scenario_slows_its_rank_down(box):
    slow = box.model_copy(
        update={
            "stragglers": type(box)
            .model_validate(
                {**box.model_dump(), "stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 3}]}
            )
            .stragglers
        }
    )

    def program(rank):
        dist.compute(seconds=1.0)
        return dist.clock()

    assert dist.launch(program, cluster=slow).values == [1.0, 3.0, 1.0, 1.0]


def test_a_pause_stops_the_work_that_it_meets(box):
    paused = type(box).model_validate(
        {
            **box.model_dump(),
            "stragglers": [{"kind": "pause", "rank": 0, "every": "10 s", "duration": "2 s"}],
        }
    )

    def program(rank):
        dist.compute(seconds=15.0)
        return dist.clock()

    found = dist.launch(program, cluster=paused).values
    assert found[0] > found[1] == 15.0


def test_ranks_run_in_the_order_of_time(box):
    seen = []

    def program(rank):
        for _ in range(3):
            dist.compute(seconds=1.0 + rank)
            seen.append((dist.clock(), rank))

    dist.launch(program, 3, cluster=box)
    assert [time for time, _ in seen] == sorted(time for time, _ in seen)
    assert len(seen) == 9


@for_each(
    ("call", "said"),
    [
        (lambda: dist.compute(), "compute: give seconds or flops, one of the two."),
        (lambda: dist.compute(1, 1), "compute: give seconds or flops, one of the two."),
        (
            lambda: dist.compute(-1),
            "compute: seconds is -1; give a finite number >= 0.",
        ),
        (
            lambda: dist.compute(flops=float("nan")),
            "compute: flops is nan; give a finite number >= 0.",
        ),
        (
            lambda: dist.compute(10**400),
            f"compute: seconds is {10**400}; give a finite number >= 0.",
        ),
        (lambda: dist.compute("1"), "compute: seconds is '1'; give a finite number >= 0."),
        (lambda: dist.compute(1, name=["a"]), "compute: name is ['a']; give a string."),
        (
            lambda: dist.compute(1, activity="sleep"),
            "compute: unknown activity 'sleep'; known: compute, forward, backward, update.",
        ),
    ],
)
def test_wrong_work_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said


def test_a_dtype_that_the_device_has_no_peak_for_is_refused(refused):
    said = refused(lambda rank: dist.compute(flops=1, dtype="int8"))
    assert said.startswith("unknown dtype 'int8'; known: ")


# What ranks have for themselves -----------------------------------------------------------------


def test_each_rank_has_an_environment_and_arguments_of_its_own(box):
    before = os.environ, sys.argv

    def program(rank):
        os.environ["MINE"] = str(rank)
        sys.argv.append(str(rank))
        dist.init_process_group()
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MINE")
        return [os.environ[name] for name in names], os.getenv("MASTER_PORT"), sys.argv[-1]

    found = dist.launch(program, 16).values
    for rank, values in enumerate(found):
        local = str(rank % 8)
        named = [str(rank), local, "16", "8", "127.0.0.1", str(rank)]
        assert values == (named, "29500", str(rank))
    assert (os.environ, sys.argv) == before
    assert "MINE" not in os.environ


# Errors -----------------------------------------------------------------------------------------


def test_what_a_rank_raises_is_told_with_the_rank_and_the_programs_lines_only(run):
    def inner():
        return 1 / 0

    def program(rank):
        dist.barrier()
        if rank == 2:
            inner()
        dist.barrier()

    with pytest.raises(ProgramError) as caught:
        run(program)
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 2 raised:"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "simdp/distributed" not in str(caught.value).replace("tests/distributed", "")
    assert "inner" in str(caught.value)
    assert caught.value.exit_status == 2
    assert no_rank_is_left()


def test_no_thread_survives_even_if_the_program_catches_everything(run):
    def program(rank):
        try:
            if rank == 0:
                raise KeyError("gone")
            dist.barrier()
        except KeyError:
            raise
        except BaseException:
            dist.barrier()

    with pytest.raises(ProgramError, match="KeyError: 'gone'"):
        run(program)
    assert no_rank_is_left()


def test_a_rank_may_leave_early_and_nothing_else_may_be_said_by_it(run):
    assert run(lambda rank: sys.exit()).values == [None] * 4
    assert run(lambda rank: sys.exit(0)).values == [None] * 4
    with pytest.raises(ProgramError, match=r"rank 0 left with sys.exit\('no data'\)\.") as caught:
        run(lambda rank: sys.exit("no data"))
    assert str(caught.value) == "rank 0 left with sys.exit('no data')."


def test_without_room_for_a_thread_there_is_one_line(box, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ProgramError) as caught:
        dist.launch(busy, 4, cluster=box)
    assert str(caught.value) == (
        "cannot start a thread for rank 0; run the program on fewer ranks."
    )


def test_an_algorithm_that_cannot_serve_a_group_is_refused(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(
        "cluster: {machine: dgx-h100, world_size: 8}\n"
        "collectives: {all_reduce: nvls, cost: links}\n"
    )

    def program(rank):
        dist.init_process_group()
        dist.all_reduce(np.zeros(4))
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(np.zeros(4), group=group)

    with pytest.raises(ProgramError) as caught:
        dist.launch(program, cluster=path)
    assert "all_reduce nvls: " in str(caught.value)
    assert str(caught.value).endswith("; choose another algorithm in the scenario's collectives.")


# Scripts ----------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path, box):
    """Write a program and run it on two ranks."""

    def script(text, *arguments):
        path = tmp_path / "program.py"
        path.write_text(text)
        return run_script(path, find(box, 2), arguments)

    return script


def test_a_script_is_main_with_arguments_and_neighbours(script, tmp_path, capsys):
    (tmp_path / "beside_the_program.py").write_text("WORD = 'beside'\n")
    before = list(sys.path), sys.modules["__main__"]
    script(
        "import sys, os, beside_the_program\n"
        "import simdp.distributed as dist\n"
        "mine = int(os.environ['RANK'])\n"
        "dist.init_process_group('gloo')\n"
        "dist.compute(seconds=2.0 - mine)\n"
        "import __main__\n"
        "if __name__ == '__main__':\n"
        "    same = __file__ == sys.argv[0]\n"
        "    print(__main__.mine, sys.argv[1:], beside_the_program.WORD, same)\n",
        "--lr",
        "0.1",
    )
    del sys.modules["beside_the_program"]
    assert capsys.readouterr().out.splitlines() == [
        "1 ['--lr', '0.1'] beside True",
        "0 ['--lr', '0.1'] beside True",
    ]
    assert (list(sys.path), sys.modules["__main__"]) == before


def test_what_a_script_raises_shows_its_own_lines(script, tmp_path):
    with pytest.raises(ProgramError) as caught:
        script("def f():\n    return {}['x']\n\nf()\n")
    path = tmp_path / "program.py"
    lines = str(caught.value).splitlines()
    assert lines[:4] == [
        "rank 0 raised:",
        "Traceback (most recent call last):",
        f'  File "{path}", line 4, in <module>',
        "    f()",
    ]
    assert lines[-1] == "KeyError: 'x'"


def test_causes_are_told_with_the_programs_lines_only(script):
    with pytest.raises(ProgramError) as caught:
        script(
            "import simdp.distributed as dist\n"
            "try:\n    dist.get_rank()\n"
            "except Exception as error:\n    raise ValueError('mine') from error\n"
        )
    assert "call init_process_group first" in str(caught.value)
    assert "The above exception was the direct cause" in str(caught.value)
    assert "groups.py" not in str(caught.value)


def test_a_script_that_is_wrong_is_one_line(script, tmp_path):
    path = tmp_path / "program.py"
    with pytest.raises(ProgramError) as caught:
        script("x = (\n")
    assert str(caught.value) == f"{path}:1: is not valid Python: '(' was never closed."
    with pytest.raises(ProgramError) as caught:
        script("x = '\0'\n")
    assert str(caught.value).startswith(f"{path}")
    assert "is not valid Python: " in str(caught.value)
    with pytest.raises(ScenarioError) as missing:
        run_script(tmp_path / "nowhere.py", find("dgx-a100"))
    assert missing.value.problems == [f"{tmp_path / 'nowhere.py'}: there is no such file."]


def test_a_module_whose_import_waits_for_others_is_refused_and_does_not_hang(script, tmp_path):
    (tmp_path / "begins_by_itself.py").write_text(
        "import simdp.distributed as dist\ndist.init_process_group()\n"
    )
    with pytest.raises(ProgramError) as caught:
        script("import begins_by_itself\n")
    place = tmp_path / "begins_by_itself.py"
    assert str(caught.value) == (
        f"rank 0, {place}:2: the import of begins_by_itself waits for other ranks, but Python "
        "locks the module until the import ends; put the calls of the module into a function, "
        "and call it after the import."
    )
    assert no_rank_is_left()


def test_where_a_program_goes_nobody_follows(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    script("import os\nif os.environ['RANK'] == '0':\n    os.chdir('sub')\n")
    assert Path.cwd() == tmp_path


def test_programs_of_several_threads_take_turns_and_a_rank_may_launch_one(box):
    seen, before = [], os.environ

    def inner(rank):
        dist.init_process_group()
        dist.barrier()
        return os.environ["RANK"]

    def program(rank, name):
        seen.append(name)
        dist.init_process_group()
        for _ in range(20):
            dist.barrier()
            assert os.environ["RANK"] == str(rank)
        found = dist.launch(inner, 2, cluster=box).values
        seen.append(name)
        return found, os.environ["RANK"], dist.get_rank()

    done = {}

    def start(name):
        done[name] = dist.launch(program, 2, cluster=box, args=(name,)).values

    threads = [threading.Thread(target=start, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done["a"] == done["b"] == [(["0", "1"], str(rank), rank) for rank in range(2)]
    assert seen in (list("aaaabbbb"), list("bbbbaaaa"))
    assert os.environ is before


def test_a_thread_of_a_rank_is_no_rank(run):
    def program(rank):
        said = []

        def ask():
            try:
                dist.get_rank()
            except ProgramError as error:
                said.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return said

    for (line,) in run(program).values:
        assert line.endswith("; threads that a rank starts are no ranks.")


# Clusters ---------------------------------------------------------------------------------------


def test_a_machine_is_one_node_unless_more_are_asked_for():
    assert find("dgx-a100").cluster.world_size == 8
    where = find("dgx-a100", 32)
    assert (where.name, where.cluster.num_nodes) == ("dgx-a100", 4)
    assert where.cluster.stragglers == []  # its jitter
    assert find("dgx-a100", 8, 4).cluster.num_nodes == 2


def test_a_scenario_gives_its_cluster_its_collectives_and_its_stragglers(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "cluster:\n  machine: dgx-a100\n  world_size: 8\n"
        "  stragglers: [{kind: slow_rank, rank: 1, factor: 2}]\n"
        "collectives: {all_reduce: tree, cost: links}\n"
    )
    where = find(path)
    assert where.name == "mine"
    assert where.collectives.all_reduce.kind == "tree"
    assert [straggler.kind for straggler in where.cluster.stragglers] == ["slow_rank"]
    saved = tmp_path / "result.json"
    saved.write_text('{"scenario": {"name": "old", "cluster": {"machine": "dgx-1"}}}')
    with pytest.raises(ScenarioError, match="world_size"):
        find(saved)
    assert find(saved, 4).name == "old"


@for_each(
    ("text", "said"),
    [
        ("strategy: ddp\n", "has no cluster; it must be a mapping with cluster: ..."),
        ("- 1\n", "has no cluster; it must be a mapping with cluster: ..."),
        (
            "clustr: 1\ncluster: {machine: dgx-a100, world_size: 8}\n",
            "unknown key 'clustr'. Did you mean ",
        ),
        (
            "cluster: {machine: dgx-a100, world_size: 0}\n",
            "cluster.world_size: ",
        ),
        (
            "cluster: {machine: dgx-a100, world_size: 8}\ncollectives: {all_reduce: rign}\n",
            "collectives.all_reduce: unknown all_reduce 'rign'. Did you mean ",
        ),
        (
            "cluster: {machine: dgx-a100, world_size: 8}\n"
            "collectives: {cost: {kind: table, path: nowhere.log}}\n",
            "nowhere.log",
        ),
    ],
)
def test_a_wrong_cluster_is_one_line(tmp_path, text, said):
    path = tmp_path / "box.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        find(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: ")
    assert said in line


def test_a_cluster_that_is_nowhere_names_the_machines():
    with pytest.raises(
        ScenarioError, match=r"no such file, scenario or machine\. Did you mean 'dgx-a100'"
    ):
        find("dgx-a1000")


def test_a_picture_is_called_by_its_program_and_names_no_step(box):
    study = dist.launch(busy, 4, cluster=box).study(one_lane=True)
    with style():
        _, (ax,) = draw(CHARTS["timeline"].picture(study))
    words = [ax.get_xlabel(), *(text.get_text() for text in ax.texts)]
    assert ax.get_title(loc="left") == "Timeline of busy"
    assert not [word for word in words if "step" in word]
    assert any(word.startswith("all_reduce") for word in words)


def test_more_ranks_than_threads_can_serve_are_refused():
    with pytest.raises(ScenarioError) as caught:
        dist.launch(lambda rank: None, world_size=100_000)
    assert caught.value.problems == [
        "world_size: a rank program runs a thread for each rank, and 1024 of them at most, not "
        "100000; use python -m simdp collective for larger clusters."
    ]
