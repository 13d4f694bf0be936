"""Times of calls: every kernel by itself, on ranks with other devices, samples and shapes."""

from collections import deque

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.cluster.hardware import Device
from simdp.engine.compute import call_times
from simdp.engine.compute.call_times import CallTimes, call_kernels
from simdp.engine.compute.roofline import Roofline
from simdp.workload import Workload
from simdp.workload.compute import FromRoofline
from simdp.workload.layers.base import Kernel

FAST = Device(
    peak={"float32": "10 TFLOP/s", "float16": "80 TFLOP/s"},
    memory="10 GB",
    memory_bandwidth="1 TB/s",
    efficiency=0.5,
    launch="3 us",
)
SLOW = Device(
    peak={"float32": "1 GFLOP/s", "float16": "1 GFLOP/s"},
    memory="10 GB",
    memory_bandwidth="500 GB/s",
    launch="0 s",
)
FREE = Device(
    peak={"float32": "1 FLOP/s", "float16": "4 FLOP/s"},
    memory="10 GB",
    memory_bandwidth="1e20 GB/s",
    efficiency=1,
    launch="0 s",
)
"""Only arithmetic takes time, a second per FLOP."""

LAYERS = [
    {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 6},
    "relu",
    {"name": "l2", "kind": "linear", "in_features": 6, "out_features": 2},
]


def workload(**options):
    model = {"kind": "sequential", "layers": LAYERS, "input_shape": [3, 4]}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 1, **options}
    return Workload.model_validate(raw)


class Expanded:
    """Call times as one array, shape `(num_calls + 1, world_size)`."""

    def __init__(self, chosen):
        self.chosen, self.names = chosen, chosen.names

    def seconds(self, activity, batch, shapes):
        alike = list(dict.fromkeys(shapes))
        which = np.array([alike.index(shape) for shape in shapes]) + 0 * batch
        found = self.chosen.seconds(activity, batch, alike, which)
        return np.stack([found.of(call) for call in range(len(self.names))])


def times(devices, **options):
    return Expanded(CallTimes(workload(**options), Roofline(devices)))


def batch(*samples):
    return np.array(samples, dtype=np.int64)


def by_hand(device, kernels, samples, dtype="float32"):
    """Seconds of a call, one kernel after the other."""
    if not samples:
        return 0.0
    return sum(
        max(
            samples * k.flops / (device.peak[dtype] * device.efficiency),
            (samples * k.nbytes + k.fixed) / device.memory_bandwidth,
        )
        + device.launch
        for k in kernels
    )


FULL_LENGTH = [((3, 4),)]

activities = pytest.mark.parametrize("activity", ["forward", "backward"])


def test_calls_are_named_after_their_layers_and_the_loss_is_the_last():
    assert times([FAST]).names == ["l1", "1", "l2", "loss"]
    mlp = {"kind": "mlp", "widths": [4, 3]}
    assert times([FAST], model=mlp).names == ["layers.0", "loss"]


@activities
def test_kernels_take_the_longer_of_arithmetic_and_memory_each_and_a_launch(activity):
    found = times([FAST]).seconds(activity, batch(7), FULL_LENGTH)
    listed = call_kernels(workload(), activity, FULL_LENGTH[0])
    assert found.shape == (4, 1)
    np.testing.assert_allclose(
        found[:, 0], [by_hand(FAST, kernels, 7) for kernels in listed], rtol=1e-14
    )


def launched_ahead(device, calls, samples):
    """When the last kernel ends, of a host that launches them one after the other."""
    launched = done = 0.0
    for kernel in (kernel for kernels in calls for kernel in kernels):
        launched += device.launch
        done = max(done, launched) + by_hand(device, [kernel], samples) - device.launch
    return done


@activities
@for_each("samples", [1, 2000, 10**6])
def test_a_host_that_runs_ahead_makes_only_an_idle_device_wait_for_launches(activity, samples):
    ahead = times([FAST], host={"async_launch": True}).seconds(
        activity, batch(samples), FULL_LENGTH
    )
    each = times([FAST]).seconds(activity, batch(samples), FULL_LENGTH)
    calls = call_kernels(workload(), activity, FULL_LENGTH[0])
    num = sum(map(len, calls))
    calls = calls[::-1] if activity == "backward" else calls
    assert ahead.sum() == pytest.approx(launched_ahead(FAST, calls, samples), rel=1e-12)
    assert ahead.sum() >= max(each.sum() - num * FAST.launch, num * FAST.launch)
    assert ahead.sum() < each.sum()


