"""Scripts recorded as scenarios: the strategy's words, and a step as long as the script's."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import yaml  # noqa: E402

import simdp  # noqa: E402
from simdp.cli.torchrun import recording  # noqa: E402
from simdp.distributed.launch import find  # noqa: E402
from simdp.errors import ScenarioError, SimdpError  # noqa: E402
from simdp.torch.cuda.faking import faked  # noqa: E402

SCRIPT = """
import json, sys, time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

out, how = sys.argv[1:]
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.up = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            each.unflatten(-1, (16, -1)).transpose(1, 2)
            for each in self.attn(self.norm(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.embed = nn.Embedding(4096, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 4096)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


small = how == "offload"
model = Net(64) if small else Net().cuda()
if how.startswith("zero"):
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=how == "zero_views",
    )
else:
    options, layers, root = {}, list(model.layers), True
    if how == "mixed":
        dtypes = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        options["mp_policy"] = MixedPrecisionPolicy(**dtypes)
    if how == "wide_root":
        dtypes = {"param_dtype": torch.bfloat16, "output_dtype": torch.float32}
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if how == "kept":
        options["reshard_after_forward"] = False
    if how == "offload":
        options["offload_policy"] = CPUOffloadPolicy()
    if how == "hsdp":
        names = ("replicate", "shard")
        options["mesh"] = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=names)
    for layer in layers[1:] if how == "together" else layers:
        some = {"reshard_after_forward": 2} if how == "differs" and layer is layers[0] else {}
        fully_shard(layer, **options, **some)
    if how == "together":
        fully_shard([model.layers[0], model.head])
    if how == "wide_root":
        options["mp_policy"] = MixedPrecisionPolicy(**dtypes)
    if how != "parts":
        fully_shard(model, **options)
    if how == "divided":
        model.set_gradient_divide_factor(3.0)
    optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.zeros(*(2, 9) if small else (64, 257), dtype=int, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    logits = model(tokens[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if rank == 0:
        json.dump(time.perf_counter() - start, open(out, "w"))
"""


@pytest.fixture
def recorded(virtually, tmp_path):
    """Record a script; the seconds of its last step, and the scenario's path."""

    def recorded(how):
        path, told = tmp_path / "job.yaml", tmp_path / "step.json"
        with recording(path, find("dgx-h100", 4, 4), Path("dgx-h100")), faked(how != "offload"):
            virtually(SCRIPT, 4, told, how)
        return json.loads(told.read_text()), path

    return recorded


LAYERS = ["layers.0", "layers.1", "layers.2"]
FSDP = {"kind": "fsdp", "units": LAYERS}


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        ("plain", FSDP),
        ("mixed", {**FSDP, "param_dtype": "bfloat16", "reduce_dtype": "float32"}),
        ("kept", {**FSDP, "reshard_after_forward": False}),
        ("hsdp", {"kind": "hsdp", "shard_size": 2, "units": LAYERS}),
        ("zero", {"kind": "zero1"}),
        ("zero_views", {"kind": "zero1", "parameters_as_bucket_view": True}),
    ],
    ids=["plain", "mixed", "kept", "hsdp", "zero", "zero_views"],
)
def test_a_recorded_scenario_takes_as_long_as_its_script(recorded, how, strategy):
    step, path = recorded(how)
    assert yaml.safe_load(path.read_text())["strategy"] == strategy
    result = simdp.simulate(simdp.load_scenario(path))
    assert result.metrics["step_time_s"] == pytest.approx(step, rel=0.03)


def test_an_output_dtype_of_the_root_alone_is_recorded(recorded):
    _, path = recorded("wide_root")
    wide = {"param_dtype": "bfloat16", "output_dtype": "float32", "output_dtype_at": "root"}
    assert yaml.safe_load(path.read_text())["strategy"] == {**FSDP, **wide}
    assert simdp.load_scenario(path).workload.precision.output_units == ()


def test_an_offload_is_recorded(recorded):
    _, path = recorded("offload")
    assert yaml.safe_load(path.read_text())["strategy"] == {**FSDP, "offload": "cpu"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("parts", "--record: fully_shard has layers.0 and not the whole of Net; call it on the"),
        ("together", "one module and one mesh in a scenario, and layers.0 has 2 modules; give"),
        ("differs", "--record: reshard_after_forward differs between units, which a scenario"),
        ("divided", "--record: set_gradient_divide_factor has no words in a scenario; leave it"),
    ],
    ids=["parts", "together", "differs", "divided"],
)
def test_what_scenarios_have_no_words_for_is_refused(recorded, how, told):
    with pytest.raises((SimdpError, ScenarioError), match=told) as caught:
        recorded(how)
    assert "\n" not in str(caught.value)


def test_flat_parameters_are_not_recorded(virtually, tmp_path):
    text = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = FullyShardedDataParallel(torch.nn.Linear(8, 8).cuda())
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    """
    with (
        pytest.raises(SimdpError, match=r"^--record: FullyShardedDataParallel joins parameters"),
        recording(tmp_path / "job.yaml", find("dgx-h100", 2, 2), Path("dgx-h100")),
    ):
        virtually(text)


def test_autocast_to_float32_is_no_precision_of_a_scenario(virtually, tmp_path):
    path = tmp_path / "job.yaml"
    with recording(path, find("dgx-h100", 1, 1), Path("dgx-h100")):
        virtually(
            """
            import torch
            model = torch.nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            with torch.autocast("cuda", dtype=torch.float32):
                loss = model(torch.ones(4, 8, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            """,
            1,
        )
    assert "precision" not in yaml.safe_load(path.read_text())["workload"]
    simdp.load_scenario(path)
