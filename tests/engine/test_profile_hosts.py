"""Profiles that tell host from device: who is late, and what another device would take."""

import pytest
from for_each import for_each

import simdp
from simdp.cluster.hardware import DEVICES, Device
from simdp.errors import ScenarioError
from simdp.scenario import checked

HEAD = "name,forward_us,backward_us,gradient_bytes,forward_host_us,backward_host_us,products"
ROWS = [
    ("stem", 100, 200, 4000, 150, 150, 1),  # the host is late in forward
    ("norm", 30, 60, 0, 10, 10, 0),  # it never is
    ("head", 50, 100, 8000, 400, 300, 0.5),  # it always is
]


@pytest.fixture
def metrics(tmp_path):
    """Metrics of a run on one device."""

    def metrics(rows=ROWS, head=HEAD, device="a100-sxm4-80gb", **workload):
        lines = [head, *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "layers.csv").write_text("\n".join(lines) + "\n")
        workload = {
            "model": {"kind": "profile", "path": "layers.csv"},
            "optimizer": {"kind": "sgd", "lr": 0.1},
            "microbatch": 8,
            **workload,
        }
        raw = {
            "cluster": {"world_size": 1, "device": device},
            "workload": workload,
            "strategy": "ddp",
        }
        return simdp.simulate(checked(raw, tmp_path)).metrics

    return metrics


MEASURED = {"kind": "profile", "device": "a100-sxm4-80gb", "microbatch": 8}


def test_a_layer_takes_the_host_or_the_device(metrics):
    forward, backward = 150 + 30 + 400, 200 + 60 + 300
    assert metrics()["compute_s"] == pytest.approx((forward + backward) / 1e6)


def test_a_graph_is_launched_without_the_host(metrics):
    found = metrics(cuda_graphs=True)["compute_s"]
    assert found == pytest.approx(sum(row[1] + row[2] for row in ROWS) / 1e6)


def test_samples_are_the_devices(metrics):
    """Twice the batch: 200 and 400, 60 and 120, and the host's 400 and 300 as they were."""
    found = metrics(compute=MEASURED, microbatch=16)["compute_s"]
    assert found == pytest.approx((200 + 60 + 400 + 400 + 120 + 300) / 1e6)


def test_without_a_microbatch_samples_change_nothing(metrics):
    assert metrics(microbatch=16)["compute_s"] == metrics()["compute_s"]


def test_another_device_scales_products_and_memory_apart(metrics):
    """A T4 has 8.1 of 19.5 TFLOP/s and 320 of 2,039 GB/s."""
    rows = [("all", 1000, 2000, 4000, 0, 0, 0.25)]
    same, other = (
        metrics(rows, device=device, compute=MEASURED)["compute_s"]
        for device in ("a100-sxm4-80gb", "t4-16gb")
    )
    assert same == pytest.approx(3e-3)
    old, new = (
        Device.model_validate(DEVICES.figures(name)) for name in ("a100-sxm4-80gb", "t4-16gb")
    )
    products, memory = old.rate("float32") / new.rate("float32"), old.memory_rate / new.memory_rate
    assert other == pytest.approx(3e-3 * (0.25 * products + 0.75 * memory))


def test_the_update_takes_what_is_told(metrics):
    told = {**MEASURED, "update": "3 ms"}
    assert metrics(compute=told)["update_s"] == pytest.approx(3e-3)
    assert metrics(compute=MEASURED)["update_s"] < 1e-3


def test_buffers_are_broadcast_before_forward(tmp_path, metrics):
    head = HEAD + ",buffer_bytes,counter_bytes"
    found = metrics([(*ROWS[0], 4000, 80)], head)
    assert found["compute_s"] == pytest.approx(350e-6)
    (tmp_path / "layers.csv").write_text(f"{head}\nall,1,1,4000,0,0,0,4000,80\n")
    raw = {
        "cluster": {"world_size": 2, "device": "t4-16gb", "link": {"bandwidth": "1 GB/s"}},
        "workload": {"model": {"kind": "profile", "path": "layers.csv"}, "microbatch": 1},
        "strategy": "ddp",
    }
    raw["cluster"]["link"]["alpha"] = "1 us"
    result = simdp.simulate(checked(raw, tmp_path))
    sent = {result.trace.names[code] for code in result.trace.name}
    assert any("buffers" in name for name in sent)
    assert any("counters" in name for name in sent)


@for_each(
    ("head", "row", "said"),
    [
        (HEAD, "a,1,1,4000,0,0,1.5", r"layers.csv:2: products 1.5 is not a share"),
        (
            "name,forward_us,weight_grad_us,input_grad_us,gradient_bytes,backward_host_us",
            "a,1,1,1,4000,5",
            "backward_host_us goes with backward_us",
        ),
        (
            "name,forward_us,backward_us,gradient_bytes,buffer_bytes",
            "a,1,1,4000,5",
            "layers.csv:2: buffer_bytes 5 is not a whole number of elements",
        ),
        (
            "name,forward_us,backward_us,gradient_bytes,counter_bytes",
            "a,1,1,4000,12",
            "counter_bytes 12 is not a whole number of elements; int64 has 8 bytes each",
        ),
    ],
)
def test_a_wrong_column_is_one_line(metrics, head, row, said):
    with pytest.raises(ScenarioError, match=said):
        metrics([row.split(",")], head)


@for_each(
    ("compute", "said"),
    [
        ({"kind": "profile", "device": "a100"}, "unknown device 'a100'"),
        ({"kind": "profile", "dtype": "float16"}, "add device, or leave it out"),
        ({"kind": "profile", "microbatch": 0}, "microbatch"),
    ],
)
def test_wrong_options_are_refused(metrics, compute, said):
    with pytest.raises(ScenarioError, match=said):
        metrics(compute=compute)


@pytest.mark.slow
def test_scaled_compute_widens_the_interval(tmp_path, metrics):
    from simdp.studies.answers import complete

    metrics()
    raw = {
        "cluster": {"world_size": 1, "device": "h100-sxm5-80gb"},
        "workload": {
            "model": {"kind": "profile", "path": "layers.csv"},
            "compute": MEASURED,
            "microbatch": 8,
        },
        "strategy": "ddp",
    }
    for device, wide in (("h100-sxm5-80gb", True), ("a100-sxm4-80gb", False)):
        scenario = checked({**raw, "cluster": {"world_size": 1, "device": device}}, tmp_path)
        result = simdp.simulate(scenario)
        complete(scenario, result)
        interval = result.metrics["interval_s"]
        assert (interval is not None) == wide
        if wide:
            assert interval[1] / interval[0] > 1.5
