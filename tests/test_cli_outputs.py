"""Outputs of every command: refused before the work, in any folder, nothing left of another run."""

import json
import os
import sqlite3
import typing
from importlib import import_module
from pathlib import Path

import pytest
import typer
import yaml
from small_scenario import MINIMAL

from simdp.cli import run_command_line
from simdp.cli.commands import COMMANDS
from simdp.errors import ScenarioError
from simdp.files import check_outputs
from simdp.files.documents import PART
from simdp.files.records import RecordFile
from tests.studies.replay.kineto_job import Job

INPUTS = {
    *("--cluster", "--machine", "--against", "--resume", "--compute", "--for", "--scenarios"),
}
"""Options with a path that is read."""

SWEEP = {**MINIMAL, "sweep": {"cluster.world_size": [1, 2]}}
MEASURED = {**MINIMAL, "measured": {"source": "a bench", "points": [{"step_time": "100 us"}]}}
STEPS = {
    "model": {"kind": "parameters", "num_params": 1000},
    "microbatch": 1,
    "steps": 100,
    "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "2 s"}]},
}
BOX = {
    **MINIMAL["cluster"],
    "world_size": 2,
    "devices_per_node": 2,
    "inter_node": {"topology": "switch", "link": {"alpha": "9 us", "bandwidth": "1 GB/s"}},
}
FILES = {
    "one.yaml": MINIMAL,
    "sweep.yaml": SWEEP,
    "measured.yaml": MEASURED,
    "days.yaml": {**MINIMAL, "workload": STEPS},
    "box.yaml": {**MINIMAL, "cluster": BOX, "target": {"samples": 1e6}},
}
LOG = Path(__file__).parent / "golden/nccl/h100-sxm-400g_2x1_all_reduce.csv"
ROWS = (
    "model,machine,gpus,microbatch,precision,strategy,step_time\nvgg16,dgx-a100,8,64,full,ddp,9 s"
)
PROGRAM = "import simdp.distributed as dist\ndist.init_process_group()\ndist.barrier()\n"
SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 4, device="cuda")).square().mean().backward()
optimizer.step()
"""

JOB = ["job", "days.yaml", "--runs", "2", "--workers", "1", "--no-plots"]
COMPARE = ["compare", "one.yaml", "--over", "strategy=single,ddp", "--no-plots"]
EXTRAPOLATE = ["extrapolate", "one.yaml", "--gpus", "2", "--on", "dgx-a100", "--no-plots"]
VALIDATE = ["validate", "measured.yaml", "--no-plots"]
RUN = ["run", "one.yaml", "--no-plots"]
OF_SWEEP = ["run", "sweep.yaml", "--no-plots"]
DIAGNOSE = [
    *("diagnose", "--step", "320ms", "--comm", "40%", "--gpus", "8", "--no-remedies"),
    *("--device", "a100-sxm4-80gb", "--model", "bert-large"),
]
LOGS = ["calibrate", "nccl-tests", str(LOG), "--link", "nvlink4"]
INIT = ["init", "--machine", "dgx-a100", "--model", "bert-base", "--gpus", "8"]

WRITES = {
    ("run", "--out"): (RUN, "studies.sweep:sweep"),
    ("run", "--save-weights"): (RUN, "studies.sweep:sweep"),
    ("run", "--save-state"): ([*RUN, "--stop-after", "1"], "studies.sweep:sweep"),
    ("run", "--store"): (OF_SWEEP, "studies.sweep:sweep"),
    ("run", "--table"): (OF_SWEEP, "studies.sweep:sweep"),
    ("compare", "--out"): (COMPARE, "studies.compare:compare"),
    ("compare", "--store"): (COMPARE, "studies.compare:compare"),
    ("compare", "--table"): (COMPARE, "studies.compare:compare"),
    ("job", "--out"): (JOB, "studies.job:job"),
    ("job", "--store"): (JOB, "studies.job:job"),
    ("plan", "--out"): (["plan", "box.yaml", "--choose", "nodes=1:2"], "studies.plan:plan"),
    ("collective", "--out"): (
        ["collective", "all_reduce", "--cluster", "one.yaml", "--sizes", "1KiB"],
        "studies.collective:answer",
    ),
    ("diagnose", "--out"): (DIAGNOSE, "studies.diagnose.reported:diagnose_reported"),
    ("diagnose", "--html"): (DIAGNOSE, "studies.diagnose.reported:diagnose_reported"),
    ("audit", "--html"): (["audit", "one.yaml"], "studies.audit:audit_scenario"),
    ("replay", "--out"): (["replay", "rank0.json"], "studies.replay:replay_of"),
    ("extrapolate", "--out"): (EXTRAPOLATE, "studies.extrapolate:extrapolate"),
    ("extrapolate", "--store"): (EXTRAPOLATE, "studies.extrapolate:extrapolate"),
    ("exec", "--out"): (["exec", "program.py"], "distributed.launch:run_script"),
    ("torchrun", "--out"): (["torchrun", "train.py"], "torch.launch:run"),
    ("torchrun", "--record"): (["torchrun", "train.py"], "torch.launch:run"),
    ("probe", "--out"): (["probe"], "probes.plan:read_options"),
    ("validate", "--out"): (VALIDATE, "studies.validate:validate"),
    ("validate", "--store"): (VALIDATE, "studies.validate:validate"),
    ("calibrate nccl-tests", "--out"): (LOGS, "studies.calibrate.nccl_tests:calibrate_nccl_tests"),
    ("calibrate ddp", "--out"): (
        ["calibrate", "ddp", "measured.yaml"],
        "studies.calibrate.ddp:calibrate_ddp",
    ),
    ("calibrate rows", "--out"): (
        ["calibrate", "rows", "rows.csv"],
        "studies.calibrate.rows:scenarios_from_table",
    ),
    ("compare-results", "--out"): (
        ["compare-results", "a", "b"],
        "studies.compare_results:compare_results",
    ),
    ("init", "--out"): (INIT, "studies.first_scenario:first_scenario"),
    ("gallery", "--out"): (["gallery"], "studies.gallery:draw_gallery"),
    ("schema", "--out"): (["schema"], "studies.schema:text"),
}
"""Words of a command that writes, and what it calls to simulate, by the command and the option."""

ENDINGS = {
    **dict.fromkeys(["--store"], ".sqlite"),
    **dict.fromkeys(["--table"], ".csv"),
    **dict.fromkeys(["--save-weights", "--save-state"], ".npz"),
    **dict.fromkeys(["--html"], ".html"),
    **dict.fromkeys(["--record"], ".yaml"),
    **dict.fromkeys([("diagnose", "--out"), ("schema", "--out")], ".json"),
    **dict.fromkeys([("replay", "--out"), ("init", "--out")], ".yaml"),
}
"""How the names end of options that name a file; the others name a folder."""


def ending(command, option):
    return ENDINGS.get((command, option), ENDINGS.get(option, ""))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an input for every command."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(yaml.safe_dump(content))
    Path("rows.csv").write_text(ROWS)
    Path("program.py").write_text(PROGRAM)
    Path("train.py").write_text(SCRIPT)
    Job().write(tmp_path / "rank0.json")
    return tmp_path


def functions():
    """Every command and its function."""
    for name, command in COMMANDS.items():
        module, _, member = command.home.partition(":")
        found = getattr(import_module(f"simdp.cli.{module}"), member)
        if not isinstance(found, typer.Typer):
            yield name, found
            continue
        for inner in found.registered_commands:
            called = inner.name or inner.callback.__name__.replace("_", "-")
            yield (name if called == name else f"{name} {called}"), inner.callback


def path_options(function):
    """Options of a command that take a path, by their names on the command line."""
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        notes = getattr(hint, "__metadata__", ())
        if not any(isinstance(note, typer.models.OptionInfo) for note in notes):
            continue
        kind = hint.__origin__
        if kind is Path or Path in typing.get_args(kind):
            (note,) = notes
            words = [note.default, *(note.param_decls or ())]  # typer takes the first as a default
            named = [word for word in words if str(word).startswith("--")]
            yield named[0] if named else f"--{name.replace('_', '-')}"


def test_every_option_that_names_an_output_is_tried_here():
    found = {(name, option) for name, made in functions() for option in path_options(made)}
    assert {(name, option) for name, option in found if option not in INPUTS} == set(WRITES)


def with_option(command, words, option, place):
    """Words with an option before the arguments, among which a script may have its own."""
    first = len(command.split())
    return [*words[:first], option, str(place), *words[first:]]


def refused(words, capsys):
    """The line of a command that refuses its output, which must leave nothing behind."""
    before = sorted(Path().rglob("*"))
    status = run_command_line([str(word) for word in words])
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    (line,) = err.splitlines()
    assert sorted(Path().rglob("*")) == before
    return line


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), WRITES)
def test_an_output_is_refused_before_anything_is_simulated(
    command, option, here, capsys, monkeypatch
):
    words, work = WRITES[command, option]
    if command == "torchrun":
        pytest.importorskip("torch")
    module, _, function = work.partition(":")

    def simulate(*_, **__):
        raise AssertionError(f"{work} was called")

    monkeypatch.setattr(import_module(f"simdp.{module}"), function, simulate)
    name = f"x2{ending(command, option)}"
    Path("taken").write_text("of mine")
    Path("nowhere").symlink_to(here / "missing")
    Path("folder", name).mkdir(parents=True)
    places = [f"taken/{name}", f"nowhere/{name}"]
    places += [] if ending(command, option) else ["taken", "nowhere"]
    places += [f"folder/{name}"] if ending(command, option) not in ("", ".sqlite") else []
    for place in places:
        line = refused(with_option(command, words, option, place), capsys)
        assert "is no folder; name one to " in line or ": is a folder; name a file " in line
        assert Path(place).name in line or str(Path(place).parent) in line

    def denied(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("simdp.files.documents.tempfile.mkstemp", denied)
    line = refused(with_option(command, words, option, f"new/{name}"), capsys)
    assert "cannot be written to: Permission denied." in line
    assert Path("taken").read_text() == "of mine"


LONG = [pair for pair in WRITES if pair not in {("run", "--out"), ("job", "--out")}]
UNTRIED = {("probe", "--out"), ("gallery", "--out"), ("calibrate ddp", "--out")}
"""Commands that take minutes, or need constants to fit."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(*pair, marks=pytest.mark.long if pair in LONG else ())
        for pair in WRITES
        if pair not in UNTRIED
    ],
)
def test_a_folder_with_a_dot_and_a_link_to_a_folder_are_written_to(command, option, here, capsys):
    words, _ = WRITES[command, option]
    if command == "torchrun":
        pytest.importorskip("torch")
    if command == "compare-results":
        for name in "ab":
            assert run_command_line([*RUN, "--out", name]) == 0
    Path("real").mkdir()
    Path("linked.v2").symlink_to(here / "real")
    for folder in ("x2.v1", "linked.v2"):
        end = ending(command, option)
        place = Path(folder, f"file{end}") if end else Path(folder)
        status = run_command_line(with_option(command, words, option, place))
        err = capsys.readouterr().err
        assert status in (0, 3), err  # an audit may find something
        assert place.is_file() if end else any(place.glob("*.*"))
    assert list(Path("real").iterdir())


