"""The benchmarks run on what the package is today, and count what they say; nothing is timed."""

import json
import subprocess
from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest
from for_each import for_each

from benchmarks import (
    answers,
    extrapolate,
    fabrics,
    growth,
    layers,
    mutants,
    network,
    processes,
    rank_traces,
    table,
    traces,
    traffic,
    validation,
)
from benchmarks.startup import FILES, MODULES, printed
from benchmarks.startup import ROOT as STARTUP_ROOT
from simdp.collectives.ring import RingAllReduce
from simdp.traces import read_trace

ROOT = Path(__file__).parents[1]
TABLE = "name,forward_us,weight_grad_us,input_grad_us,gradient_bytes\na,1,2,3,4000000\nb,1,5,1,80\n"


@for_each("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_every_script_can_be_imported_without_torch(path):
    import_module(f"benchmarks.{path.stem}")


def test_a_missed_target_fails_the_script(capsys):
    assert table.show("title", [("this", "1", "2", True)]) == 0
    assert table.show("title", [("this", "1", "2", True), ("that", "3", "2", False)]) == 1
    assert "NO" in capsys.readouterr().out


def test_fixed_problems_have_their_closed_forms_as_answers():
    rows = list(islice(answers.collective_rows(), 10))
    assert len({what for what, *_ in rows}) == 10
    assert all(reached for *_, reached in rows)


def test_a_wrong_answer_misses_its_target():
    assert not answers._row("this", 1.0, 1 + 1e-8, None, answers.EXACT)[-1]
    told = answers._row("that", 1e-6, 1e-6, 1001, answers.EXACT)
    assert told == ("that", "1,000.0 ns, off 0e+00; ASTRA-sim +0.1 %", "1e-09", True)


def test_steps_of_a_table_are_first_come_first_served(tmp_path):
    (tmp_path / "mine.csv").write_text(TABLE)
    given = network.tables([tmp_path / "mine.csv"])
    # a's gradient is there after 2 + 5 + 1 + 2 us, and waits for the all_reduce of b's.
    first, second = (14 * (0.5 + nbytes / 8 / 50e3) for nbytes in (80, 4e6))
    assert layers.fifo_step(given["mine"], 8) == pytest.approx(1e-6 * (2 + 5 + first + second))
    (row,) = islice(answers.step_rows(given, tmp_path), 1)
    assert row[-1]


def test_tables_default_to_the_projects_own():
    (read,) = network.tables([]).values()
    assert len(read) > 50
    assert sum(layer.nbytes for layer in read) == 4 * 25_557_032  # torchvision's resnet50


def test_a_table_that_cannot_be_read_is_an_error_of_one_line(tmp_path, monkeypatch, capsys):
    missing = str(tmp_path / "none.csv")
    monkeypatch.setattr("sys.argv", ["network", "--layers", missing])
    assert network.main() == 2
    said = capsys.readouterr().err
    assert missing in said
    assert said.count("\n") == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_whole_process_is_measured_and_its_answer_checked(tmp_path):
    (tmp_path / "job.csv").write_text(TABLE)
    listed = processes.jobs(layers.read_layers(tmp_path / "job.csv"), tmp_path)
    job = listed[3]._replace(seconds=1e9)
    (tmp_path / "job.yaml").write_text(json.dumps(job.raw))
    cost = processes.measured(tmp_path / "job.yaml")
    assert cost.seconds > 0
    assert 10 < cost.megabytes < 1000
    assert cost.step_time == pytest.approx(job.answer, rel=1e-9)
    assert processes.row(job, [cost])[-1]
    assert not processes.row(job, [cost._replace(step_time=2 * cost.step_time)])[-1]
    assert not processes.row(job._replace(seconds=0.0), [cost])[-1]


@pytest.mark.slow
def test_a_scenario_that_fails_says_why(tmp_path):
    (tmp_path / "job.yaml").write_text("{cluster: 1}")
    with pytest.raises(RuntimeError, match=r"job\.yaml failed: .*cluster"):
        processes.measured(tmp_path / "job.yaml")


def test_flows_on_shared_links_are_counted_and_take_their_closed_form():
    plan = RingAllReduce().plan(fabrics.RANKS, 25e6)
    played = fabrics.Played(fabrics.dealt_over_leaves(), plan, 1)
    assert played.shared
    assert played.transfers == 2 * 63 * 64
    assert fabrics.ring_on_a_fat_tree()[1].split(";")[0].endswith(("off 0e+00", "e-16", "e-15"))


def test_growth_runs_what_it_names():
    for kind, raw in (("ring", growth.flat(8, "ring")), ("hierarchical", growth.nodes(16))):
        growth.all_reduce(kind, raw)
    growth.unequal_ring(8)
    with pytest.raises(RuntimeError, match="should need no events"):
        growth.all_reduce("direct", growth.flat(8, "switch"))


def test_an_exponent_is_the_slope_on_log_log_axes():
    sizes = [2.0, 4.0, 8.0]
    assert growth.exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)


