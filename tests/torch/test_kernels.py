"""Kernels of torch's operators against those of simdp's layers."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

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


# Formulas -----------------------------------------------------------------------------------------

aten = torch.ops.aten
META = {"device": "meta"}


def rand(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, **META)


def launched(call, *args, out, **kwargs):
    """Kernels of a call with a given result, as no device here may run it."""
    packet = getattr(aten, call) if isinstance(call, str) else call
    func = getattr(packet, packet.overloads()[0])
    return launched_by(func, args, kwargs, tree_map(fresh, out))


def fresh(tensor):
    return None if tensor is None else torch.empty_like(tensor)


IMAGE, WEIGHT, GRADIENT = rand(2, 4, 8, 8), rand(6, 4, 3, 3), rand(2, 6, 6, 6)
CONV = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
HEADS = rand(2, 4, 16, 8)
ROWS = rand(2, 16, 4, 8)  # as flash_attn lays them out
TORCH = {
    "mm": ((rand(3, 4), rand(4, 5)), rand(3, 5)),
    "addmm": ((rand(5), rand(3, 4), rand(4, 5)), rand(3, 5)),
    "bmm": ((rand(2, 3, 4), rand(2, 4, 5)), rand(2, 3, 5)),
    "baddbmm": ((rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5)), rand(2, 3, 5)),
    "_scaled_mm": ((rand(3, 4), rand(4, 5), rand(1), rand(1)), rand(3, 5)),
    "convolution": ((IMAGE, WEIGHT, None, *CONV), GRADIENT),
    "_convolution": ((IMAGE, WEIGHT, None, *CONV, False, False, False, False), GRADIENT),
    "convolution_overrideable": ((IMAGE, WEIGHT, None, *CONV), GRADIENT),
    "cudnn_convolution": (
        (IMAGE, WEIGHT, [0, 0], [1, 1], [1, 1], 1, False, False, False),
        GRADIENT,
    ),
    "_slow_conv2d_forward": ((IMAGE, WEIGHT, [3, 3], None, [1, 1], [0, 0]), GRADIENT),
    "convolution_backward": (
        (GRADIENT, IMAGE, WEIGHT, None, *CONV, [True, True, False]),
        (IMAGE, WEIGHT, None),
    ),
    "_scaled_dot_product_efficient_attention": ((HEADS, HEADS, HEADS, None, True), (HEADS,)),
    "_scaled_dot_product_flash_attention": ((HEADS, HEADS, HEADS), (HEADS,)),
    "_scaled_dot_product_cudnn_attention": ((HEADS, HEADS, HEADS, None, True), (HEADS,)),
    **{
        f"_scaled_dot_product_{kind}_attention_backward": (
            (HEADS, HEADS, HEADS, HEADS, *more),
            (HEADS, HEADS, HEADS),
        )
        for kind, more in (("efficient", ()), ("flash", (HEADS,)), ("cudnn", (HEADS,)))
    },
    "_flash_attention_forward": ((ROWS, ROWS, ROWS, None, None, 16, 16, 0.0, True, False), (ROWS,)),
    "_efficient_attention_forward": (
        (ROWS, ROWS, ROWS, None, None, None, 16, 16, 0.0, 1),
        (ROWS,),
    ),
    "_flash_attention_backward": (
        (ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, None, None, 16, 16, 0.0, False),
        (ROWS, ROWS, ROWS),
    ),
    "_efficient_attention_backward": (
        (ROWS, ROWS, ROWS, ROWS, None, ROWS, None, None, 16, 16, ROWS, 0.0, ROWS, ROWS, 0),
        (ROWS, ROWS, ROWS),
    ),
}
"""A call and a result of each operator that torch counts."""


def test_every_operator_that_torch_counts_has_its_flops_here():
    """Those of flex attention's higher order run as the operators within them."""
    from torch.utils.flop_counter import flop_registry

    counted = {packet.__name__: packet for packet in flop_registry if hasattr(packet, "overloads")}
    assert counted.keys() == TORCH.keys()
    for name, (args, out) in TORCH.items():
        flops = counted[name]
        # Torch's formula of this one reads the arguments of `convolution`.
        likewise = TORCH["convolution"][0] if name == "_slow_conv2d_forward" else args
        expected = flop_registry[flops](*likewise, out_val=out)
        operator = launched(name, *args, out=out)
        assert (name, operator.products) == (name, expected)
        assert operator.policy == ("fused_attention" if "attention" in name else "product")
        work = sum(kernel.flops for kernel in operator.kernels)
        is_causal = any(arg is True for arg in args) or "efficient_attention_forward" in name
        is_half = is_causal and "attention" in name
        assert (name, work) == (name, expected / 2 if is_half else expected)


def test_values_wider_than_keys_count_in_the_backward_of_attention():
    from torch.utils.flop_counter import flop_registry

    name = "_scaled_dot_product_flash_attention_backward"
    wide = rand(2, 4, 16, 24)
    args = wide, HEADS, HEADS, wide, wide
    expected = flop_registry[getattr(aten, name)](*args, out_val=None)
    assert launched(name, *args, out=(HEADS, HEADS, wide)).products == expected


