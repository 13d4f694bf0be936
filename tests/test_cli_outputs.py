"""Outputs of every command: refused before the work, in any folder, nothing left of another run."""

import gzip
import json
import os
import re
import sqlite3
import typing
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest
import typer
import yaml
from for_each import for_each
from small_scenario import MINIMAL

import simdp.cli
from simdp.cli import run_command_line
from simdp.cli.commands import COMMANDS
from simdp.cli.common import MARKS, OUTPUTS, check_folder
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
    ("replay", "--out"): (["replay", "rank0.json"], "studies.replay.scenario:replay_of"),
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


@for_each(("command", "option"), list(WRITES))
def test_an_empty_output_is_refused(command, option, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in dict.fromkeys([option, option.replace("--out", "-o")]):
        line = refused(with_option(command, WRITES[command, option][0], name, ""), capsys)
        assert line == f"{option} is empty; give a value, or leave it out (an unset variable?)."
    line = refused(["run", ""], capsys)
    assert line == "SCENARIO is empty; give a value, or leave it out (an unset variable?)."


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


NEW = {
    "run": (RUN, []),
    "compare": (COMPARE, []),
    "job": (JOB, ["weights.npz", "weights-3.npz"]),
    "plan": (WRITES["plan", "--out"][0], ["option-99.yaml"]),
    "extrapolate": (EXTRAPOLATE, []),
    "validate": (VALIDATE, []),
    "collective": ([*WRITES["collective", "--out"][0], "--no-plots"], []),
    "exec": ([*WRITES["exec", "--out"][0], "--no-plots"], []),
    "calibrate": ([*LOGS, "--no-plots"], []),
    "compare-results": (["compare-results", "a", "b", "--no-attribution"], []),
}
"""Commands that write to a folder of a run, and what else they remove from it."""

OF_ANY = [name.replace("*", "3") for name in [*OUTPUTS, "loss.png", "fit.png"]]
"""Files that some command of simdp writes."""


def put_earlier(name):
    """Write a file as an earlier run would have."""
    place, mark = Path("x", name), MARKS.get(Path(name).suffix, b"old")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress(mark) if place.suffix == ".gz" else mark)
    return place.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.long if name != "collective" else ()) for name in NEW],
)
def test_each_command_removes_the_files_of_every_other_and_only_them(command, here):
    if command == "compare-results":
        assert [run_command_line([*RUN, "--out", name, "--quiet"]) for name in "ab"] == [0, 0]
    words, names = NEW[command]
    earlier = {name: put_earlier(name) for name in [*OF_ANY, *names]}
    for name in ("mine.yaml", "mine.png", "other.json"):
        Path("x", name).write_text("old")
    assert run_command_line([*words, "--out", "x"]) == 0
    for name, content in earlier.items():
        place = Path("x", name)
        assert not place.exists() or place.read_bytes() != content, name
    assert {"mine.yaml", "mine.png", "other.json"} <= {path.name for path in Path("x").iterdir()}
    assert not list(Path("x").glob(f".*{PART}"))
    assert not Path("x/traces").exists()
    check_folder(Path("x"), "result.json")  # what it wrote bears simdp's mark


@pytest.mark.parametrize("name", OF_ANY)
def test_a_file_that_simdp_did_not_write_is_never_removed(name, here, capsys):
    place = Path("x", name)
    put_earlier(name)
    place.write_text("<p>of mine</p>")
    assert run_command_line([*RUN, "--out", "x"]) == 2
    assert capsys.readouterr().err == (
        f"{place}: was not written by simdp, and would be replaced or removed; choose another "
        "folder with --out.\n"
    )
    assert place.read_text() == "<p>of mine</p>"
    place.write_text("")
    check_folder(Path("x"), "result.json")  # nothing is lost


@pytest.mark.parametrize("command", [name for name in NEW if (name, "--out") in WRITES])
def test_every_command_refuses_such_a_folder_before_the_work(command, here, monkeypatch, capsys):
    words, work = WRITES[command, "--out"]
    module, _, name = work.partition(":")
    module = import_module(f"simdp.{module}")
    monkeypatch.setattr(module, name, lambda *a, **b: pytest.fail("worked"))
    Path("x").mkdir()
    Path("x/report.html").write_text("<p>of mine</p>")
    assert run_command_line([*words, "--out", "x"]) == 2
    assert "x/report.html: was not written by simdp" in capsys.readouterr().err


def test_a_file_that_the_command_reads_is_not_removed(here, capsys):
    assert run_command_line([*RUN, "--out", "x", "--traces"]) == 0
    for words in (["job", "x/result.json"], ["compare-results", "x", "y"]):
        assert run_command_line([*words, "--out", "x"]) == 2
        assert "x/result.json: is read by this command, and" in capsys.readouterr().err
    Path("x/result.json").unlink()
    assert run_command_line(["extrapolate", "x/traces", "--gpus", "2", "--out", "x"]) == 2
    assert "x/traces/rank0.1.pt.trace.json.gz: is read by" in capsys.readouterr().err
    check_folder(Path("x"), "result.json", Path("x/result.json"))  # it is written anew


def test_the_table_names_every_file_that_a_command_writes():
    written = re.compile(r'\badd\(\s*"([^"]+)"')
    sources = Path(simdp.cli.__file__).parent.glob("*.py")
    names = {name for path in sources for name in written.findall(path.read_text())}
    known = [*OUTPUTS, "timeline.png"]
    assert len(names) > 8
    assert not [name for name in names if not any(fnmatch(name, one) for one in known)]
    assert {Path(name).suffix for name in OF_ANY} == set(MARKS)
