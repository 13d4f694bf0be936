"""The command line: what it prints and writes, what it refuses, and with which exit status."""

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import rich.progress  # noqa: F401  binds the clock of its own before a test replaces ours
from for_each import for_each

import simdp
from simdp.__main__ import main
from simdp.cli import run_command_line
from simdp.cli.common import listed_values, overrides_of
from simdp.engine.run import Run
from simdp.errors import DeadlockError
from simdp.scenario.root import Scenario
from simdp.studies.families import families, kinds, places

pytestmark = pytest.mark.slow

TINY = """\
# How small can a scenario be?
cluster: {world_size: 2, device: a100-sxm4-80gb, topology: ring, link: nvlink3}
workload:
  model: {kind: mlp, widths: [4, 3]}
  dataset: {kind: regression, num_samples: 32}
  microbatch: 4
  steps: 3
"""
SWEEP = TINY + "sweep: {cluster.world_size: [1, 2]}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a scenario and a sweep."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("sweep.yaml").write_text(SWEEP)
    return tmp_path


@pytest.fixture
def say(here, capsys):
    """Run one command; return its status, standard output, and the lines on standard error."""

    def say(*arguments):
        status = run_command_line([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def files(folder="."):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def made():
    """Every file beside those that the fixture wrote."""
    return [name for name in files() if name not in ("tiny.yaml", "sweep.yaml")]


# run: files --------------------------------------------------------------------------------------


def test_run_writes_into_a_folder_of_the_scenarios_name(say):
    status, out, err = say("run", "tiny.yaml", "--no-plots")
    assert (status, err) == (0, [])
    assert made() == ["runs/tiny/result.json", "runs/tiny/trace.json"]
    assert "tiny: 2 ranks" in out
    assert out.splitlines()[-1] == "files in runs/tiny"


@pytest.mark.long
def test_run_validates_once_and_builds_a_run_for_each_simulation(say, monkeypatch):
    runs, validated = [], []
    start, validate = Run.__init__, Scenario.model_validate

    def build(self, scenario, *args, **keys):
        runs.append(scenario)
        start(self, scenario, *args, **keys)

    def check(raw, **keys):
        validated.append(raw)
        return validate(raw, **keys)

    monkeypatch.setattr(Run, "__init__", build)
    monkeypatch.setattr(Scenario, "model_validate", check)
    status, out, _ = say("run", "8gpu_ring", "--no-plots", "--set", "workload.steps=4")
    assert status == 0
    assert len(validated) == 1
    own, without_stragglers, *remedies = runs
    assert own.numerics
    assert without_stragglers.cluster.stragglers == []
    assert f"({len(remedies)} changes simulated" in out


def test_out_names_another_folder(say):
    status, out, _ = say("run", "tiny.yaml", "--no-plots", "--out", "some/where")
    assert status == 0
    assert made() == ["some/where/result.json", "some/where/trace.json"]
    assert "files in some/where" in out


def test_the_plots_that_fit_are_drawn(say):
    pytest.importorskip("simdp.reports.plots")
    assert say("run", "tiny.yaml", "--quiet")[0] == 0
    assert files("runs/tiny") == [
        "loss.png",
        "memory.png",
        "report.html",
        "result.json",
        "timeline.png",
        "trace.json",
    ]
    assert b"python -m simdp run tiny.yaml" in Path("runs/tiny/report.html").read_bytes()
    assert say("run", "sweep.yaml", "--quiet")[0] == 0
    assert "scaling.png" in files("runs/sweep")
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in Path("runs").rglob("*.png"))


def test_a_second_run_overwrites_the_first(say):
    say("run", "tiny.yaml", "--no-plots")
    say("run", "tiny.yaml", "--no-plots", "--set", "workload.steps=1")
    (point,) = json.loads(Path("runs/tiny/result.json").read_text())["points"]
    assert len(point["metrics"]["loss"]) == 1
    assert made() == ["runs/tiny/result.json", "runs/tiny/trace.json"]


def test_a_saved_result_runs_again_and_gives_the_same(say):
    say("run", "tiny.yaml", "--no-plots", "--out", "a")
    assert say("run", "a/result.json", "--no-plots", "--out", "b")[0] == 0
    assert Path("b/result.json").read_bytes() == Path("a/result.json").read_bytes()
    assert Path("b/trace.json").read_bytes() == Path("a/trace.json").read_bytes()


def test_the_trace_of_a_sweep_is_that_of_its_last_point(say):
    say("run", "sweep.yaml", "--no-plots")
    trace = json.loads(Path("runs/sweep/trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}


# run: --continue ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sweep_that_is_killed_goes_on_and_writes_the_files_of_one_that_was_not(say):
    assert say("run", "sweep.yaml", "--out", "whole", "--quiet")[0] == 0
    code = """
import os, sys
from simdp.studies.store import Store
put = Store.put
def once(self, *arguments):
    put(self, *arguments)
    os.kill(os.getpid(), 9)
Store.put = once
from simdp.cli import run_command_line
run_command_line(["run", "sweep.yaml", "--out", "part", "--quiet"])
"""
    path = str(Path(simdp.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == -9
    assert "result.json" not in files("part")
    status, _, err = say("run", "sweep.yaml", "--out", "part", "--continue")
    assert (status, err) == (0, ["points that were done already: 1"])
    assert files("part") == files("whole")
    for name in files("whole"):
        assert name == "points.sqlite" or (
            Path("part", name).read_bytes() == Path("whole", name).read_bytes()
        )


def test_a_run_without_a_sweep_has_nothing_to_go_on_with(say):
    wanted = "--continue: a run without a sweep has no points; see --save-state and --resume."
    assert say("run", "tiny.yaml", "--continue") == (2, "", [wanted])
    assert made() == []


# run: what is printed ----------------------------------------------------------------------------


def test_json_prints_the_result_and_nothing_else(say):
    status, out, err = say("run", "tiny.yaml", "--no-plots", "--json")
    assert (status, err) == (0, [])
    assert out == Path("runs/tiny/result.json").read_text()
    assert json.loads(out)["points"][0]["set"] == {}


def test_quiet_prints_nothing(say):
    assert say("run", "tiny.yaml", "--no-plots", "--quiet") == (0, "", [])
    assert len(made()) == 2


def test_verbose_adds_a_row_for_every_rank(say):
    _, short, _ = say("run", "tiny.yaml", "--no-plots")
    _, long, _ = say("run", "tiny.yaml", "--no-plots", "--verbose")
    assert "every rank" in long
    assert "every rank" not in short
    rows = long[long.index("every rank") : long.index("batches, device")].splitlines()
    assert [row.split()[0] for row in rows if row.split()[:1] in (["0"], ["1"])] == ["0", "1"]


def test_verbose_tells_the_slowest_ranks_where_there_are_stragglers(say):
    slow = (
        "cluster.stragglers=[{kind: lognormal, sigma: 0.2}, {kind: slow_rank, rank: 0, factor: 2}]"
    )
    _, out, _ = say("run", "tiny.yaml", "--no-plots", "--verbose", "--set", slow)
    assert "without lognormal:" in out
    assert "the slowest of each step: " in out
    _, out, _ = say("run", "tiny.yaml", "--no-plots", "--verbose")
    assert "slowest" not in out


def test_verbose_prints_the_shapes_of_each_devices_batches(say):
    _, out, _ = say("run", "tiny.yaml", "--no-plots", "--verbose")
    rows = [row.split() for row in out[out.index("batches, device") :].splitlines()]
    assert ["1-3", "0-1", "[4,", "4]", "[4,", "3]"] in rows


def test_a_sweep_prints_a_row_for_each_point(say):
    _, out, _ = say("run", "sweep.yaml", "--no-plots")
    rows = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert rows.index("1") + 1 == rows.index("2")


# run: --save-weights -----------------------------------------------------------------------------


def test_save_weights_stores_what_rank_0_has_learned(say):
    assert say("run", "tiny.yaml", "--no-plots", "--save-weights", "out/w.npz")[0] == 0
    learned = simdp.simulate(simdp.load_scenario("tiny.yaml")).replicas[0]
    with np.load("out/w.npz") as stored:
        assert stored.files == list(learned)
        for name, array in learned.items():
            np.testing.assert_array_equal(stored[name], array)
            assert stored[name].dtype == array.dtype


def test_saved_weights_are_where_the_next_run_begins(say):
    epoch, more, next_step = (("--set", f"workload.steps={n}") for n in (4, 5, 1))
    say("run", "tiny.yaml", "--no-plots", *epoch, "--save-weights", "w.npz")
    say("run", "tiny.yaml", "--no-plots", *more, "--out", "one")
    again = "--set", "workload.weights=w.npz"
    assert say("run", "tiny.yaml", "--no-plots", *next_step, *again, "--out", "two")[0] == 0
    one, two = (json.loads(Path(f, "result.json").read_text())["points"] for f in ("one", "two"))
    assert two[0]["metrics"]["loss"] == one[0]["metrics"]["loss"][4:]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["sweep.yaml"], "a sweep trains many models"),
        (["tiny.yaml", "--set", "numerics=false"], "numerics: false trains none"),
    ],
)
def test_save_weights_is_refused_where_there_are_none(say, arguments, reason):
    status, out, (line,) = say("run", *arguments, "--save-weights", "w.npz")
    assert (status, out) == (2, "")
    assert line.startswith(f"--save-weights: {reason}")
    assert made() == []


def test_weights_that_cannot_be_written_leave_nothing_behind(say):
    Path("file").write_text("in the way")
    status, _, err = say("run", "tiny.yaml", "--no-plots", "--save-weights", "file/w.npz")
    assert (status, len(err)) == (2, 1)
    assert made() == ["file"]


def test_files_that_cannot_be_written_leave_no_weights_behind(say):
    Path("file").write_text("in the way")
    status, _, err = say(
        "run", "tiny.yaml", "--no-plots", "--save-weights", "w/w.npz", "--out", "file/out"
    )
    assert (status, len(err)) == (2, 1)
    assert made() == ["file"]


# run: --fabric ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fabric", ["auto", "event", "vector"])
def test_the_fabric_may_be_chosen_and_the_result_says_which_one_played(say, fabric):
    status, out, _ = say("run", "tiny.yaml", "--no-plots", "--json", "--fabric", fabric)
    network = json.loads(out)["points"][0]["network"]
    assert (status, network["fabric"]) == (0, "event" if fabric == "auto" else fabric)
    assert fabric == "auto" or network["why"] == "as asked for"


def test_every_point_of_a_sweep_plays_on_the_fabric_that_was_asked_for(say):
    _, out, _ = say("run", "sweep.yaml", "--no-plots", "--json", "--fabric", "vector")
    points = json.loads(out)["points"]
    assert {point["network"]["fabric"] for point in points} == {"vector"}


def test_the_summary_says_which_clock_played_and_why(say):
    ring = ("--set", "collectives.all_reduce=ring")
    _, out, _ = say("run", "tiny.yaml", "--no-plots", "--verbose", *ring)
    assert "event fabric: no link is shared, only" in out


def test_the_vectorised_fabric_is_refused_where_a_link_is_shared_and_unknown_ones_always(say):
    shared = ("--set", "cluster.topology=switch", "--set", "collectives.all_reduce=direct")
    more = ("--set", "cluster.world_size=4", "--fabric")
    status, _, (line,) = say("run", "tiny.yaml", "--no-plots", *shared, *more, "vector")
    assert status == 2
    assert line.startswith("fabric 'vector' is not exact here: the link from ")
    assert line.endswith(" is shared; use 'event' or 'auto'.")
    status, _, (line,) = say("run", "tiny.yaml", "--no-plots", *more, "vectr")
    assert status == 2
    known = "Did you mean 'vector'? Known: auto, event, vector."
    assert line == f"--fabric: unknown fabric 'vectr'. {known}"
    assert made() == []


# run: --require-fit ------------------------------------------------------------------------------

BIG = ("--set", "workload.model.widths=[512, 512]")
SMALL_DEVICE = ("--set", 'cluster.device.memory="1 MB"')


def test_a_model_that_does_not_fit_is_a_warning(say):
    status, _, (line,) = say("run", "tiny.yaml", "--no-plots", *BIG, *SMALL_DEVICE)
    assert status == 0
    assert line.startswith("warning: the model does not fit")
    (point,) = json.loads(Path("runs/tiny/result.json").read_text())["points"]
    assert point["metrics"]["fits_memory"] is False


def test_require_fit_turns_the_warning_into_status_3(say):
    command = ("run", "tiny.yaml", "--no-plots", "--quiet", "--require-fit", *BIG)
    assert say(*command)[0] == 0
    status, out, err = say(*command, *SMALL_DEVICE)
    assert (status, out, len(err)) == (3, "", 1)
    assert len(made()) == 2


def test_a_warning_says_how_much_memory_is_needed_and_what_would_fit(say):
    _, _, (line,) = say("run", "tiny.yaml", "--no-plots", *BIG, *SMALL_DEVICE)
    assert " needs 3.18 MB of 1 MB, however many ranks there are; nothing that was tried" in line
    *_, tried = line.split("fits: ")
    assert tried.startswith("recompute: blocks needs 3.1")
    assert tried.endswith(" on these 2; use larger devices, or more with fsdp.")
    enough = ("--set", 'cluster.device.memory="2.7 MB"', "--set", "workload.microbatch=4")
    _, _, (line,) = say("run", "tiny.yaml", "--no-plots", *BIG, *enough)
    assert line.split("; ")[1].startswith("strategy zero2 needs 2.6")
    assert "nothing" not in line


def test_a_warning_names_the_point_of_a_sweep_and_the_last_one_what_would_fit(say):
    _, _, err = say("run", "sweep.yaml", "--no-plots", *BIG, *SMALL_DEVICE)
    assert len(err) == 2
    assert "world_size" in err[0]
    assert "tried" not in err[0]
    assert "tried" in err[1]


# --set -------------------------------------------------------------------------------------------


def resolved(out):
    return json.loads(out)["scenario"]


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("seed=7", ("seed",), 7),
        ("cluster.world_size=1", ("cluster", "world_size"), 1),
        ("workload.model.widths=[4, 5, 3]", ("workload", "model", "widths"), [4, 5, 3]),
        ("workload.optimizer={kind: sgd, lr: 1e-4}", ("workload", "optimizer", "lr"), 1e-4),
        ("strategy={kind: ddp, overlap: false}", ("strategy", "overlap"), False),
        ("cluster.link.alpha=2 us", ("cluster", "link", "alpha"), "2 us"),
        ("workload.loss=mse", ("workload", "loss", "kind"), "mse"),
        ("workload.shuffle=true", ("workload", "shuffle"), True),
    ],
)
def test_set_takes_yaml_values(say, setting, path, value):
    status, out, err = say("run", "tiny.yaml", "--no-plots", "--json", "--set", setting)
    assert (status, err) == (0, [])
    found = resolved(out)
    for key in path:
        found = found[key]
    assert found == value