FP8, TOKENS = torch.float8_e4m3fn, rand(10, 4, dtype=torch.bfloat16)
EXPERTS = rand(3, 4, 5, dtype=torch.bfloat16)
OWN = {
    "_grouped_mm": ((TOKENS, EXPERTS), rand(10, 5), 2 * 10 * 4 * 5),
    "_scaled_grouped_mm": ((TOKENS, EXPERTS, rand(10), rand(3, 5)), rand(10, 5), 2 * 10 * 4 * 5),
    "_int_mm": ((rand(3, 4), rand(4, 5)), rand(3, 5), 2 * 3 * 4 * 5),
    "addbmm": ((rand(3, 5), rand(2, 3, 4), rand(2, 4, 5)), rand(3, 5), 2 * 2 * 3 * 4 * 5),
    "addbmm_": ((rand(3, 5), rand(2, 3, 4), rand(2, 4, 5)), rand(3, 5), 2 * 2 * 3 * 4 * 5),
    "addmv": ((rand(3), rand(3, 4), rand(4)), rand(3), 2 * 3 * 4),
    "mv": ((rand(3, 4), rand(4)), rand(3), 2 * 3 * 4),
    "dot": ((rand(7), rand(7)), rand(), 2 * 7),
    "vdot": ((rand(7), rand(7)), rand(), 2 * 7),
    "_addmm_activation": ((rand(5), rand(3, 4), rand(4, 5)), rand(3, 5), 2 * 3 * 4 * 5),
    "linear": ((rand(2, 3, 4), rand(5, 4)), rand(2, 3, 5), 2 * 6 * 4 * 5),
    "_cslt_sparse_mm": ((rand(3, 3), rand(4, 5)), rand(3, 5), 2 * 3 * 4 * 5),
    "_cudnn_rnn": (
        (rand(6, 2, 4), [rand(12, 4), rand(12, 3), rand(12), rand(12)], 4),
        (rand(6, 2, 3),),
        2 * 6 * 2 * (12 * 4 + 12 * 3),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_products_that_torch_does_not_count_have_formulas(name):
    args, out, flops = OWN[name]
    operator = launched(name, *args, out=out)
    assert (operator.products, operator.policy) == (flops, "product")
    assert operator.kernels[0].flops == flops


def test_weights_of_groups_sum_over_their_own_tokens():
    """The gradient of expert weights: two matrices, whose inner axis is divided."""
    out = rand(3, 4, 5)
    assert launched("_grouped_mm", rand(4, 10), rand(10, 5), out=out).products == 2 * 4 * 10 * 5


def test_a_bilinear_layer_counts_every_triple():
    found, _ = noted(torch.nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4))
    assert max(kernel.flops for kernel in found) == 2 * 2 * 5 * 3 * 4


def test_a_fused_encoder_layer_counts_its_parts():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        found, _ = noted(layer, torch.randn(2, 6, 8))
    weights = 3 * 8 * 8 + 8 * 8 + 2 * 8 * 16
    assert sum(k.flops for k in found) == 2 * 12 * (weights + 2 * 6 * 8)


def test_a_transform_counts_its_levels():
    found, _ = noted(torch.fft.fft, torch.randn(3, 8, dtype=torch.complex64))
    assert found[0].flops == 5 * 3 * 8 * 3
    found, _ = noted(torch.fft.rfft, torch.randn(3, 8))
    assert found[0].flops == 2.5 * 3 * 8 * 3


def test_products_of_8_bits_run_at_the_peak_of_8_bits():
    from simdp.cluster.hardware import Device
    from simdp.errors import ProgramError
    from simdp.torch.charging.speed import Speed

    figures = {"memory": "10 GB", "memory_bandwidth": "1e20 GB/s", "efficiency": 1, "launch": "0 s"}
    peak = {"float32": "1 FLOP/s", "bfloat16": "4 FLOP/s", "float16": "4 FLOP/s"}
    new = Speed(Device(peak={**peak, "float8": "8 FLOP/s"}, **figures))
    old = Speed(Device(peak=peak, **figures))
    args = rand(16, 16, dtype=FP8), rand(16, 16, dtype=FP8), rand(1), rand(1)
    scaled = launched("_scaled_mm", *args, out=rand(16, 16, dtype=torch.bfloat16))
    flops = 2 * 16**3
    assert new.seconds(scaled, torch.bfloat16, 1) == flops / 8
    with pytest.raises(ProgramError, match="products in float8: the device has no peak for this"):
        old.seconds(scaled, torch.bfloat16, 1)
    whole = launched("_int_mm", *args[:2], out=rand(16, 16))
    assert new.seconds(whole, torch.int32, 1) == flops / 8
    assert old.seconds(whole, torch.int32, 1) == flops / 4


def test_operators_that_move_their_tensors_once_are_known_and_others_are_not():
    x = torch.randn(4, 4)
    calls = [
        lambda: x + x,
        lambda: torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.int64)),
        lambda: x.sort(),
        lambda: torch.stack([x, x]),
        lambda: torch._foreach_add_([x.clone()], 1.0),
        lambda: torch.nn.functional.glu(x),
        lambda: torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
        lambda: x.clone().index_add_(0, torch.tensor([1]), x[:1]),
    ]
    for call in calls:
        with Unknown() as mode:
            call()
        assert mode.found == []
    with Unknown() as mode:
        torch.linalg.cholesky(x @ x.T + torch.eye(4))
    assert mode.found == ["linalg_cholesky_ex"]


class Unknown(Noted):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not launched_by(func, args, kwargs or {}, out).is_known:
            self.found.append(func.overloadpacket.__name__)
        return out
