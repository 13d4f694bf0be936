"""The public names: the few lines of Python that README promises, and what an import costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.reports import chrome_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
RING = ROOT / "scenarios" / "8gpu_ring.yaml"
SMALL = {
    "cluster.world_size": 4,
    "workload.model.widths": [32, 16, 10],
    "workload.dataset.num_samples": 256,
    "workload.microbatch": 8,
    "workload.steps": 4,
}


def python(*arguments):
    """Run Python in a process of its own, from the repository."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def result():
    return simdp.simulate(simdp.load_scenario(RING, SMALL))


def test_a_scenario_loads_with_overrides():
    scenario = simdp.load_scenario(str(RING), {"cluster.world_size": 4})
    assert isinstance(scenario, simdp.Scenario)
    assert scenario.cluster.world_size == 4
    assert simdp.load_scenario(RING).cluster.world_size == 8


def test_a_result_has_metrics_replicas_and_spans(result):
    assert isinstance(result, simdp.Result)
    assert result.metrics["step_time_s"] > 0
    assert len(result.replicas) == result.world_size == 4
    assert result.replicas[0]["layers.0.weight"].shape == (16, 32)
    assert list(result.replicas[0]) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
    ]
    span = result.trace.spans[0]
    assert (span.rank, span.lane, span.activity) == (0, "compute", "forward")
    assert 0 <= span.start < span.end


def test_replicas_are_equal_bit_for_bit_in_spite_of_the_straggler(result):
    assert result.metrics["replicas_identical"] is True
    for replica in result.replicas[1:]:
        for name, array in result.replicas[0].items():
            assert replica[name].tobytes() == array.tobytes()
            assert replica[name] is not array


def test_training_without_numerics_takes_the_same_time():
    timed = simdp.simulate(simdp.load_scenario(RING, {**SMALL, "numerics": False}))
    trained = simdp.simulate(simdp.load_scenario(RING, SMALL))
    assert list(timed.trace.spans) == list(trained.trace.spans)
    assert timed.replicas is None


def test_simulate_refuses_a_sweep():
    scenario = simdp.load_scenario(ROOT / "scenarios" / "ring_vs_tree.yaml")
    with pytest.raises(ValueError, match=r"the scenario has a sweep; use simdp\.sweep\(scenario\)"):
        simdp.simulate(scenario)


def test_a_sweep_gives_a_study():
    chosen = {**SMALL, "numerics": False, "sweep": {"cluster.world_size": [4, 8]}}
    study = simdp.sweep(simdp.load_scenario(RING, chosen))
    assert isinstance(study, simdp.Study)
    assert [point.world_size for point in study.points] == [4, 8]


def test_the_same_scenario_and_seed_give_the_same_bytes(result):
    noise = {"cluster.stragglers": [{"kind": "lognormal", "sigma": 0.2}]}
    for overrides in (SMALL, {**SMALL, **noise, "collectives.all_reduce": "tree"}):
        one, two = (simdp.sweep(simdp.load_scenario(RING, overrides)) for _ in range(2))
        assert one.to_json() == two.to_json()
        assert chrome_trace.write(one.points[0]) == chrome_trace.write(two.points[0])
        for name, array in one.points[0].replicas[0].items():
            assert array.tobytes() == two.points[0].replicas[0][name].tobytes()


def test_another_process_gives_the_same_bytes(tmp_path):
    settings = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]
    command = ["run", str(RING), *settings, "--no-plots", "--quiet", "--out", str(tmp_path)]
    done = python("-m", "simdp", *command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    here = simdp.sweep(simdp.load_scenario(RING, SMALL))
    assert (tmp_path / "result.json").read_text() == here.to_json()
    assert (tmp_path / "trace.json").read_text() == chrome_trace.write(here.points[0])


def test_another_seed_gives_other_numbers_and_the_same_times(result):
    other = simdp.simulate(simdp.load_scenario(RING, {**SMALL, "seed": 1}))
    assert other.metrics["loss"] != result.metrics["loss"]
    assert other.metrics["step_time_s"] == result.metrics["step_time_s"]


def test_a_result_keeps_its_scenario_without_absolute_paths(result):
    text = json.dumps(result.scenario)
    assert str(ROOT) not in text
    assert result.scenario["cluster"]["world_size"] == 4
    assert result.scenario["cluster"]["link"]["bandwidth"].endswith("B/s")


def test_errors_have_one_root():
    for error in (simdp.ScenarioError, simdp.DeadlockError):
        assert issubclass(error, simdp.SimdpError)
    with pytest.raises(simdp.ScenarioError, match="there is no such file"):
        simdp.load_scenario("none.yaml")


def test_a_result_is_not_changed_by_what_is_done_with_another(result):
    before = {name: array.copy() for name, array in result.replicas[0].items()}
    simdp.simulate(simdp.load_scenario(RING, SMALL))
    for name, array in before.items():
        np.testing.assert_array_equal(result.replicas[0][name], array)


# A process of its own


def test_import_brings_in_nothing_heavy():
    heavy = "{'numpy', 'pydantic', 'matplotlib', 'pint', 'rich', 'scipy', 'simpy', 'typer', 'yaml'}"
    done = python("-c", f"import sys, simdp; print(sorted({heavy} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_simulating_brings_in_no_plots():
    done = python("-c", "import sys, simdp; simdp.simulate; print('matplotlib' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_blas_runs_on_one_thread_unless_the_user_says_otherwise():
    code = "import os, simdp; print(os.environ['OMP_NUM_THREADS'])"
    assert python("-c", code).stdout in ("1\n", os.environ.get("OMP_NUM_THREADS", "1") + "\n")
    chosen = python("-c", "import os; os.environ['OMP_NUM_THREADS'] = '3'; " + code)
    assert chosen.stdout == "3\n"


def test_the_module_runs():
    done = python("-m", "simdp", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: python -m simdp" in done.stdout


def test_the_module_exits_with_the_commands_status():
    done = python("-m", "simdp", "run", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "none.yaml: there is no such file.\n"


def test_a_path_or_the_name_of_a_shipped_scenario_is_simulated():
    path = ROOT / "scenarios" / "methods.yaml"
    named = simdp.simulate("methods").metrics
    assert named["step_time_s"] == simdp.simulate(path).metrics["step_time_s"]
    assert simdp.sweep("methods").points[0].metrics["step_time_s"] == named["step_time_s"]
    with pytest.raises(simdp.ScenarioError, match="Did you mean '8gpu_ring'"):
        simdp.simulate("8gpu_rin")


@for_each("function", [simdp.simulate, simdp.sweep])
@for_each("given", [None, 8, {"cluster": {}}])
def test_what_is_no_scenario_is_a_type_error_that_says_what_to_do(function, given):
    wanted = "must be a Scenario, a path or the name of a shipped scenario, got .* use simdp.load_"
    with pytest.raises(TypeError, match=wanted):
        function(given)


def test_testing_needs_torch_only_when_it_is_used():
    code = "import sys, simdp.testing as t; print(t.__all__, 'torch' in sys.modules)"
    done = python("-c", code)
    assert (done.stdout, done.stderr) == ("['assert_data_parallel'] False\n", "")