@given(
    seconds=st.lists(st.floats(0, 1e-3), min_size=1, max_size=30),
    launch=st.floats(1e-7, 1e-4),
)
def test_a_device_idles_until_it_is_told_what_is_next(seconds, launch):
    idle, done = call_times.idle_before(np.array(seconds), launch), 0.0
    for number, (waits, takes) in enumerate(zip(idle, seconds, strict=True), 1):
        begins = max(done, number * launch)
        assert waits == pytest.approx(begins - done, abs=1e-12)
        done = begins + takes


def test_kernels_are_those_of_the_layers_and_of_the_loss():
    forward, backward = (
        call_kernels(workload(), activity, FULL_LENGTH[0]) for activity in ("forward", "backward")
    )
    assert [len(kernels) for kernels in forward] == [1, 1, 1, 1]
    # The bias, the weight and, but for the first layer, the input.
    assert [len(kernels) for kernels in backward] == [2, 1, 3, 1]
    rows, itemsize = 3, 4
    assert forward[0] == [Kernel(rows * 2 * 4 * 6, rows * 10 * itemsize, (24 + 6) * itemsize, 1)]
    assert forward[3] == backward[3] == [Kernel(4 * 3 * 2, 2 * 3 * 2 * itemsize)]


@activities
def test_small_kernels_run_below_the_peak(activity):
    """At half_work FLOPs a product reaches half its rate; other kernels are as they were."""
    half = 1000.0
    slow = FREE.model_copy(update={"half_work": half})
    one, more = (
        times([device]).seconds(activity, batch(5), FULL_LENGTH)[:, 0] for device in (FREE, slow)
    )
    listed = call_kernels(workload(), activity, FULL_LENGTH[0])
    number = [sum(kernel.flops > 0 for kernel in kernels) for kernels in listed]
    filling = [half * number[0], 0, half * number[2], 0]  # of the linear layers
    np.testing.assert_allclose(more, one + filling, rtol=1e-14)
    assert min(number) > 0


@activities
def test_a_rank_without_samples_takes_no_time(activity):
    found = times([FAST] * 3).seconds(activity, batch(4, 0, 4), FULL_LENGTH)
    assert (found[:, 1] == 0).all()
    assert (found[:, [0, 2]] > 0).all()


@activities
def test_arithmetic_grows_with_the_samples_and_launches_do_not(activity):
    clock = times([FREE, FREE])
    one, seven = clock.seconds(activity, batch(1, 7), FULL_LENGTH).T
    np.testing.assert_allclose(seven, 7 * one, rtol=1e-14)
    listed = call_kernels(workload(), activity, FULL_LENGTH[0])
    np.testing.assert_allclose(one, [sum(k.flops for k in kernels) for kernels in listed])
    idle = Device(peak={"float32": "1e30 FLOP/s"}, memory="1 B", memory_bandwidth="1e20 GB/s")
    found = times([idle, idle]).seconds(activity, batch(1, 1000), FULL_LENGTH)
    launches = [len(kernels) * idle.launch for kernels in listed]
    np.testing.assert_allclose(found.T, [launches, launches], rtol=1e-9)


@given(
    ranks=st.lists(
        st.tuples(st.sampled_from([FAST, SLOW, FREE]), st.integers(0, 9), st.integers(1, 5)),
        min_size=1,
        max_size=6,
    ),
    activity=st.sampled_from(["forward", "backward"]),
)
def test_every_rank_has_the_time_of_its_own_device_samples_and_length(ranks, activity):
    devices = [device for device, _, _ in ranks]
    shapes = [((length, 4),) for _, _, length in ranks]
    sizes = batch(*(samples for _, samples, _ in ranks))
    found = times(devices).seconds(activity, sizes, shapes)
    assert found.shape == (4, len(ranks))
    for rank, (device, samples, _) in enumerate(ranks):
        listed = call_kernels(workload(), activity, shapes[rank])
        wanted = [by_hand(device, kernels, samples) for kernels in listed]
        np.testing.assert_allclose(found[:, rank], wanted, rtol=1e-12)


def test_one_shape_stands_for_all_ranks():
    clock = times([FAST, SLOW, FAST])
    sizes = batch(3, 3, 5)
    alike = clock.seconds("forward", sizes, FULL_LENGTH)
    np.testing.assert_array_equal(alike, clock.seconds("forward", sizes, FULL_LENGTH * 3))


