import copy
import io

import pytest

torch = pytest.importorskip("torch")

from virtual_rank import virtual_rank  # noqa: E402


@pytest.fixture
def here():
    with virtual_rank() as found:
        yield found


def test_tensors_are_where_they_were_put(here):
    x = torch.ones(3, device="cuda:1")
    assert x.device == torch.device("cuda", 1)
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 1
    assert x.type() == "torch.cuda.FloatTensor"
    assert (x * 2)[1:].device == x.device
    assert x.cpu().device == torch.device("cpu")
    assert x.to("cuda").device == torch.device("cuda", 0)
    assert x.to(torch.float64).device == x.device
    assert x.to(torch.device("cuda", 2), torch.float16).dtype == torch.float16
    assert x.to(torch.zeros(1, device="cuda:3")).device == torch.device("cuda", 3)
    assert x.to(x.device) is x
    assert "device='cuda:1'" in repr(x)


def test_factories_make_tensors_on_devices(here):
    x = torch.ones(2, 2, device="cuda:1")
    made = [
        torch.zeros_like(x), x.new_zeros(3), x.new_tensor([1.0]), torch.empty_like(x),
        torch.arange(3, device=1), torch.tensor([1, 2], device="cuda:1"), x.clone(),
        torch.nn.functional.one_hot(torch.tensor([1]).cuda(1)), torch.as_tensor([1.0], device=1),
    ]  # fmt: skip
    assert {str(t.device) for t in made} == {"cuda:1"}
    on_host = [torch.zeros_like(x, device="cpu"), x.new_zeros(3, device="cpu"), torch.rand(2)]
    assert {str(t.device) for t in on_host} == {"cpu"}
    with torch.device("cuda:2"):
        inside = [torch.zeros(2), torch.tensor([1.0]), torch.nn.Linear(2, 2).weight]
    assert {str(t.device) for t in inside} == {"cuda:2"}


def test_devices_are_not_mixed(here):
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu!"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cuda:1!"):
        torch.cat([x, x.to("cuda:1")])
    with pytest.raises(TypeError, match=r"can't convert cuda:0 .* Use Tensor.cpu\(\)"):
        x.numpy()
    assert (x * torch.tensor(2.0)).device == x.device  # a number goes with everything
    assert x[torch.tensor([0, 2])].device == x.device
    y = torch.zeros(3)
    y.copy_(x)
    assert y.device.type == "cpu"
    assert y.sum() == 3
    with pytest.raises(RuntimeError, match="cuda:7 was asked for, and the node has 4 devices"):
        x.cuda(7)


def test_gradients_go_back_to_where_their_tensors_are(here):
    w = torch.ones(3, requires_grad=True)
    (w.cuda() * torch.arange(3.0, device="cuda")).sum().backward()
    assert w.grad.device.type == "cpu"
    assert w.grad.tolist() == [0, 1, 2]
    a = torch.ones(3, device="cuda:1", requires_grad=True)
    (a * 2).to("cuda:2").sum().backward()
    assert a.grad.device == torch.device("cuda", 1)


def test_modules_move_and_are_copied_with_their_devices(here):
    net = torch.nn.Linear(4, 4)
    weight = net.weight
    assert net.cuda(2).weight is weight
    assert weight.device == torch.device("cuda", 2)
    assert copy.deepcopy(net).weight.device == torch.device("cuda", 2)
    with pytest.raises(RuntimeError, match="same device"):
        net(torch.ones(1, 4))


@pytest.mark.parametrize(
    ("where", "expected"),
    [(None, "cuda:2"), ("cpu", "cpu"), ("cuda:1", "cuda:1"), ({"cuda:2": "cuda:3"}, "cuda:3")],
)
def test_files_remember_devices(here, where, expected):
    file, net = io.BytesIO(), torch.nn.Linear(2, 2).to("cuda:2")
    torch.save(net.state_dict(), file)
    file.seek(0)
    read = torch.load(file, map_location=where)
    assert str(read["weight"].device) == expected
    assert torch.equal(read["weight"].cpu(), net.weight.cpu())


