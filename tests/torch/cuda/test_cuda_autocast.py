import pytest

torch = pytest.importorskip("torch")

from pathlib import Path  # noqa: E402

from virtual_rank import virtual_rank  # noqa: E402

from simdp.torch.cuda import autocast  # noqa: E402

F = torch.nn.functional


@pytest.fixture
def here():
    with virtual_rank() as found:
        yield found


def test_operators_run_in_the_dtypes_of_cudas_lists(here):
    net, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    with torch.autocast("cuda"):
        y = net(x)
        halves = [y, y @ y.t(), y + y, F.relu(y), F.scaled_dot_product_attention(y, y, y)]
        full = [
            F.softmax(y, -1), F.layer_norm(y, (8,)), y.sum(), y.norm(), y.exp(), y + x,
            F.mse_loss(y, x), F.cross_entropy(y, torch.zeros(4, dtype=torch.long, device="cuda")),
        ]  # fmt: skip
    assert {t.dtype for t in halves} == {torch.float16}
    assert {t.dtype for t in full} == {torch.float32}
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert net(x).dtype == torch.float32
        assert (x.cpu() @ x.cpu().t()).dtype == torch.float32  # which is not on a device
    assert net(x).dtype == torch.float32


def test_autocast_has_the_bits_of_casts_by_hand(here):
    net, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    with torch.autocast("cuda"):
        y = net(x) + net(x)
        assert len(here.machine.casts) == 2  # weight and bias, each cast once
    assert not here.machine.casts
    y.float().sum().backward()
    expected = F.linear(x.half(), net.weight.half(), net.bias.half())
    assert torch.equal(y, expected + expected)
    slope = torch.full((4, 8), 1.0, device="cuda").half()
    by_hand = slope.t() @ x.half()
    assert torch.equal(net.weight.grad, (by_hand + by_hand).float())


def test_unsafe_losses_are_refused_as_torch_refuses_them(here):
    x = torch.rand(4, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="are unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_autocast_of_the_cpu_is_refused_where_devices_are_used(here):
    torch.ones(1, device="cuda")
    with (
        pytest.raises(RuntimeError, match=r'write torch.autocast\("cuda"\)'),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        pass


def test_adam_leaves_a_script_without_devices_to_the_cpu(here):
    net = torch.nn.Linear(4, 4)
    adam = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert net(torch.ones(2, 4)).dtype is torch.bfloat16
        net(torch.ones(2, 4)).sum().backward()
        adam.step()


def test_synchronize_of_the_cpu_passes_in_a_script_without_devices(here):
    torch.cuda.synchronize(torch.device("cpu"))  # as PowerSGD's hook does
    torch.ones(1, device="cuda")
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.synchronize(torch.device("cpu"))


def test_a_scaler_skips_steps_and_lowers_its_scale(here):
    torch.manual_seed(0)
    net, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, growth_interval=2)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    scales, moved = [], []
    for factor in (1.0, 1e6, 1.0, 1.0):
        sgd.zero_grad()
        with torch.autocast("cuda"):
            loss = net(x).float().square().mean() * factor
        before = net.weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.unscale_(sgd)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(sgd)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, net.weight))
    assert moved == [True, False, True, True]
    assert scales == [2.0**16, 2.0**15, 2.0**15, 2.0**16]


def test_the_lists_are_those_of_the_installed_torch():
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    lines = header.read_text().partition("#define AT_FORALL_LOWER_PRECISION_FP")[2]
    lists = lines.split("#define ")
    chosen = [autocast.LOWER, autocast.FLOAT32, autocast.FLOAT32_OUT, None, autocast.WIDEST]
    for text, ours in zip(lists, chosen, strict=False):
        if ours is not None:
            found = [line.partition("_(")[2].partition(")")[0] for line in text.splitlines()]
            theirs = {name.replace(", ", ".") for name in found if name}
            assert theirs == set(ours)