def test_several_settings_act_in_their_order(say):
    slow = "cluster.stragglers=[{kind: slow_rank, rank: 1, factor: 3}]"
    inner = "cluster.stragglers.0.factor=2"
    _, out, _ = say("run", "tiny.yaml", "--no-plots", "--json", "--set", slow, "--set", inner)
    assert resolved(out)["cluster"]["stragglers"][0]["factor"] == 2


def test_a_new_kind_drops_the_options_of_the_old_one(say):
    sgd = "workload.optimizer={kind: sgd, momentum: 0.9}"
    adam = ("--set", sgd, "--set", "workload.optimizer.kind=adam")
    status, out, _ = say("run", "tiny.yaml", "--no-plots", "--json", *adam)
    assert status == 0
    assert resolved(out)["workload"]["optimizer"]["kind"] == "adam"
    assert "momentum" not in resolved(out)["workload"]["optimizer"]


@for_each(
    ("setting", "part"),
    [
        ("cluster.world_size", "is not KEY=VALUE; write for example cluster.world_size=4."),
        ("=4", "is not KEY=VALUE"),
        ("cluster.world_size=[", "--set cluster.world_size:1: is not valid YAML"),
        ("cluster.world_size=2: 3: 4", "is not valid YAML"),
        ("name=a=b", "name: 'a=b'"),
        ("cluster.world_size=two", "cluster.world_size: 'two' is not a whole number."),
        ("cluster.wold_size=2", "Did you mean 'world_size'?"),
        ("cluster.world_size.more=2", "cluster.world_size is 2, which has no keys inside."),
        ("workload.model.widths.7=2", "the list has 2 entries, so '7' is none; count from 0."),
        ("workload.model.widths.last=2", "so 'last' is none"),
        ("cluster.link.bandwidth=25", '25 has no unit; write for example "25 GB/s".'),
        ("sweep={cluster.world_size: [one]}", "'one' is not a whole number"),
        ("sweep={1: [2]}", "sweep"),
        ("workload.model.kind=[mlp]", "workload.model"),
        ("strategy={kind: {ddp: 1}}", "strategy"),
        (f"workload.microbatch={10**400}", "workload.microbatch"),
    ],
)
def test_a_bad_setting_is_one_line(say, setting, part):
    status, out, (line,) = say("run", "tiny.yaml", "--set", setting)
    assert (status, out) == (2, "")
    assert part in line
    assert made() == []


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "Missing argument"),
        (["run", "none.yaml"], "none.yaml: there is no such file."),
        (["run", "."], "is a folder; name a file in it."),
        (["run", "tiny.yaml", "--nonsense"], "No such option"),
        (["run", "tiny.yaml", "more.yaml"], "unexpected extra argument"),
        (["run", "tiny.yaml", "--set"], "requires an argument"),
        (["dance"], "No such command 'dance'"),
        (["check"], "Missing argument"),
        (["list", "topology"], "Did you mean 'topologies'?"),
        (["list", "nonsense"], "unknown family 'nonsense'; known: activations, "),
    ],
)
def test_wrong_usage_is_one_line(say, arguments, part):
    status, out, (line,) = say(*arguments)
    assert (status, out) == (2, "")
    assert part in line
    assert made() == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("cluster: [1,\n", "bad.yaml:2: is not valid YAML"),
        ("a: 1\na: 2\n", "bad.yaml:2: is not valid YAML: the key 'a' is given twice."),
        ("", "bad.yaml: is not a scenario"),
        ("- 1\n", "bad.yaml: is not a scenario"),
        (
            TINY + "speed: 3\n",
            "bad.yaml: unknown key 'speed'. Did you mean 'seed'? Known: name, seed, cluster, ",
        ),
        (TINY.replace("steps", "stesp"), "Did you mean 'steps'?"),
        (TINY.replace("topology: ring", "topology: rign"), "Did you mean 'ring'?"),
        (TINY.replace("nvlink3", "nvlink33"), "Did you mean 'nvlink3'?"),
    ],
)
def test_a_wrong_scenario_is_one_line_that_begins_with_its_file(say, text, part):
    Path("bad.yaml").write_text(text)
    status, out, (line,) = say("run", "bad.yaml")
    assert (status, out) == (2, "")
    assert line.startswith("bad.yaml")
    assert part in line
    assert made() == ["bad.yaml"]