def test_what_was_asked_before_is_answered_alike_also_after_many_other_questions():
    clock = times([FAST])
    first = clock.seconds("forward", batch(3), FULL_LENGTH)
    for samples in range(1, 600):
        clock.seconds("forward", batch(samples), FULL_LENGTH)
    np.testing.assert_array_equal(clock.seconds("forward", batch(3), FULL_LENGTH), first)


# 16 bits -----------------------------------------------------------------------------------------


def test_autocast_computes_products_at_the_16_bit_peak_and_casts_weights_first():
    listed = call_kernels(workload(precision="amp"), "forward", FULL_LENGTH[0])
    cast, product = listed[0]
    assert cast == Kernel(0, 0, (24 + 6) * (4 + 2))  # read in 32 bits, written in 16
    assert product == Kernel(3 * 2 * 4 * 6, 3 * 10 * 2, (24 + 6) * 2, 1)
    assert [len(kernels) for kernels in listed] == [2, 1, 2, 1]
    found = times([FREE], precision="amp").seconds("forward", batch(1), FULL_LENGTH)
    flops = [sum(kernel.flops for kernel in kernels) for kernels in listed]
    # The activation follows its input, and the loss runs in 32 bits.
    np.testing.assert_allclose(found[:, 0], np.array(flops) / [4, 4, 4, 1])


def test_sixteen_bit_weights_need_no_cast():
    listed = call_kernels(workload(precision="mixed"), "forward", FULL_LENGTH[0])
    assert [len(kernels) for kernels in listed] == [1, 1, 1, 1]
    assert listed[0] == [Kernel(3 * 2 * 4 * 6, 3 * 10 * 2, (24 + 6) * 2, 1)]


def test_rows_that_are_not_aligned_slow_products_on_tensor_cores_alone():
    slow = FREE.model_copy(update={"misaligned_efficiency": 0.25})
    for precision, factor in (("full", 1), ("amp", 4)):
        one, more = (
            times([device], precision=precision).seconds("forward", batch(1), FULL_LENGTH)[:, 0]
            for device in (FREE, slow)
        )
        np.testing.assert_allclose(more[[0, 2]], factor * one[[0, 2]], rtol=1e-12)  # both products
        np.testing.assert_allclose(more[[1, 3]], one[[1, 3]], rtol=1e-12)


@for_each(
    ("precision", "compile", "factor"),
    [
        ("full", False, 1.0),
        ("float16", False, 1.0),
        ("bfloat16", True, 1.0),
        ("bfloat16", False, 4.0),
    ],
)
def test_batch_norm_in_bfloat16_runs_torchs_own_kernels(precision, compile, factor):
    """On a device whose memory alone takes time."""
    peak = dict.fromkeys(("float32", "float16", "bfloat16"), "1e30 FLOP/s")
    figures = {"memory": "10 GB", "memory_bandwidth": "42.4 GB/s", "launch": "0 s"}
    device = Device(peak=peak, multiprocessors=2, **figures)  # of 5.3 GB/s each
    norm = {"name": "n", "kind": "batch_norm2d", "num_features": 3}
    linear = {"name": "l", "kind": "linear", "in_features": 48, "out_features": 8}
    model = {"kind": "sequential", "layers": [norm, "flatten", linear], "input_shape": [3, 4, 4]}
    lower = {"kind": "mixed", "dtype": precision}
    made = workload(
        model=model, precision=lower if precision != "full" else "full", compile=compile
    )
    call, _, busy = CallTimes(made, Roofline([device])).kernels("forward", 0, 2)
    last = made.model_copy(update={"compute": FromRoofline(memory_format="channels_last")})
    _, _, fast = CallTimes(last, Roofline([device])).kernels("forward", 0, 2)
    assert fast[call == 0].sum() == pytest.approx(busy[call == 0].sum() / factor)
    elements, itemsize = 2 * 3 * 4 * 4, 4 if precision == "full" else 2
    assert busy[call == 0].sum() == pytest.approx(3 * elements * itemsize / 42.4e9 * factor)