def test_a_run_on_a_device_has_the_bits_of_a_run_on_the_cpu(here):
    def trained(device):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)
        ).to(device)
        adam = torch.optim.Adam(net.parameters())
        for _ in range(3):
            x, y = torch.randn(5, 8).to(device), torch.randint(0, 4, (5,)).to(device)
            adam.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            adam.step()
        return [p.detach().cpu() for p in net.parameters()]

    pairs = zip(trained("cpu"), trained("cuda:1"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_pinned_memory_is_known(here):
    assert torch.rand(3, pin_memory=True).is_pinned()
    assert torch.rand(3).pin_memory().is_pinned()
    assert not torch.rand(3).is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.rand(3).cuda().pin_memory()


def test_nothing_of_it_stays_behind():
    before = torch.Tensor.to, torch.cuda.is_available, torch.zeros, torch.Generator
    with virtual_rank():
        assert torch.cuda.is_available()
    assert (torch.Tensor.to, torch.cuda.is_available, torch.zeros, torch.Generator) == before
    assert torch.zeros(2).device.type == "cpu"


DTENSORS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
kind = sys.argv[2] if len(sys.argv) > 2 else "cpu"
mesh = init_device_mesh(kind, (2,))
torch.manual_seed(0)
weight = distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)])
torch.nn.init.normal_(weight)
dropped = torch.nn.functional.dropout(weight, 0.5)
torch.save({"weight": weight.to_local(), "dropped": dropped.to_local()},
           f"{sys.argv[1]}/{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


def test_random_operators_of_dtensors_draw_as_on_a_mesh_of_cpus(virtually, really, tmp_path):
    for name in ("cpu", "cuda", "real"):
        (tmp_path / name).mkdir()
    virtually(DTENSORS, 2, tmp_path / "cpu", "cpu")
    virtually(DTENSORS, 2, tmp_path / "cuda", "cuda")
    really(DTENSORS, 2, tmp_path / "real", "cpu")
    for rank in range(2):
        real = torch.load(tmp_path / "real" / f"{rank}.pt")
        for name in ("cpu", "cuda"):
            drawn = torch.load(tmp_path / name / f"{rank}.pt", map_location="cpu")
            assert all(torch.equal(drawn[key], real[key]) for key in real)


def test_dtensors_move_between_host_and_device(virtually, capsys):
    virtually(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor
        mesh = init_device_mesh("cuda", (2,))
        there = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        here = there.cpu()
        back = here.requires_grad_().to("cuda")
        back.sum().backward()
        layer = torch.nn.Linear(4, 4)
        layer.weight = torch.nn.Parameter(here.detach())
        weight = layer.to("cuda").weight
        assert all(type(each) is DTensor for each in (there, here, back, weight))
        rank, places = dist.get_rank(), (there, here, back, here.grad, weight)
        print(rank, *(each.to_local().device for each in places))
        """
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{rank} cuda:{rank} cpu cuda:{rank} cpu cuda:{rank}" for rank in range(2)
    ]


def test_operators_of_higher_order_are_charged_one_by_one():
    from torch._prims.rng_prims import run_and_save_rng_state

    with virtual_rank() as here:
        square = torch.ones(512, 512, device="cuda")
        begin = here.rank.clock
        square @ square
        once = here.rank.clock - begin
        run_and_save_rng_state(torch.ops.aten.mm.default, square, square)
        assert here.rank.clock - begin >= 2 * once > 0


def test_attention_is_split_by_heads_and_collectives_outputs_are_on_the_device(virtually, capsys):
    virtually(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.nn.functional import scaled_dot_product_attention
        mesh = init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        whole = torch.randn(2, 4, 8, 16, device="cuda")
        heads = distribute_tensor(whole, mesh, [Shard(1)]).requires_grad_()
        out = scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        out.square().sum().backward()
        inputs = whole.clone().requires_grad_()
        same = scaled_dot_product_attention(inputs, inputs, inputs, is_causal=True)
        same.square().sum().backward()
        torch.testing.assert_close(out.full_tensor(), same)
        torch.testing.assert_close(heads.grad.full_tensor(), inputs.grad)
        print(out.placements, heads.full_tensor().device)
        gathered = heads.detach().redistribute(placements=[Shard(0)]).to_local()
        print((gathered + torch.ones(16, device="cuda")).device)
        """
    )
    assert capsys.readouterr().out.splitlines() == [
        *(f"(Shard(dim=1),) cuda:{rank}" for rank in range(2)),
        *(f"cuda:{rank}" for rank in range(2)),
    ]


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_stays_on_the_device_in_bfloat16(here):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = torch.randn(3, 1, 2, 128, 16, device="cuda", dtype=torch.bfloat16)
    first = torch.zeros(128, dtype=torch.int32, device="cuda")  # of each document

    def causal(b, h, at, of):
        return (of >= first[at]) & (at >= of)

    mask = create_block_mask(causal, 1, None, 128, 128, device="cuda")
    before = here.rank.clock
    out = flex_attention(q.requires_grad_(), k, v, block_mask=mask)
    out.float().sum().backward()
    assert out.device == q.grad.device == torch.device("cuda", 0)
    assert here.rank.clock > before
    plain = torch.nn.functional.scaled_dot_product_attention(
        *(x.float() for x in (q, k, v)), is_causal=True
    )
    assert torch.allclose(out.float(), plain, atol=0.02)
