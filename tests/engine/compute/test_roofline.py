"""Roofline: what each rank's device can do."""

import numpy as np
from for_each import for_each

from simdp.cluster.hardware import Device
from simdp.engine.compute.roofline import Roofline

FAST = Device(
    peak={"float32": "10 TFLOP/s", "float16": "80 TFLOP/s"},
    memory="10 GB",
    memory_bandwidth="1 TB/s",
    efficiency=0.5,
    launch="3 us",
)
SLOW = FAST.model_copy(update={"memory_bandwidth": 5e11, "launch": 0.0, "efficiency": 1.0})
DEVICES = [FAST, SLOW, FAST, FAST.model_copy()]


def test_each_rank_has_its_own_devices_rates():
    roofline = Roofline(DEVICES)
    np.testing.assert_array_equal(roofline.flops("float32"), [5e12, 1e13, 5e12, 5e12])
    np.testing.assert_array_equal(roofline.flops("float16"), [4e13, 8e13, 4e13, 4e13])
    np.testing.assert_array_equal(roofline.bandwidth, [1e12, 5e11, 1e12, 1e12])
    np.testing.assert_array_equal(roofline.launch, [3e-6, 0, 3e-6, 3e-6])


def test_equal_devices_have_one_number():
    assert Roofline(DEVICES).device.tolist() == [0, 1, 0, 0]


def test_one_device_stands_for_all_ranks():
    alike, listed = Roofline([FAST], 3), Roofline([FAST] * 3)
    assert alike.device.tolist() == listed.device.tolist() == [0, 0, 0]
    for figures in ("bandwidth", "launch"):
        np.testing.assert_array_equal(getattr(alike, figures), getattr(listed, figures))
    np.testing.assert_array_equal(alike.flops("float32"), listed.flops("float32"))


@for_each("nbytes", [0.0, 1e6])
def test_moving_bytes_takes_memory_bandwidth_alone(nbytes):
    wanted = [nbytes / 1e12, nbytes / 5e11, nbytes / 1e12, nbytes / 1e12]
    np.testing.assert_allclose(Roofline(DEVICES).moving(nbytes), wanted, rtol=1e-15)


def test_efficiency_may_differ_by_dtype():
    mixed = FAST.model_copy(update={"efficiency": {"float32": 0.75, "float16": 0.25}})
    roofline = Roofline([FAST, mixed])
    np.testing.assert_array_equal(roofline.flops("float32"), [5e12, 7.5e12])
    np.testing.assert_array_equal(roofline.flops("float16"), [4e13, 2e13])


def test_kernels_fill_the_device_unless_it_is_said():
    figures = {"peak": {"float32": "1 TFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 TB/s"}
    large = Device(**figures, half_work="20 MFLOP")
    np.testing.assert_array_equal(Roofline([FAST, large]).half_work, [0, 2e7])


def test_fused_attention_may_have_an_efficiency_of_its_own():
    flash = FAST.model_copy(update={"flash_efficiency": 0.3})
    roofline = Roofline([FAST, flash])
    np.testing.assert_array_equal(roofline.flops("float16", fused="forward"), [4e13, 2.4e13])
    np.testing.assert_array_equal(roofline.flops("float16"), [4e13, 4e13])


def test_fused_attention_may_have_an_efficiency_in_each_pass():
    by_pass = {"forward": 0.5, "backward": 0.25}
    device = Device(**{**FAST.model_dump(), "flash_efficiency": by_pass})
    roofline = Roofline([device])
    assert roofline.flops("float16", fused="forward") == [4e13]
    assert roofline.flops("float16", fused="backward") == [2e13]


def test_tfloat32_is_float32_on_a_device_without_it():
    other = FAST.model_copy(update={"peak": {"float32": 1e13, "tfloat32": 8e13}})
    np.testing.assert_array_equal(Roofline([FAST, other]).flops("tfloat32"), [5e12, 4e13])


def test_kernels_may_reach_a_part_of_the_memory_bandwidth():
    worse = FAST.model_copy(update={"memory_efficiency": 0.8})
    np.testing.assert_allclose(Roofline([FAST, worse]).bandwidth, [1e12, 8e11], rtol=1e-15)
    np.testing.assert_allclose(Roofline([FAST, worse]).moving(4e6), [4e-6, 5e-6], rtol=1e-15)


def test_updates_may_reach_another_part_of_it():
    streams = FAST.model_copy(update={"memory_efficiency": 0.5, "stream_efficiency": 0.8})
    assert Roofline([streams]).bandwidth == [5e11]
    assert Roofline([streams]).moving(4e6) == [8e-6]
    assert Roofline([streams]).updating(4e6) == [5e-6]
