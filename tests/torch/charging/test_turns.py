"""Scripts whose layers take what a record says, in place of the roofline of their kernels."""

import json

import pytest

torch = pytest.importorskip("torch")

from simdp.cli.torchrun import computing  # noqa: E402
from simdp.errors import ProgramError, ScenarioError  # noqa: E402

HEAD = "name,forward_us,weight_grad_us,input_grad_us,gradient_bytes\n"
FC1, FC2, FC3 = "fc1,1000,2000,0,16640\n", "fc2,500,300,200,16640\n", "fc3,100,150,50,520\n"
WHOLE = HEAD + FC1 + FC2 + FC3

SCRIPT = """
import json, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

out, how = sys.argv[1:]
cuda = how != "cpu"
dist.init_process_group("nccl" if cuda else "gloo")
device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        if how == "checkpoint":
            x = checkpoint(self.fc2, x, use_reentrant=False)
        else:
            x = self.fc2(x)
        if how == "shared":
            x = self.fc2(x)
        return self.fc3(torch.relu(x))


model = Net().to(device)
if how == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[dist.get_rank()])
if how == "replicas":
    model = nn.DataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def now():
    if cuda:
        torch.cuda.synchronize()
    return 1e6 * time.perf_counter()


times = []
for batch in (32, 32, 32, 8) if how.startswith("steps") else (32, 8):
    x = torch.ones(batch, 64, device=device)
    if how == "two models":
        nn.Bilinear(64, 64, 2).to(device)(x, x)
    if how == "no model":
        sys.exit()
    start = now()
    loss = nn.functional.cross_entropy(model(x), torch.zeros(batch, dtype=int, device=device))
    ahead = now()
    loss.backward()
    back = now()
    optimizer.step()
    optimizer.zero_grad()
    update = now()
    with torch.no_grad():
        model(x).argmax(1)
    times.append([ahead - start, back - ahead, update - back, now() - update])
if dist.get_rank() == 0:
    json.dump(times, open(out, "w"))
"""


@pytest.fixture
def timed(virtually, tmp_path):
    """Microseconds of forward, backward, update and evaluation, at 32 and at 8 samples."""

    def timed(record=None, how="cuda", world_size=1, csv=WHOLE):
        path = tmp_path / "layers.csv"
        path.write_text(csv)
        if record not in (None, "csv"):
            path = tmp_path / "record.yaml"
            path.write_text(record)
        with computing(None if record is None else path):
            virtually(SCRIPT, world_size, tmp_path / "times.json", how)
        return json.loads((tmp_path / "times.json").read_text())

    return timed


KERNEL = 15.0
"""What two operators outside of the layers take at most [us]."""


@pytest.mark.parametrize("how", ["cuda", "cpu"])
def test_layers_take_what_the_record_says_and_nothing_beside(timed, how):
    usual = timed(None, how)
    for times, plain in zip(timed("csv", how), usual, strict=True):
        assert times[0] == pytest.approx(1600, abs=KERNEL)  # zeros for the loss
        assert times[1] == pytest.approx(2700, abs=0.1)
        assert times[2] == pytest.approx(plain[2], abs=0.01)
        assert times[3] == pytest.approx(1600, abs=KERNEL)  # argmax


def test_times_grow_with_the_samples_and_slow_down_with_the_device(timed):
    large, small = timed("{kind: profile, path: layers.csv, microbatch: 32, update: 4 ms}")
    assert [large[1], small[1]] == pytest.approx([2700, 2700 / 4], abs=0.1)
    assert small[0] == pytest.approx(400, abs=KERNEL)
    assert large[2] == pytest.approx(4000, rel=1e-3)
    keys = "{kind: profile, path: layers.csv, device: a100-sxm4-80gb}"
    from simdp.cluster.hardware import DEVICES, Device

    old, new = (Device(**DEVICES.figures(f"{n}-80gb")) for n in ("a100-sxm4", "h100-sxm5"))
    (times, _) = timed(keys)
    assert times[1] == pytest.approx(2700 * old.memory_rate / new.memory_rate, rel=1e-3)


def test_under_ddp_buckets_are_filled_beside_the_record(timed):
    times, alone = timed("csv", "ddp", 2)[0], timed("csv")[0]
    plain = timed(None, "ddp", 2)[0][1] - timed()[0][1]
    assert times[0] == pytest.approx(1600, abs=KERNEL)
    assert times[1] - alone[1] == pytest.approx(plain, rel=0.5)
    assert 1 < times[1] - alone[1] < 200


