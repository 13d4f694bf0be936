"""One-device steps solved backwards: found again where a simulation made the steps."""

import io
import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import simdp
from simdp.cli import run_command_line
from simdp.errors import ScenarioError
from simdp.reports import validation_table
from simdp.results.metrics import to_json
from simdp.scenario import checked
from simdp.studies.calibrate.steps import Estimate, solve_baselines, weighted_mean

ROOT = Path(__file__).parents[3]
BASE = {
    "name": "box",
    "cluster": {"machine": "sia-rtx", "world_size": 2},
    "workload": {
        "model": {"kind": "parameters", "num_params": 20_000_000, "num_layers": 8},
        "microbatch": 8,
        "compute": {"kind": "measured", "points": [{"microbatch": 8, "step_time": "50 ms"}]},
    },
    "strategy": "ddp",
    "numerics": False,
}


def write(tmp_path, truth="40 ms", sizes=(1, 2, 8), **workload):
    """A scenario that says 50 ms, beside steps of a machine whose device takes another time."""
    points = []
    for n in sizes:
        raw = {**BASE, "cluster": {**BASE["cluster"], "world_size": n}}
        point = {"microbatch": 8, "step_time": truth}
        raw["workload"] = {**BASE["workload"], "compute": {"kind": "measured", "points": [point]}}
        seconds = simdp.simulate(checked(raw, tmp_path)).metrics["step_time_s"]
        points.append({"set": {"cluster.world_size": n}, "step_time": f"{seconds!r} s"})
    raw = {**BASE, "measured": {"source": "made up", "points": points}}
    raw["workload"] = {**BASE["workload"], **workload}
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_the_step_of_one_device_is_found_again_from_any_number_of_ranks(tmp_path):
    path = write(tmp_path)
    for ranks, used in ((None, 2), (2, 2), (8, 8)):
        (found,) = solve_baselines([path], ranks)
        assert (found.scenario, found.microbatch, found.world_size) == ("box", 8, used)
        assert found.given == 50e-3
        assert found.found == pytest.approx(40e-3, rel=1e-4)
        assert found.change == pytest.approx(-0.2, abs=1e-3)
        assert found.low < found.found < found.high


@pytest.mark.long
def test_a_sharded_step_may_be_shorter_than_that_of_one_device():
    """One device updates all parameters, a rank of eight an eighth of them."""
    path = ROOT / "scenarios" / "validation" / "mosaic" / "mosaic-h100_mpt-7b.yaml"
    (found,) = solve_baselines([path])
    measured = 6 * 8 / 41.574
    assert measured < found.found < 1.1 * measured


def test_it_is_told_in_a_table_and_as_json(tmp_path):
    found = solve_baselines([write(tmp_path)])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(validation_table.baselines(found))
    assert "-20.0 %" in console.export_text()
    (plain,) = json.loads(to_json(found))["baselines"]
    assert plain["given_s"] == 50e-3
    assert plain["microbatch"] == 8


def test_steps_of_one_rank_tell_nothing(tmp_path):
    path = write(tmp_path, sizes=(1,))
    with pytest.raises(ScenarioError, match="no measured step is of more than one rank; measure"):
        solve_baselines([path])
    with pytest.raises(ScenarioError, match="no measured step is of 4 ranks; measure one"):
        solve_baselines([path], 4)


def test_compute_must_be_measured(tmp_path):
    path = write(
        tmp_path, compute="roofline", model={"kind": "mlp", "widths": [4, 4]}, dataset="none"
    )
    with pytest.raises(ScenarioError, match="compute is not measured; give compute"):
        solve_baselines([path])


def test_a_step_shorter_than_its_communication_is_refused(tmp_path):
    path = write(tmp_path)
    raw = yaml.safe_load(path.read_text())
    raw["measured"]["points"] = [{"step_time": "2 ms"}]
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ScenarioError, match="only communication takes longer; calibrate the net"):
        solve_baselines([path])


def test_a_row_is_weighed_against_the_roofline_by_how_sure_each_is():
    """Aitken: of 2 and 8 with spreads as 1 to 2, the mean's logarithm is four parts to one."""
    found = weighted_mean([Estimate(2.0, 0.1), Estimate(8.0, 0.2)])
    assert found == pytest.approx(2.0 * 4 ** (1 / 5))
    assert weighted_mean([Estimate(2.0, 0.0), Estimate(8.0, 0.2)]) == 2.0


def test_weighed_it_lies_between_the_row_and_the_devices_figures(tmp_path):
    name = "mosaic/mosaic-a100-40_mpt-125m.yaml"
    (found,) = solve_baselines([ROOT / "scenarios/validation" / name], 8, weigh=True)
    assert found.found < found.weighted < found.by_roofline < 1.05 * found.found
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(validation_table.baselines([found]))
    text = " ".join(console.export_text().split())
    assert "weighted: their mean, by how sure each is." in text
    (plain,) = json.loads(to_json([found]))["baselines"]
    assert plain["weighted_s"] == found.weighted
    assert plain["by_roofline_s"] == found.by_roofline


def test_what_has_no_roofline_is_not_weighed(tmp_path):
    with pytest.raises(ScenarioError, match="roofline needs layers with FLOPs"):
        solve_baselines([write(tmp_path)], weigh=True)
    (found,) = solve_baselines([write(tmp_path)])
    assert found.weighted is None
    assert "weighted_s" not in json.loads(to_json([found]))["baselines"][0]


def test_the_command_weighs_if_asked_to(capsys):
    file = str(ROOT / "scenarios/validation/mosaic/mosaic-a100-40_mpt-125m.yaml")
    command = ["calibrate", "baseline", file, "--ranks", "8", "--json", "--weigh"]
    assert run_command_line(command) == 0
    (plain,) = json.loads(capsys.readouterr().out)["baselines"]
    assert "weighted_s" in plain
