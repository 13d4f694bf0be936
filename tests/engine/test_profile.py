"""Models that bring their times: steps equal closed forms, and nothing is invented."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.engine.compute.profile_times import ProfileTimes
from simdp.engine.compute.roofline import Roofline
from simdp.results.memory import MEMORY_PARTS, usage
from simdp.scenario import checked, load_scenario

ROOT = Path(__file__).parents[2]
ALPHA, BANDWIDTH = 500e-9, 50e9
STREAM = 0.85 * 2039e9
"""Bytes per second that updates reach on the device below."""
CLUSTER = {
    "world_size": 8,
    "device": "a100-sxm4-80gb",
    "topology": "ring",
    "link": {"alpha": "500 ns", "bandwidth": "50 GB/s"},
}
SPLIT = "name,forward_us,weight_grad_us,input_grad_us,gradient_bytes"
WHOLE = "name,forward_us,backward_us,gradient_bytes"

LAYERS = [  # name, forward, weight_grad, input_grad, gradient bytes
    ("stem", 130, 323, 129, 37632),
    ("body", 35, 75, 36.5, 4_000_000),
    ("norm", 2.25, 3, 1, 0),
    ("tail", 60, 20, 250, 9_000_000),
    ("head", 11, 5, 7, 8192),
]


def ring(nbytes, n):
    """2(n-1) rounds of one n-th each."""
    return 2 * (n - 1) * (ALPHA + nbytes / (n * BANDWIDTH))


def fifo(layers, n):
    """A step in which gradients are reduced one by one, in the order in which they are ready."""
    now = sum(layer[1] for layer in layers) / 1e6
    link = 0.0
    for number, (_, _, weight_grad, input_grad, nbytes) in reversed(list(enumerate(layers))):
        now += weight_grad / 1e6
        if nbytes:
            link = max(now, link) + ring(nbytes, n)
        now += input_grad / 1e6 if number else 0.0
    return max(now, link)


@pytest.fixture
def scenario(tmp_path):
    """Make a scenario of a table and of some keys that differ."""

    def scenario(rows, header=SPLIT, cluster=(), workload=(), **top):
        lines = [header, "# in microseconds", *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "layers.csv").write_text("\n".join(lines))
        model = {"kind": "profile", "path": "layers.csv"}
        workload = {"model": model, "optimizer": "none", "microbatch": 4, **dict(workload)}
        top = {"strategy": {"kind": "ddp", "bucket_cap": "0 B"}, **top}
        top = {"collectives": {"cost": "links"}, **top}
        return checked(
            {"cluster": {**CLUSTER, **dict(cluster)}, "workload": workload, **top}, tmp_path
        )

    return scenario


def metrics(scenario):
    return simdp.simulate(scenario).metrics


@for_each("n", [2, 8, 64])
@for_each("scale", [1, 0.01])
def test_a_step_is_first_come_first_served(scenario, n, scale):
    layers = [(name, *(scale * us for us in times), size) for name, *times, size in LAYERS]
    found = metrics(scenario(layers, cluster={"world_size": n}))
    assert found["step_time_s"] == pytest.approx(fifo(layers, n), rel=1e-12)
    assert found["bucket_bytes"] == [8192, 9_000_000, 4_000_000, 37632]


def test_a_single_column_of_backward_makes_gradients_ready_at_its_end(scenario):
    rows = [(name, f, w + i, size) for name, f, w, i, size in LAYERS]
    layers = [(name, f, w + i, 0, size) for name, f, w, i, size in LAYERS]
    found = metrics(scenario(rows, WHOLE))
    assert found["step_time_s"] == pytest.approx(fifo(layers, 8), rel=1e-12)


def test_the_first_layers_input_needs_no_gradient(scenario):
    rows = [(*LAYERS[0][:3], 1e6, LAYERS[0][4]), *LAYERS[1:]]
    assert metrics(scenario(rows)) == metrics(scenario(LAYERS))


def test_buckets_wait_for_all_of_their_layers(scenario):
    found = metrics(scenario(LAYERS, strategy={"kind": "ddp", "bucket_cap": "1 GB"}))
    compute = sum(f + w + i for _, f, w, i, _ in LAYERS[1:]) + sum(LAYERS[0][1:3])
    whole = sum(layer[-1] for layer in LAYERS)
    assert found["step_time_s"] == pytest.approx(compute / 1e6 + ring(whole, 8), rel=1e-12)


def test_without_overlap_everything_is_reduced_after_backward(scenario):
    strategy = {"kind": "ddp", "bucket_cap": "0 B", "overlap": False}
    found = metrics(scenario(LAYERS, strategy=strategy))
    compute = sum(f + w + i for _, f, w, i, _ in LAYERS[1:]) + sum(LAYERS[0][1:3])
    wanted = compute / 1e6 + sum(ring(layer[-1], 8) for layer in LAYERS if layer[-1])
    assert found["step_time_s"] == pytest.approx(wanted, rel=1e-12)


def test_a_straggler_stretches_the_times_of_the_file(scenario):
    slow = [{"kind": "slow_rank", "rank": 3, "factor": 1.5}]
    rows = [(name, f, w, 0, size) for name, f, w, _, size in LAYERS]
    slower = [(name, 1.5 * f, 1.5 * w, 0, size) for name, f, w, _, size in LAYERS]
    found = metrics(scenario(rows, cluster={"stragglers": slow}))
    assert found["step_time_s"] == pytest.approx(fifo(slower, 8), rel=1e-12)


def test_the_device_and_the_batch_do_not_change_the_times(scenario):
    one = metrics(scenario(LAYERS))
    other = metrics(scenario(LAYERS, cluster={"device": "t4-16gb"}, workload={"microbatch": 8}))
    assert other["step_time_s"] == one["step_time_s"]
    assert other["throughput_samples_per_s"] == 2 * one["throughput_samples_per_s"]


def test_samples_are_counted_without_a_data_set(scenario):
    found = metrics(scenario(LAYERS, workload={"steps": 3, "grad_accum": 2}))
    assert found["throughput_samples_per_s"] == pytest.approx(8 * 8 / found["step_time_s"])
    assert len(found["lr"]) == 3
    assert len(metrics(scenario(LAYERS))["lr"]) == 2  # one to warm up, one steady


def test_a_global_batch_is_cut_over_the_ranks(scenario):
    found = metrics(scenario(LAYERS, workload={"microbatch": None, "global_batch": 20}))
    assert found["throughput_samples_per_s"] == pytest.approx(20 / found["step_time_s"])
    # 20 samples in pieces of 3 leave the last rank with nothing to compute.
    assert found["compute_s"] * 8 == pytest.approx(7 * sum_of_compute(), rel=1e-12)


def test_join_ends_with_the_last_rank_that_has_samples(scenario):
    """As in an epoch: the run's last step closes the only one."""
    join = {"kind": "ddp", "bucket_cap": "0 B", "join": True}
    batch = {"microbatch": None, "global_batch": 20}
    chosen = scenario(LAYERS, workload=batch, strategy=join)
    assert ("broadcast", 6) in chosen.calls()
    labels = [span.name for span in simdp.simulate(chosen).trace.spans if span.step == 1]
    assert "parameters 0" in labels