def test_every_problem_has_a_line_of_its_own(say):
    text = TINY.replace("ring", "rign").replace("steps", "stesp").replace("mlp", "nlp")
    Path("bad.yaml").write_text(text)
    status, _, err = say("run", "bad.yaml")
    assert (status, len(err)) == (2, 3)
    assert all(line.startswith("bad.yaml: ") for line in err)


def test_a_missing_data_file_is_named_as_it_was_given(say):
    npz = "workload.dataset={kind: npz, path: none.npz}"
    status, _, (line,) = say("run", "tiny.yaml", "--set", npz)
    assert status == 2
    assert line.startswith("tiny.yaml: workload.dataset")
    assert " none.npz: there is no such file." in line


@pytest.mark.parametrize("out", ["file", "file/inside"])
def test_a_file_in_the_way_of_the_results_is_one_line(say, out):
    Path("file").write_text("in the way")
    status, printed, (line,) = say("run", "tiny.yaml", "--no-plots", "--out", out)
    assert (status, printed) == (2, "")
    assert line.startswith(f"{out}: ")
    assert made() == ["file"]
    assert Path("file").read_text() == "in the way"


def test_a_fault_while_writing_leaves_nothing_half_written(say, monkeypatch):
    def fail(result):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simdp.reports.chrome_trace.write", fail)
    status, _, (line,) = say("run", "tiny.yaml", "--no-plots")
    assert status == 2
    assert line == "runs/tiny: cannot be written to: No space left on device."
    assert made() == []