@pytest.mark.slow
def test_a_sweep_goes_on_in_a_folder_with_a_dot(here, capsys):
    for more in ((), ("--continue",)):
        assert run_command_line([*OF_SWEEP, "--out", "x2.v1", *more]) == 0
    assert "points that were done already: 2" in capsys.readouterr().err
    assert {path.name for path in Path("x2.v1").iterdir()} == {
        *("points.sqlite", "result.json", "trace.json")
    }


def test_a_full_disk_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    def full(handle, *more, **options):
        os.fdopen = fdopen
        return open("/dev/full", *more, buffering=0, closefd=True)  # noqa: PTH123

    fdopen = os.fdopen
    monkeypatch.setattr("simdp.files.documents.os.fdopen", full)
    with pytest.raises(ScenarioError, match="cannot be written to: No space left on device"):
        check_outputs(tmp_path / "new/folder/file")
    assert list(tmp_path.iterdir()) == []


def test_a_check_leaves_a_file_as_it_is(tmp_path):
    place = tmp_path / "file"
    place.write_text("old")
    check_outputs(place, None, tmp_path / "new/file")
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_a_store_that_is_read_only_is_refused_when_it_is_opened(tmp_path, monkeypatch):
    place, connect = tmp_path / "points.sqlite", sqlite3.connect
    from simdp.studies.store import Store

    with Store(place) as store:
        store.put("a", {})
    monkeypatch.setattr(
        "simdp.files.records.sqlite3.connect",
        lambda path, **more: connect(f"file:{path}?mode=ro", uri=True, **more),
    )
    with pytest.raises(ScenarioError, match=r"points.sqlite: cannot be written to: .*readonly"):
        RecordFile(place)