def sum_of_compute():
    return (sum(f + w + i for _, f, w, i, _ in LAYERS[1:]) + sum(LAYERS[0][1:3])) / 1e6


def test_a_data_set_gives_an_epoch_its_length(scenario):
    data = {"kind": "regression", "num_samples": 96}
    found = metrics(scenario(LAYERS, workload={"dataset": data, "epochs": 2}))
    assert len(found["lr"]) == 2 * 3


@for_each(("optimizer", "passes"), [("none", 0), ("sgd", 3), ("adam", 7)])
def test_the_optimizer_takes_its_bytes_over_the_bandwidth(scenario, optimizer, passes):
    found = metrics(scenario(LAYERS, workload={"optimizer": optimizer}))
    nbytes = sum(layer[-1] for layer in LAYERS)
    assert found["update_s"] == pytest.approx(passes * nbytes / STREAM, rel=1e-12)


def test_memory_is_counted_from_bytes(scenario):
    rows = [(*layer, 1000 * number) for number, layer in enumerate(LAYERS)]
    chosen = scenario(rows, SPLIT + ",activation_bytes", workload={"optimizer": "adam"})
    result = simdp.simulate(chosen)
    found, over_time = result.metrics, usage(result.trace.memory, [0]).kept
    nbytes = sum(layer[-1] for layer in LAYERS)
    memory = found["memory_bytes"]
    assert memory["parameters"] == memory["gradients"] == memory["buckets"] == nbytes
    assert memory["optimizer_state"] == 2 * nbytes
    # Of the micro-step that was measured; gone again at the peak, which is in the update.
    assert over_time[:, MEMORY_PARTS.index("activations")].max() == 10_000
    assert memory["activations"] == 0