@for_each("world_size", [4, 8])
def test_a_copy_reads_and_writes_what_a_ring_must(world_size):
    plan = RingAllReduce().plan(world_size, 4 * traffic.NUM_ELEMENTS)
    # Every chunk is added n - 1 times (three accesses), and replaces n - 1 times (two).
    per_chunk = (world_size - 1) * (3 + 2) * traffic.NUM_ELEMENTS // 2
    assert traffic.copied_elements(plan) == per_chunk


def cluster(name, mean, worst=0.1, tau=0.95, count=10, noise=0.02):
    errors = {"mean_error": mean, "worst_error": worst, "tau": tau}
    return {"name": name, "num_predicted": count, "noise": noise, **errors}


def test_the_targets_of_a_cluster_follow_its_noise():
    names = [name for several in validation.GROUPS.values() for name in several]
    errors = {"HKBU": 0.06, "dgx-1": 0.02, "dgx-2": 0.10, "dgx-a100": 0.02}
    clusters = [cluster(name, errors.get(name, 0.01)) for name in names]
    clusters.append(cluster("lambda-v100", 0.09))
    rows = {what: reached for what, *_, reached in validation.cluster_rows(clusters)}
    assert not rows["HKBU: mean error, 10 steps"]
    assert rows["NVIDIA: mean error, 30 steps"]
    assert rows["Lambda: mean error, 10 steps"]
    noisy = [cluster(c["name"], c["mean_error"], noise=0.05, tau=0.8) for c in clusters]
    rows = {what: reached for what, *_, reached in validation.cluster_rows(noisy)}
    assert rows["HKBU: mean error, 10 steps"]
    assert not rows["HKBU: Kendall's tau"]


def test_tables_count_between_fitted_sizes_or_beyond_fitted_nodes():
    def row(table, ranks, role, nbytes, error):
        place = {"scenario": "box", "table": table, "collective": "all_reduce"}
        return {**place, "world_size": ranks, "role": role, "nbytes": nbytes, "error": error}

    points = [
        row(0, 2, "calibration", 1, 0.5),
        row(0, 2, "predicted", 2, -0.06),
        row(1, 16, "predicted", 1, 0.9),
        row(1, 16, "predicted", 2**26, 0.2),
        row(2, 2, "predicted", 2**26, 0.7),
    ]
    rows = list(validation.collective_rows(points))
    assert [(what, figure, reached) for what, figure, _, reached in rows] == [
        ("all_reduce between fitted sizes, mean of 1 tables", "6.0 %", True),
        ("all_reduce from 64 MiB, box, 16 ranks", "20.0 %", False),
    ]


MOST_FILES = 100
MOST_MODULES = 170


@pytest.mark.long
@pytest.mark.slow
def test_the_main_job_enters_few_files_with_those_that_it_imports():
    assert 0 < printed(STARTUP_ROOT, FILES) <= MOST_FILES
    assert 0 < printed(STARTUP_ROOT, MODULES) <= MOST_MODULES


def test_traces_that_are_made_to_be_read_are_read(tmp_path):
    traces.put(tmp_path / "t.json", 100_000)
    found = read_trace(tmp_path / "t.json")
    assert len(found.kernels) > 50
    assert (found.kernels.step == 0).all()
    assert len(found.host) == 2 * len(found.kernels) + 1
    (row,) = islice(traces.rows(tmp_path / "t.json"), 1)
    assert row[-1]


def test_rank_traces_are_counted(tmp_path):
    spans, files, _ = rank_traces.rows(2, tmp_path)
    assert spans[0].startswith("spans of 2 ranks: 4,")
    assert files[0].startswith("2 files, ")
    assert len(list(tmp_path.iterdir())) == 2