def test_a_deadlock_is_status_4_and_names_who_waits(say, monkeypatch):
    def stuck(*arguments, **options):
        raise DeadlockError(["rank 0 waits in all_reduce 'bucket 0' for rank 1 to enter"])

    monkeypatch.setattr("simdp.studies.sweep.sweep", stuck)
    status, out, (line,) = say("run", "tiny.yaml")
    assert (status, out) == (4, "")
    assert line == "deadlock: rank 0 waits in all_reduce 'bucket 0' for rank 1 to enter"
    assert made() == []


def test_our_own_fault_is_not_disguised(say, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr("simdp.studies.sweep.sweep", broken)
    with pytest.raises(ZeroDivisionError):
        say("run", "tiny.yaml")


def test_an_interrupted_run_says_so(say, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("simdp.studies.sweep.sweep", interrupted)
    assert say("run", "tiny.yaml") == (130, "", ["stopped"])


# The border --------------------------------------------------------------------------------------


def python(*arguments, stdout=subprocess.PIPE, **options):
    """Run the command line in a process of its own."""
    path = str(Path(simdp.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "simdp", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **options},
    )
    return done.returncode, done.stderr.splitlines()


LIBRARIES = {
    *("numpy", "scipy", "yaml", "pydantic", "typer", "rich", "matplotlib", "simpy"),
    *("pyarrow", "pandas", "torch", "dask", "distributed", "optuna", "jinja2", "pint"),
}
PLUGIN = """
from helper import NAME
from simdp.strategies.ddp import DDP
class Mine(DDP):
    kind: str = NAME
"""


@pytest.fixture
def decoys(here):
    """Files of the current folder that are called as modules of Python and of libraries are.

    Those that Python itself imports before a module of ``-m`` are left out.
    """
    # -S: an editable install imports some more, which a plain one does not.
    command = [sys.executable, "-S", "-c", "import runpy, sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    loaded = {*done.stdout.split(), "__main__", "sitecustomize"}
    for name in (LIBRARIES | sys.stdlib_module_names) - loaded:
        Path(f"{name}.py").write_text(f"open('ran', 'a').write('{name} ')\nraise RuntimeError")


def test_no_module_of_the_current_folder_is_run(decoys):
    options = "--no-plots", "--quiet", "--workers", "2"
    assert python("run", "sweep.yaml", *options, "--table", "x.csv") == (0, [])
    assert not Path("ran").exists()


@pytest.mark.long
def test_nor_is_one_where_pictures_are_drawn(decoys):
    assert python("run", "tiny.yaml", "--quiet") == (0, [])
    assert not Path("ran").exists()


def test_the_script_does_not_look_in_the_current_folder(here, monkeypatch):
    monkeypatch.setattr("sys.argv", ["simdp", "check", "tiny.yaml"])
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(SystemExit):
        main()
    assert not {"", str(here)} & set(sys.path)


def test_a_plug_in_of_the_current_folder_is_found_in_every_process(here):
    Path("helper.py").write_text("NAME = 'last:Mine'")
    Path("last.py").write_text(PLUGIN)
    options = "--set", "strategy=last:Mine", "--no-plots", "--quiet", "--workers", "2"
    assert python("run", "sweep.yaml", *options) == (0, [])


def test_output_that_finds_no_room_is_one_line(here):
    full = ["standard output: cannot be written to: No space left on device."]
    with Path("/dev/full").open("w") as nowhere:
        assert python("run", "tiny.yaml", "--no-plots", "--json", stdout=nowhere) == (2, full)


def test_a_name_that_the_output_cannot_spell_is_escaped(here):
    Path("é.yaml").write_text(TINY)
    assert python("check", "é.yaml", PYTHONIOENCODING="ascii") == (0, [])


def test_streams_that_are_closed_are_done_without(here, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    assert run_command_line(["check", "tiny.yaml"]) == 0
    assert run_command_line(["check", "none.yaml"]) == 2
    for stream in (sys.stdout, sys.stderr):  # of which nobody else knows
        stream.close()


def test_an_interrupt_while_modules_are_read_says_so(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "simdp.cli", Interrupting("simdp.cli"))
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capfd.readouterr().err == "stopped\n"


class Interrupting(types.ModuleType):
    def __getattr__(self, name):
        raise KeyboardInterrupt


def test_too_little_memory_is_one_line(say, monkeypatch):
    def full(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("simdp.studies.sweep.sweep", full)
    line = "not enough memory; try fewer ranks, steps or samples."
    assert say("run", "tiny.yaml") == (2, "", [line])


def test_a_fault_of_a_file_of_ours_is_not_taken_for_the_outputs(say, monkeypatch):
    def broken(*arguments, **options):
        raise OSError(5, "Input/output error", "a file of ours")

    monkeypatch.setattr("simdp.studies.sweep.sweep", broken)
    with pytest.raises(OSError, match="a file of ours"):
        say("run", "tiny.yaml")


def test_of_very_many_problems_the_first_are_told(say):
    stragglers = "[" + "{kind: x}, " * 60 + "{kind: x}]"
    status, _, err = say("check", "tiny.yaml", "--set", f"cluster.stragglers={stragglers}")
    assert (status, len(err)) == (2, 51)
    assert err[-1] == "and 11 more problems"


def test_a_key_without_an_end_is_refused(say):
    status, _, (line,) = say("check", "tiny.yaml", "--set", "a" + ".a" * 33 + "=1")
    assert status == 2
    assert line.endswith(": leads through 33 keys; there are 32 at most.")


# check, list, help -------------------------------------------------------------------------------


def test_check_prints_a_line_for_each_valid_file(say):
    status, out, err = say("check", "tiny.yaml", "sweep.yaml")
    assert (status, err) == (0, [])
    assert out.splitlines() == ["tiny.yaml: valid, 1 point", "sweep.yaml: valid, 2 points"]
    assert made() == []


def test_check_goes_on_after_a_wrong_file(say):
    Path("bad.yaml").write_text(TINY.replace("ring", "rign"))
    status, out, err = say("check", "bad.yaml", "tiny.yaml", "none.yaml")
    assert status == 2
    assert out == "tiny.yaml: valid, 1 point\n"
    assert [line.split(":")[0] for line in err] == ["bad.yaml", "none.yaml"]


def test_check_takes_settings(say):
    assert say("check", "tiny.yaml", "--set", "workload.steps=0")[0] == 2


def test_list_gives_every_kind_of_every_family_an_entry(say):
    status, out, err = say("list")
    assert (status, err) == (0, [])
    assert [line.split()[:2] for line in out.splitlines() if not line.startswith(" ")] == [
        [family, kind] for family, members in families().items() for kind in members
    ]


@pytest.mark.long
@for_each("family", families())
def test_list_of_one_family_says_what_its_kinds_are(say, family):
    status, out, _ = say("list", family)
    assert status == 0
    words = (f"{family} {kind} {about}" for kind, about in families()[family].items())
    assert out.split() == " ".join(words).replace("`", "").split()


@for_each("family", [name for name in families() if name != "constants"])
def test_list_where_names_the_file_and_the_class_of_every_kind(family):
    root = Path(__file__).parents[1]
    found = places(family)
    assert list(found) == [kind for kind in kinds(family) if kind in found]
    assert found
    for place in found.values():
        file, _, name = place.partition(": ")
        assert (root / file).is_file()
        assert not name or f"class {name}(" in (root / file).read_text("utf-8")


def test_list_where_prints_the_places(say):
    status, out, err = say("list", "topologies", "--where")
    assert (status, err) == (0, [])
    words = (f"topologies {kind} {place}" for kind, place in places("topologies").items())
    assert out.split() == " ".join(words).split()
    assert "constants" not in say("list", "--where")[1]


def test_list_where_refuses_a_family_without_code(say):
    status, out, err = say("list", "constants", "--where")
    assert (status, out) == (2, "")
    assert err == ["--where: the family 'constants' has no classes or files; leave out --where"]


def test_help_is_for_reading(say):
    status, out, err = say("--help")
    assert (status, err) == (0, [])
    for command in ("run", "check", "list", "schema"):
        assert any(line.split()[:1] == [command] for line in out.splitlines())


def test_no_command_at_all_prints_the_help(say):
    assert say() == say("--help")


# gallery -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_gallery_draws_its_pictures_and_names_them(say, monkeypatch):
    pytest.importorskip("simdp.reports.plots")
    pictures = (("tiny", "timeline"), ("tiny", "loss"), ("sweep", "scaling"))
    measured = ("measured", ".", "simulated_against_measured")
    monkeypatch.setattr("simdp.studies.gallery.PICTURES", pictures)
    monkeypatch.setattr("simdp.studies.gallery.VALIDATIONS", (measured,))
    monkeypatch.setattr("simdp.studies.gallery.COMPARISONS", {"tiny": ("single", "ddp")})
    point = "{set: {cluster.world_size: 2}, step_time: 1 ms}"
    Path("validation").mkdir()
    Path("validation/one.yaml").write_text(
        f"{Path('tiny.yaml').read_text()}\nmeasured: {{source: made up, points: [{point}]}}\n"
    )
    status, out, _ = say("gallery", "--scenarios", ".", "--out", "pictures")
    wanted = [f"pictures/{name}_{kind}.png" for name, kind in pictures]
    wanted.append("pictures/tiny_comparison.png")
    wanted.append("pictures/measured_simulated_against_measured.png")
    assert (status, out.splitlines()) == (0, wanted)
    assert [path for path in made() if path.endswith(".png")] == sorted(wanted)


def test_gallery_shows_scenarios_that_are_there():
    gallery = pytest.importorskip("simdp.studies.gallery")
    charts = pytest.importorskip("simdp.reports.charts")
    scenarios = Path(__file__).parents[1] / "scenarios"
    for name, kind in gallery.PICTURES:
        assert (scenarios / f"{name}.yaml").is_file()
        assert kind in charts.CHARTS
    for name in gallery.COMPARISONS:
        assert (scenarios / f"{name}.yaml").is_file()
    for _, folder, kind in gallery.VALIDATIONS:
        assert (scenarios / "validation" / folder).is_dir()
        assert kind in charts.CHARTS


# Lines on standard error -------------------------------------------------------------------------


@pytest.mark.parametrize("tty", [False, True])
def test_a_problem_is_one_line_that_a_terminal_gets_broken_between_words(here, monkeypatch, tty):
    stream = Terminal() if tty else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "40")
    assert run_command_line(["check", "tiny.yaml", "--set", "strategy=dpp"]) == 2
    said = stream.getvalue().splitlines()
    assert (len(said) > 1) == tty
    assert " ".join(said).startswith(
        "tiny.yaml: strategy: unknown strategy 'dpp'. Did you mean 'ddp'? "
    )
    if tty:
        assert all(len(line) <= 40 for line in said)


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_who_reads_no_further_is_no_fault_of_ours(here, monkeypatch):
    monkeypatch.setattr("simdp.cli._silence_output", lambda: None)
    for command in (["list", "devices"], ["run", "tiny.yaml", "--no-plots"]):
        monkeypatch.setattr("sys.stdout", ClosedPipe())
        assert run_command_line(command) == 0


# The progress bar --------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def progress(here, monkeypatch):
    """Run with a terminal as standard error; return what it shows."""

    def progress(seconds_per_look, *options, term="xterm", tty=True):
        looks = iter(range(10**6))
        stream = Terminal() if tty else io.StringIO()
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("time.monotonic", lambda: next(looks) * seconds_per_look)
        assert run_command_line(["run", "tiny.yaml", "--no-plots", *options]) == 0
        return stream.getvalue()

    return progress


def test_a_run_of_more_than_a_second_shows_its_progress(progress):
    shown = progress(0.6)
    assert "tiny" in shown
    assert "100%" in shown


def test_a_short_run_shows_no_progress(progress):
    assert progress(0.1) == ""


def test_no_progress_when_silence_is_asked_for(progress):
    assert progress(0.6, "--quiet") == ""


def test_no_progress_where_nobody_looks(progress):
    assert progress(0.6, tty=False) == ""


def test_a_dumb_terminal_stays_clean_after_a_short_run(progress):
    assert progress(0.1, term="dumb") == ""


def test_traces_writes_a_file_per_rank_for_tools_that_read_torchs(say):
    assert say("run", "tiny.yaml", "--no-plots", "--quiet", "--traces")[0] == 0
    written = [f"traces/rank{rank}.1.pt.trace.json.gz" for rank in range(2)]
    assert [name for name in files("runs/tiny") if name.startswith("traces")] == written


def test_ranks_chooses_whose_traces_are_written(say):
    status, _, _ = say("run", "sweep.yaml", "--no-plots", "--quiet", "--traces", "--ranks", "1")
    assert status == 0
    assert "traces/rank1.1.pt.trace.json.gz" in files("runs/sweep")
    assert "traces/rank0.1.pt.trace.json.gz" not in files("runs/sweep")


@for_each(
    ("options", "reason"),
    [
        (["--ranks", "0"], "--ranks: says whose --traces to write; add it, or leave it out."),
        (
            ["--traces", "--ranks", "3-1"],
            "--ranks: '3-1' is no list of ranks; write such as 0-7 or 0,3,8-15, all below 1048576.",
        ),
        (
            ["--traces", "--ranks", "0-x"],
            "--ranks: '0-x' is no list of ranks; write such as 0-7 or 0,3,8-15, all below 1048576.",
        ),
        (["--traces", "--ranks", "0,2"], "traces: there is no rank 2; the run has ranks 0 to 1."),
    ],
)
def test_ranks_that_are_none_are_refused_before_the_run(say, options, reason):
    assert say("run", "tiny.yaml", *options) == (2, "", [reason])
    assert not Path("runs").exists()


def test_settings_take_the_names_of_drivers():
    names = "cluster.device=[NVIDIA L4, t4-16gb]", "cluster.device.1=Tesla T4", "name=Tesla T4"
    assert overrides_of([*names]) == {
        "cluster.device": ["l4-24gb", "t4-16gb"],
        "cluster.device.1": "t4-16gb",
        "name": "Tesla T4",
    }
    swept = listed_values("--over", ["cluster.device=Tesla T4,abacus,l4-24gb"], "")
    assert swept == {"cluster.device": ["t4-16gb", "abacus", "l4-24gb"]}