# Files of another run ----------------------------------------------------------------------------


@pytest.mark.slow
def test_files_of_an_earlier_run_do_not_stay_beside_a_new_result(here, capsys):
    into = ["--out", "x", "--quiet"]
    assert run_command_line(["run", "sweep.yaml", *into]) == 0
    drawn = {path.name for path in Path("x").iterdir()}
    assert {"report.html", "scaling.png"} <= drawn
    for name in ("mine.png", "notes.html", "traces/mine.json"):
        Path("x", name).parent.mkdir(exist_ok=True)
        Path("x", name).write_text("of mine")
    assert run_command_line([*RUN, *into, "--traces"]) == 0
    assert len(list(Path("x/traces").glob("rank*"))) == 4
    assert run_command_line([*RUN, *into]) == 0
    assert {str(path.relative_to("x")) for path in Path("x").rglob("*") if path.is_file()} == {
        *("points.sqlite", "result.json", "trace.json"),
        *("mine.png", "notes.html", "traces/mine.json"),
    }
    assert len(json.loads(Path("x/result.json").read_text())["points"]) == 1


EARLIER = {
    "run": (RUN, ["report.html", "loss.png", "traces/rank3.1.pt.trace.json.gz"]),
    "compare": (COMPARE, ["report.html", "comparison.png"]),
    "job": (JOB, ["report.html", "weights.npz", "weights-3.npz", "job_strip.png"]),
    "plan": (WRITES["plan", "--out"][0], ["option-99.yaml"]),
    "extrapolate": (EXTRAPOLATE, ["report.html"]),
    "validate": (VALIDATE, ["report.html", "throughput_a100.png", "reliability.png"]),
    "collective": ([*WRITES["collective", "--out"][0], "--no-plots"], ["bandwidth.png"]),
    "exec": ([*WRITES["exec", "--out"][0], "--no-plots"], ["timeline.png"]),
    "calibrate": ([*LOGS, "--no-plots"], ["fit.png"]),
}
"""Files that a command may have written before and does not write now."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.long if name != "job" else ()) for name in EARLIER],
)
def test_each_command_removes_only_what_it_wrote_itself(command, here):
    words, names = EARLIER[command]
    for name in [*names, "mine.yaml", "mine.png", "other.json"]:
        Path("x", name).parent.mkdir(parents=True, exist_ok=True)
        Path("x", name).write_text("old")
    assert run_command_line([*words, "--out", "x"]) == 0
    left = [path.name for path in Path("x").rglob("*") if path.is_file()]
    assert not [name for name in names if Path(name).name in left]
    assert {"mine.yaml", "mine.png", "other.json"} <= set(left)
    assert not list(Path("x").glob(f".*{PART}"))
    assert not Path("x/traces").exists()
