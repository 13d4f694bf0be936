"""A script's times are those of its recording as a scenario, which any run can play again."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import simdp  # noqa: E402

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def simulated(runner, folder, steps, *flags):
    """Run the timed script for so many steps; its virtual time [s]."""
    sizes = ["--cluster", "dgx-a100", "--nproc-per-node", "2"]
    runner(
        "sampler",
        "simdp",
        folder,
        script=str(HERE / "scripts" / "timed_mlp.py"),
        args=[str(steps)],
        flags=[*sizes, "--json", "--no-plots", *flags],
    )
    return json.loads((folder / "out.txt").read_text())["simulated_s"]


def test_a_recorded_script_is_a_scenario_of_the_same_times(runner, tmp_path):
    few = simulated(runner, tmp_path / "few", 3, "--record", "job.yaml")
    many = simulated(runner, tmp_path / "many", 7)
    step = (many - few) / 4
    scenario = simdp.load_scenario(tmp_path / "few" / "job.yaml", {"cluster.stragglers": []})
    assert scenario.cluster.world_size == 2
    assert scenario.strategy.kind == "ddp"
    assert scenario.workload.microbatch == 16
    assert scenario.workload.optimizer.kind == "sgd"
    names = [call.layer.name for call in scenario.workload.graph.calls]
    assert {"loss._log_softmax", "loss.nll_loss_forward"} <= set(names)
    result = simdp.simulate(scenario)
    assert result.metrics["step_time_s"] == pytest.approx(step, rel=0.02)


@pytest.mark.parametrize(
    ("body", "record", "told"),
    [
        ("", "job.yaml", "--record: no module ran forward under gradients on rank 0"),
        ("", "job", "--record job: a scenario's name ends in .yaml; write job.yaml."),
    ],
)
def test_what_cannot_be_recorded_is_refused(body, record, told, runner, tmp_path):
    script = tmp_path / "empty.py"
    script.write_text(f"import torch\n{body}")
    with pytest.raises(AssertionError, match="record") as caught:
        runner(
            "sampler",
            "simdp",
            tmp_path / "run",
            script=str(script),
            flags=["--record", record, "--no-plots"],
        )
    assert told in str(caught.value)
