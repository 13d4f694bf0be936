"""Kernels of torch's operators against those of simdp's layers."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from simdp.torch.kernels import OperatorKernels, launched_by, mean_itemsize  # noqa: E402
from simdp.workload.layers.conv import Conv2d  # noqa: E402
from simdp.workload.layers.linear import Linear  # noqa: E402
from simdp.workload.layers.normalization import LayerNorm  # noqa: E402
from simdp.workload.layers.tensor_ops import Dropout  # noqa: E402


class Noted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        launched = launched_by(func, args, kwargs or {}, out)
        self.found += launched.kernels
        return out


def noted(call, *args):
    with Noted() as mode:
        out = call(*args)
    return mode.found, out


def sums(kernels, batch):
    return [(batch * k.flops, batch * k.nbytes + k.fixed) for k in kernels]


NETS = {
    "conv": (torch.nn.Conv2d(3, 4, 3), (3, 8, 8), Conv2d, {"in_channels": 3, "out_channels": 4}),
    "linear": (torch.nn.Linear(6, 5), (6,), Linear, {"in_features": 6, "out_features": 5}),
    "norm": (torch.nn.LayerNorm(8), (3, 8), LayerNorm, {"normalized_shape": 8}),
}


@pytest.mark.parametrize("name", NETS)
def test_an_operator_costs_what_the_layer_does(name):
    module, shape, kind, keys = NETS[name]
    more = {"kernel_size": (3, 3)} if name == "conv" else {}
    layer = kind(name="a", **keys, **more)
    x = torch.randn(4, *shape, requires_grad=True)
    found, out = noted(module, x)
    assert [k.flops for k in found] == [
        flops for flops, _ in sums(layer.forward_cost([shape], 4), 4)
    ]
    moved = [4 * k.elements + k.nbytes for k in found]
    wanted = [nbytes for _, nbytes in sums(layer.forward_cost([shape], 4), 4)]
    assert moved == pytest.approx(wanted, rel=0.15)  # statistics of rows
    back, _ = noted(out.backward, torch.ones_like(out))
    flops = sorted(flops for flops, _ in sums(layer.backward_cost([shape], 4, [True]), 4))
    assert sorted(k.flops for k in back) == flops


def test_a_mask_counts_in_bytes():
    x = torch.randn(10, 20)
    ((kernel,), _) = noted(lambda: torch.native_dropout(x, 0.5, True))
    (wanted,) = Dropout(name="a", p=0.5).forward_cost([(20,)], 4)
    assert (kernel.elements, kernel.nbytes) == (2 * 200, 200)
    assert 4 * kernel.elements + kernel.nbytes == 10 * wanted.nbytes


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.t(),
        lambda x: x.view(-1),
        lambda x: x.detach(),
        lambda x: torch.empty(3),
        lambda x: x.expand(2, 3, 4),
        lambda x: x.chunk(3),
    ],
)
def test_what_moves_no_memory_launches_nothing(call):
    assert noted(call, torch.randn(3, 4))[0] == []


def test_a_look_up_reads_rows_and_not_the_table():
    table, rows = torch.randn(1000, 8), torch.tensor([1, 2, 2])
    ((kernel,), _) = noted(torch.embedding, table, rows)
    assert (kernel.elements, kernel.nbytes) == (2 * 3 * 8, 3 * 8)


def test_what_is_only_written_is_not_read():
    x, out = torch.ones(10, 10), torch.empty(10, 10)
    kernels, _ = noted(lambda: torch.mul(x, 0.5, out=out))
    assert kernels[0].elements == 200


def test_a_cast_reads_one_dtype_and_writes_another():
    x = torch.ones(10)
    assert mean_itemsize(([x], {"out": x.half()})) == 3
    assert mean_itemsize((torch.ones(3, dtype=torch.int64), 2)) == 0


@pytest.mark.parametrize(("features", "wide"), [((8, 16), False), ((8, 5), True), ((12, 16), True)])
def test_products_whose_rows_are_not_aligned_are_slower_on_tensor_cores(features, wide):
    """As the layers say: 16 bytes are eight numbers in 16 bits, and four of TF32."""
    from simdp.cluster.hardware import Device
    from simdp.torch.charging.speed import Speed

    figures = {"memory": "10 GB", "memory_bandwidth": "1e20 GB/s", "efficiency": 1, "launch": "0 s"}
    peak = {"float32": "1 FLOP/s", "bfloat16": "4 FLOP/s"}
    device = Device(peak=peak, misaligned_efficiency=0.25, **figures)
    layer, x = torch.nn.Linear(*features, bias=False), torch.ones(3, features[0])
    with Noted() as mode:
        layer(x.requires_grad_()).square().sum().backward()
    kernels = [one for one in mode.found if one.width]
    assert len(kernels) == 3
    layers = Linear(name="l", in_features=features[0], out_features=features[1], bias=False)
    assert layers.forward_cost([(features[0],)], 2)[0].misaligned == wide
    for kernel in kernels:
        product = OperatorKernels((kernel,), "product")
        low = Speed(device).seconds(product, torch.bfloat16, 2)
        assert low == kernel.flops / 4 * (4 if wide else 1)
        assert Speed(device).seconds(product, torch.float32, 4) == kernel.flops


def test_a_batch_norm_in_bfloat16_runs_torchs_own_kernels():
    from simdp.cluster.hardware import Device
    from simdp.torch.charging.speed import Speed

    peak = dict.fromkeys(("float32", "bfloat16", "float16"), "1e30 FLOP/s")
    figures = {"memory": "10 GB", "memory_bandwidth": "42.4 GB/s", "launch": "0 s"}
    device = Device(peak=peak, multiprocessors=2, **figures)  # of 5.3 GB/s each
    norm, x = torch.nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4, requires_grad=True)
    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    with Noted() as mode:
        norm(last).square().sum().backward()
    assert not any(one.normalizes for one in mode.found)
    with Noted() as mode:
        norm(x).square().sum().backward()
    kernels = [one for one in mode.found if one.normalizes]
    assert [one.elements / x.numel() for one in kernels] == [1, 2, 2, 3]
    whole = OperatorKernels(tuple(kernels))
    for dtype, factor in ((torch.bfloat16, 4), (torch.float16, 1), (torch.float32, 1)):
        seconds = Speed(device).seconds(whole, dtype, 2)
        assert seconds == pytest.approx(8 * x.numel() * 2 / 42.4e9 * factor)