def test_what_has_no_numbers_reports_none(scenario):
    chosen = scenario(LAYERS)
    assert chosen.numerics is False
    found = metrics(chosen)
    for name in ("loss", "loss_per_rank", "grad_norm", "replicas_identical"):
        assert found[name] is None


def test_parameters_alone_cost_memory_and_communication(tmp_path):
    model = {"kind": "parameters", "num_params": 6_250_000}
    raw = {
        "cluster": {**CLUSTER, "world_size": 16},
        "workload": {"model": model, "optimizer": "none", "microbatch": 1},
        "collectives": {"cost": "links"},
    }
    found = metrics(checked(raw, tmp_path))
    assert found["step_time_s"] == pytest.approx(ring(25e6, 16), rel=1e-12)
    assert found["compute_s"] == 0
    assert found["memory_bytes"]["parameters"] == 25_000_000


def test_float64_gradients_have_fewer_elements_and_as_many_bytes(scenario):
    chosen = scenario(LAYERS, workload={"dtype": "float64"})
    assert chosen.workload.model.num_parameters() == sum(layer[-1] for layer in LAYERS) // 8
    assert metrics(chosen)["step_time_s"] == metrics(scenario(LAYERS))["step_time_s"]


def test_a_result_loads_again_and_gives_the_same(scenario, tmp_path):
    chosen = scenario(LAYERS)
    again = checked(chosen.resolved(), tmp_path)
    assert again == chosen
    assert metrics(again) == metrics(chosen)


def test_a_sweep_may_go_over_files(scenario, tmp_path):
    scenario(LAYERS)
    (tmp_path / "twice.csv").write_text(f"{WHOLE}\nall,10,20,4000\n")
    chosen = scenario(LAYERS, sweep={"workload.model.path": ["layers.csv", "twice.csv"]})
    slow, fast = (point.metrics["compute_s"] for point in simdp.sweep(chosen).points)
    assert fast == pytest.approx(30e-6, rel=1e-12)
    assert slow == pytest.approx(sum_of_compute(), rel=1e-12)


def test_one_column_of_times_stands_for_all_ranks(scenario):
    chosen = scenario(LAYERS, cluster={"world_size": 4096})
    (step, *_) = chosen.workload.batches(4096, 0, chosen.base)
    times = ProfileTimes(chosen.workload, Roofline([chosen.cluster.device], 4096))
    found = times.seconds("backward", step.sizes[0], [()], 0 * step.sizes[0])
    assert found.seconds.shape == (len(LAYERS), 1)
    np.testing.assert_array_equal(found.of(1), np.full(4096, 75 / 1e6))