def test_a_layer_is_called_again_by_checkpoints_and_counted_once_if_it_is_shared(timed):
    again, once = timed("csv", "checkpoint")[1], timed("csv", "shared")[1]
    assert again[0] == pytest.approx(1600, abs=KERNEL)
    assert again[1] == pytest.approx(2700 + 500, abs=KERNEL)
    assert once[1] == pytest.approx(2700, abs=KERNEL)


def test_layers_that_the_record_has_not_take_their_roofline(timed):
    usual, times = timed()[1], timed("csv", csv=HEAD + FC2)[1]
    assert 500 < times[0] < 500 + usual[0]
    assert 500 < times[1] < 500 + usual[1]


def test_a_line_may_be_of_a_parameter(timed):
    lines = "fc3.weight,100,150,50,512\nfc3.bias,0,0,0,8\n"
    assert timed("csv", csv=HEAD + FC1 + FC2 + lines) == [
        pytest.approx(times, abs=0.01) for times in timed("csv")
    ]


POINTS = "[{microbatch: 8, step_time: 3 ms}, {microbatch: 32, step_time: 9 ms}]"


@pytest.mark.parametrize("how", ["steps", "steps, cpu"])
def test_kernels_share_what_a_measured_step_takes(timed, how):
    record = f"{{kind: measured, points: {POINTS}, forward_fraction: 0.4}}"
    first, second, third, small = timed(record, how)
    usual = timed(None, how)[0]
    for ahead, back, update, _ in (first, second, third):
        assert update == pytest.approx(usual[2], abs=0.1)
        assert ahead + back + update == pytest.approx(9000, abs=KERNEL)
    for ahead, *_ in (second, third):
        assert ahead == pytest.approx(3600 * 8 / 9, rel=0.02)  # one of 9 kernels begins backward
    assert sum(small[:3]) == pytest.approx(3000, abs=KERNEL)
    assert third[3] == pytest.approx(usual[3], abs=0.1)  # evaluation was not measured


@pytest.mark.parametrize(
    ("record", "how", "csv", "error", "told"),
    [
        (
            *("csv", "cuda", WHOLE + "fc4,1,1,1,8\n", ProgramError),
            r"layers.csv: Net has no layer fc4; its layers: fc1, fc2, fc3. Name the record's lines",
        ),
        (
            *("csv", "cuda", HEAD + "fc1,1,1,0,8\n", ProgramError),
            "layer fc1 has gradients of 8 bytes in the record, and of 16640 in Net; measure the",
        ),
        ("csv", "replicas", WHOLE, ProgramError, "nn.DataParallel divides the batch among"),
        (
            *("csv", "cuda", HEAD + "conv,1,1,0,8\n", ScenarioError),
            "no module that the script calls has the record's layers conv; it calls Net. Name the",
        ),
        ("[1, 2]", "cuda", WHOLE, ScenarioError, "record.yaml: needs kind: profile and the path"),
        (
            *("{kind: profile, path: layers.csv, microbatch: 0}", "cuda", WHOLE, ScenarioError),
            r"--compute .*record.yaml: microbatch: .*0",
        ),
        (
            *(f"{{kind: measured, points: {POINTS}}}", "two models", WHOLE, ProgramError),
            "a measured step is of one model, and the script trains Bilinear and Net; give a",
        ),
        (
            *(f"{{kind: measured, points: {POINTS}}}", "no model", WHOLE, ScenarioError),
            "record.yaml: the script trains no module; leave it out",
        ),
        ("{kind: measured, points: []}", "cuda", WHOLE, ScenarioError, r"--compute .*: points"),
        (
            *("{kind: measured, points: [{microbatch: 8, step_time: 1 ms, device: b}]}", "cuda"),
            *(WHOLE, ProgramError, "no point is of h100-sxm5-80gb; add one, or one without a"),
        ),
        ("{kind: profile, path: no.csv}", "cuda", WHOLE, ScenarioError, "no.csv"),
    ],
    ids=[
        "layer",
        "size",
        "replicas",
        "nothing",
        "kind",
        "key",
        "two",
        "none",
        "points",
        "device",
        "file",
    ],
)
def test_a_record_that_does_not_fit_is_refused(timed, record, how, csv, error, told):
    with pytest.raises(error, match=told) as caught:
        timed(record, how, csv=csv)
    assert "\n" not in str(caught.value)