def test_ever_new_batches_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(call_times, "MAX_KEPT", 8)
    monkeypatch.setattr(call_times, "_KNOWN", deque(maxlen=1))
    chosen = times([FAST])
    first = chosen.seconds("forward", batch(1), [((1, 4),)])
    for length in range(2, 20):
        chosen.seconds("forward", batch(1), [((length, 4),)])
    kept = chosen.chosen
    assert len(kept._seconds) == len(kept._calls.kernels) == call_times.MIN_ENTRIES
    again = chosen.seconds("forward", batch(1), [((1, 4),)])
    np.testing.assert_array_equal(again, first)


def test_workloads_share_kernels_but_for_measured_times():
    first, other = times([FAST]), times([SLOW])
    mixed = times([FAST], precision="mixed")
    assert first.chosen._calls is other.chosen._calls
    assert first.chosen._calls is not mixed.chosen._calls


# Arithmetic in place of a dtype's -----------------------------------------------------------------

ARITHMETIC = Device(
    peak={
        "float32": "1 FLOP/s",
        "tfloat32": "8 FLOP/s",
        "float16": "16 FLOP/s",
        "float8": "32 FLOP/s",
    },
    memory="10 GB",
    memory_bandwidth="1e20 GB/s",
    efficiency=1,
    launch="0 s",
)


def arithmetic(layer, **options):
    """Seconds of forward of one layer and one sample."""
    shape = [4] if layer["kind"] == "linear" else [1, 4, 4]
    model = {"kind": "sequential", "layers": [layer], "input_shape": shape}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 1, **options}
    found = CallTimes(Workload.model_validate(raw), Roofline([ARITHMETIC], 1))
    (products,) = found.seconds(
        "forward", np.array([1]), [found.workload.model.known_shapes()], np.array([0])
    ).of(0)
    return products


LINEAR = {"kind": "linear", "in_features": 4, "out_features": 4, "bias": False, "name": "head"}
CONV = {"kind": "conv2d", "in_channels": 1, "out_channels": 1, "kernel_size": 1, "bias": False}
FLOPS = 32.0


@for_each(
    ("layer", "compute", "rate"),
    [
        (LINEAR, {}, 1),
        (LINEAR, {"float32_matmul_precision": "high"}, 8),
        (LINEAR, {"float32_matmul_precision": "medium", "cudnn_allow_tf32": False}, 8),
        (CONV, {}, 8),
        (CONV, {"cudnn_allow_tf32": False}, 1),
        (CONV, {"cudnn_allow_tf32": False, "float32_matmul_precision": "high"}, 1),
    ],
)
def test_products_of_float32_run_in_tf32_where_torch_lets_them(layer, compute, rate):
    assert arithmetic(layer, compute={"kind": "roofline", **compute}) == FLOPS / rate


@for_each(("layer", "filtered", "rate"), [(LINEAR, [], 32), (LINEAR, ["hea"], 16), (CONV, [], 16)])
def test_linear_layers_multiply_in_8_bits_unless_their_name_is_filtered(layer, filtered, rate):
    compute = {"kind": "roofline", "float8": {"filter_fqns": filtered}}
    assert arithmetic(layer, compute=compute, precision="amp") == FLOPS / rate


def test_operands_in_8_bits_are_cast_first_and_the_compiler_reads_them_once():
    moved = {}
    for compiled in (False, True):
        layers = [{**LINEAR, "name": "a"}, "relu", {**LINEAR, "name": "b"}, "relu", "relu"]
        model = {"kind": "sequential", "layers": layers, "input_shape": [4]}
        raw = {"model": model, "dataset": {"kind": "regression", "num_samples": 8}}
        raw |= {"microbatch": 1, "precision": "amp", "compute": {"kind": "roofline"}}
        made = Workload.model_validate({**raw, "compile": compiled})
        raw["compute"]["float8"] = {}
        with_casts = Workload.model_validate({**raw, "compile": compiled})
        for activity in ("forward", "backward"):
            shapes = made.model.known_shapes()
            before, after = (
                sum(k.nbytes + k.fixed for ks in call_kernels(w, activity, shapes) for k in ks)
                for w in (made, with_casts)
            )
            moved[compiled, activity] = after - before
    # Two layers cast 4 inputs and 16 weights; in backward 4 gradients as well.
    assert moved[False, "forward"] == 2 * 5 * (4 + 16)
    assert moved[True, "forward"] == 2 * 3 * (4 + 16)
    assert moved[False, "backward"] == 2 * 5 * (4 + 16 + 4)
    assert moved[True, "backward"] == 2 * 3 * (4 + 16 + 4)