@pytest.mark.slow
def test_a_run_loads_nothing_that_it_does_not_need(scenario, tmp_path):
    scenario(LAYERS)  # writes the table
    raw = {
        "cluster": CLUSTER,
        "workload": {
            "model": {"kind": "profile", "path": "layers.csv"},
            "optimizer": "none",
            "microbatch": 1,
        },
    }
    (tmp_path / "step.json").write_text(json.dumps({"scenario": raw}))
    code = (
        "import sys; from simdp.cli import run_command_line; "
        f"run_command_line(['run', {str(tmp_path / 'step.json')!r}, '--quiet', '--no-plots', "
        f"'--out', {str(tmp_path / 'out')!r}]); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    heavy = {"matplotlib", "ml_dtypes", "rich.console", "scipy", "multiprocessing"}
    ours = {
        "layers.conv",
        "models.sequential",
        "layers.transformer",
        "optimizers.sgd",
        "transforms",
    }
    loaded = set(done.stdout.split())
    assert "simdp.workload.models.operators" in loaded
    assert loaded & (heavy | {f"simdp.workload.{name}" for name in ours}) == set()


# What is refused ---------------------------------------------------------------------------------


@pytest.fixture
def refusal(tmp_path):
    """Load a scenario of a table; return the only problem without the file that leads it."""

    def refusal(text, model=None, top=None, **workload):
        (tmp_path / "layers.csv").write_text(text)
        model = model or {"kind": "profile", "path": "layers.csv"}
        raw = {
            "cluster": CLUSTER,
            "workload": {"model": model, "microbatch": 4, **workload},
            **(top or {}),
        }
        with pytest.raises(simdp.ScenarioError) as caught:
            checked(raw, tmp_path)
        (line,) = caught.value.problems
        return line.replace(str(tmp_path / "layers.csv"), "FILE")

    return refusal


TABLE = f"{WHOLE}\nstem,1,2,8\n"


@for_each(
    ("text", "line"),
    [
        (
            "name,forward_us,gradient_bytes\nstem,1,8\n",
            "FILE: backward takes the column backward_us, or the columns weight_grad_us and "
            "input_grad_us; given: none of them.",
        ),
        (
            "name,forward_us,weight_grad_us,gradient_bytes\nstem,1,2,8\n",
            "FILE: backward takes the column backward_us, or the columns weight_grad_us and "
            "input_grad_us; given: weight_grad_us.",
        ),
        (
            f"{WHOLE}\nstem,1,2,10\n",
            "FILE:2: gradient_bytes 10 is not a whole number of elements; the workload's gradients "
            "have 4 bytes each.",
        ),
        (f"{WHOLE}\nstem,1,fast,8\n", "FILE:2: backward_us 'fast' is not a number."),
        (
            f"{WHOLE}\nstem,1,2,0\n",
            "it has no trainable parameters; add a layer such as linear.",
        ),
    ],
)
def test_a_table_that_is_no_profile_is_refused(refusal, text, line):
    assert refusal(text) == f"workload.model: {line}"


def test_a_file_that_is_not_there_is_refused(refusal):
    model = {"kind": "profile", "path": "none.csv"}
    assert refusal(TABLE, model).endswith("none.csv: there is no such file.")


@for_each(
    ("keys", "line"),
    [
        (
            {"weights": "w.npz"},
            "weights: the model profile has times but no numbers; leave this out.",
        ),
        (
            {"sync_batchnorm": True},
            "sync_batchnorm: the model profile has times but no numbers; leave this out.",
        ),
        (
            {"inject": [{"kind": "inf", "rank": 0, "step": 1}]},
            "inject: the model profile has times but no numbers; leave this out.",
        ),
        (
            {"loss": "mse"},
            "loss: the model profile has times but no numbers; leave the loss out.",
        ),
        (
            {"compute": "roofline"},
            "compute: roofline needs layers with FLOPs, but the model profile has times of its "
            "own; write profile, or leave this out.",
        ),
        (
            {"epochs": 2},
            "epochs: there is no dataset to iterate over; write steps, or add a dataset.",
        ),
        (
            {"shuffle": True},
            "shuffle: there is no dataset to iterate over; leave this out, or add a dataset.",
        ),
        (
            {"model": {"kind": "mlp", "widths": [4, 3]}, "dataset": "regression", "loss": "none"},
            "loss: the model mlp needs one for training; write for example mse.",
        ),
        (
            {"model": {"kind": "mlp", "widths": [4, 3]}, "dataset": "regression"}
            | {"compute": "profile"},
            "compute: the model mlp has no times of its own; write roofline, or a model of kind "
            "profile.",
        ),
    ],
)
def test_keys_that_do_not_suit_the_model_are_refused(refusal, keys, line):
    assert refusal(TABLE, **keys) == f"workload.{line}"


def test_numerics_cannot_be_asked_for(refusal):
    assert refusal(TABLE, top={"numerics": True}) == (
        "numerics: the model profile has times but no numbers; leave this out, or write "
        "numerics: false."
    )


def test_the_shipped_profile_is_that_of_the_preset():
    path = ROOT / "scenarios/profile_step.yaml"
    model = load_scenario(path, {"sweep": None}).workload.model
    assert model.num_parameters() == 25_557_032  # resnet50