def test_each_operator_comparison_and_constant_gives_a_mutant():
    source = (
        "x = 2 * (a + 1) if not b else -0.5\ny = c is not d and e not in f or 3 < g != 'ü' // 0\n"
    )
    changed = [mutant.applied(source) for mutant in mutants.mutants("m.py", source)]
    first, second = source.splitlines(keepends=True)
    assert changed == [
        first.replace("*", "/") + second,
        first.replace("+", "-") + second,
        first.replace("1", "0") + second,
        first.replace("not", "") + second,
        first + second.replace("and", "or"),
        first + second.replace(" or ", " and "),
        first + second.replace("<", "<="),
        first + second.replace("!=", "=="),
        first + second.replace("//", "/"),
        first + second.replace("0", "1"),
    ]


ROOMS = ("distributed", "job")


def test_mutants_are_drawn_by_seed_from_the_named_rooms():
    first = mutants.drawn(5, 0, ROOMS)
    assert first == mutants.drawn(5, 0, ROOMS)
    assert first != mutants.drawn(5, 1, ROOMS)
    assert len(set(first)) == 5
    assert {mutant.module.split("/")[0] for mutant in first} <= {"distributed", "job"}


def test_a_room_has_the_tests_of_its_folder_those_of_the_module_first(tmp_path):
    tests = tmp_path / "tests"
    for name in ("engine/test_b.py", "engine/test_a.py", "engine/deep/test_c.py", "test_units.py"):
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).touch()
    assert mutants.room_tests("engine/b.py", tests) == [
        "tests/engine/test_b.py",
        "tests/engine/test_a.py",
    ]
    assert mutants.room_tests("engine/deep/er/x.py", tests) == ["tests/engine/deep/test_c.py"]
    assert mutants.room_tests("units.py", tests) == ["tests/test_units.py"]
    assert mutants.room_tests("none.py", tests) == []


@pytest.mark.slow
def test_mutants_are_tried_in_a_copy_with_links(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "kept").mkdir(parents=True)
    (root / "kept" / "a.txt").write_text("a")
    (root / "linked").symlink_to("kept")
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("b")
    subprocess.run(["git", "init", "--quiet"], check=True, cwd=root)
    monkeypatch.setattr(mutants, "ROOT", root)
    copy = mutants.copied(tmp_path / "copy")
    assert sorted(path.name for path in copy.iterdir()) == [".gitignore", "kept", "linked"]
    assert (copy / "linked").is_symlink()
    assert (copy / "linked" / "a.txt").read_text() == "a"


@pytest.mark.long
def test_a_mutant_is_killed_by_the_test_that_fails(tmp_path):
    copy = tmp_path / "copy"
    (copy / "tests").mkdir(parents=True)
    (copy / "simdp").mkdir()
    (copy / "simdp/units.py").write_text((ROOT / "simdp/units.py").read_text())
    reads = "from pathlib import Path\n\ndef test_equal():\n    assert "
    reads += (
        f"Path('simdp/units.py').read_text() == Path({str(ROOT / 'simdp/units.py')!r}).read_text()"
    )
    mutant = mutants.mutants("units.py", (ROOT / "simdp/units.py").read_text())[0]
    assert mutants.killer(copy, mutant) is None
    (copy / "tests/test_units.py").write_text(reads)
    assert mutants.killer(copy, mutant) == "tests/test_units.py::test_equal"
    assert (copy / "simdp/units.py").read_text() == (ROOT / "simdp/units.py").read_text()


def test_predictions_from_one_gpu_are_counted_by_network_and_target():
    made = extrapolate.Prediction("a", "a_resnet50", 8, "RDMA", -0.04, True, None)
    points = [made, made._replace(gpus=16, error=0.08, inside=False, entry=0.02)]
    drawn, missed = extrapolate.table("by network", points, lambda one: one.kind)
    assert (drawn.row_count, missed) == (1, 1)
    assert extrapolate.row("RDMA", points, 0.05) == [
        *("RDMA", "2", "8-16", "6.0%", "+8.0%", "50%", "2.0%", "1", "5% NO")
    ]
    assert extrapolate.table("by network", points[:1], lambda one: one.kind)[1] == 0
    pairs = extrapolate.single_gpus("*a6000_bert*.yaml")
    assert [one.machine for one in pairs] == ["lambda-a6000"]
