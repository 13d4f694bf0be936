"""Times of measured steps: a run on one device takes what was measured, layer by layer."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.profile_times import MeasuredTimes
from simdp.engine.compute.roofline import Roofline
from simdp.scenario import checked

CLUSTER = {
    "world_size": 1,
    "device": "v100-sxm2-16gb",
    "topology": "switch",
    "link": {"alpha": "5 us", "bandwidth": "12 GB/s"},
}
RESNET = {"kind": "resnet18", "image_size": 64}
BERT = {"kind": "bert-base", "num_hidden_layers": 2, "sequence_length": 32}
BARE = {"kind": "parameters", "num_params": 25_000_000}
MLP = {"kind": "mlp", "widths": [64, 128, 10]}


def points(*pairs, **more):
    listed = [{"microbatch": b, "step_time": f"{ms} ms", **more} for b, ms in pairs]
    return {"kind": "measured", "points": listed}


def scenario(model, compute, cluster=(), top=(), **workload):
    raw = {
        "cluster": {**CLUSTER, **dict(cluster)},
        "workload": {"model": model, "microbatch": 16, "compute": compute, **workload},
        **dict(top),
    }
    return checked(raw, Path())


def metrics(*args, **more):
    return simdp.simulate(scenario(*args, **more)).metrics


@for_each("model", [RESNET, BERT, BARE], ids=["images", "tokens", "bare"])
@for_each("optimizer", ["none", "adamw"])
def test_a_step_on_one_device_takes_what_was_measured(model, optimizer):
    found = metrics(model, points((16, 120)), optimizer=optimizer, host={"step": "3 ms"})
    assert found["step_time_s"] == pytest.approx(0.12, rel=1e-12)
    assert found["other_s"] == pytest.approx(3e-3, rel=1e-9)
    assert (found["update_s"] > 0) == (optimizer == "adamw")
    rest = 0.12 - 3e-3 - found["update_s"]
    assert found["compute_s"] == pytest.approx(rest, rel=1e-12)
    assert found["exposed_comm_s"] == found["wait_s"] == 0


@for_each(("batch", "ms"), [(8, 100), (12, 110), (16, 120), (32, 200), (64, 360)])
def test_between_and_beyond_points_a_step_is_linear(batch, ms):
    found = metrics(RESNET, points((32, 200), (8, 100), (16, 120)), microbatch=batch)
    assert found["step_time_s"] == pytest.approx(ms / 1e3, rel=1e-12)


@for_each(("batch", "ms"), [(8, 100), (16, 95), (12, 97.5)])
def test_points_that_fall_within_what_steps_scatter_count_as_measured(batch, ms):
    found = metrics(RESNET, points((8, 100), (16, 95)), microbatch=batch)
    assert found["step_time_s"] == pytest.approx(ms / 1e3, rel=1e-12)


def test_one_point_keeps_its_ratio_to_the_roofline():
    chosen = scenario(RESNET, points((16, 120)), optimizer="none")
    roofline = Roofline([chosen.cluster.device])
    parts, times = (kind(chosen.workload, roofline) for kind in (CallTimes, MeasuredTimes))
    for activity, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        asked = activity, np.array([4]), [chosen.workload.model.known_shapes()], np.array([0])
        found, alone = times.seconds(*asked).seconds, parts.seconds(*asked).seconds
        whole = {b: parts.whole("forward", 0, b) + parts.whole("backward", 0, b) for b in (4, 16)}
        assert found.sum() == pytest.approx(0.12 * share * whole[4] / whole[16])
        np.testing.assert_allclose(found, alone * (found.sum() / alone.sum()), rtol=1e-12)


def test_forward_takes_its_fraction():
    compute = {**points((16, 100)), "forward_fraction": 0.25}
    spans = simdp.simulate(scenario(MLP, compute, optimizer="none", steps=1)).trace.spans
    forward = sum(span.end - span.start for span in spans if span.activity == "forward")
    assert forward == pytest.approx(0.025, rel=1e-12)


def test_bare_parameters_become_fifty_layers_of_equal_times():
    chosen = scenario(BARE, points((16, 100)), optimizer="none", steps=1)
    assert chosen.workload.model.num_layers == 50
    spans = simdp.simulate(chosen).trace.spans
    backward = [span.end - span.start for span in spans if span.activity == "backward"]
    np.testing.assert_allclose(backward, np.full(50, 0.1 * 2 / 3 / 50), rtol=1e-12)


def test_buckets_of_bare_parameters_overlap_with_backward():
    one = metrics({**BARE, "num_layers": 1}, points((16, 100)), cluster={"world_size": 4})
    many = metrics(BARE, points((16, 100)), cluster={"world_size": 4})
    assert one["exposed_comm_s"] == pytest.approx(one["comm_s"], rel=1e-9)
    assert many["exposed_comm_s"] < 0.4 * many["comm_s"]
    assert many["bucket_bytes"][0] == 2_000_000  # of two layers: the first bucket closes at 1 MiB


def test_few_parameters_have_as_many_layers():
    assert scenario({**BARE, "num_params": 7}, points((16, 1))).workload.model.num_layers == 7


def test_a_number_of_parameters_may_be_written_with_an_exponent():
    model = scenario({**BARE, "num_params": 25.6e6}, points((16, 1))).workload.model
    assert model.num_params == 25_600_000


def test_devices_of_a_mixed_cluster_have_points_of_their_own():
    compute = {
        "kind": "measured",
        "points": [
            {"microbatch": 16, "step_time": "100 ms", "device": "t4-16gb"},
            {"microbatch": 16, "step_time": "40 ms"},
        ],
    }
    cluster = {"world_size": 2, "device": ["t4-16gb", "v100-sxm2-16gb"]}
    spans = simdp.simulate(scenario(MLP, compute, cluster, optimizer="none", steps=1)).trace.spans
    lengths = [0.0, 0.0]
    for span in spans:
        if span.activity in ("forward", "backward"):
            lengths[span.rank] += span.end - span.start
    assert lengths == pytest.approx([0.1, 0.04], rel=1e-12)


def test_micro_steps_take_the_time_of_their_samples():
    compute = points((8, 20), (16, 30))
    found = metrics(MLP, compute, optimizer="none", microbatch=None, grad_accum=[8, 16, 4])
    assert found["step_time_s"] == pytest.approx((20 + 30 + 15) / 1e3, rel=1e-12)


def test_a_rank_without_samples_takes_no_time():
    batches = {"microbatch": None, "global_batch": 6}
    found = metrics(BARE, points((4, 20)), {"world_size": 4}, optimizer="none", **batches)
    assert found["compute_s"] == pytest.approx((10 + 10 + 10 + 0) / 4 / 1e3, rel=1e-12)


@for_each("how", [{"workers": 2, "pinned": False}, {"workers": 0}])
def test_a_copy_that_nothing_hides_is_inside_the_measured_step(how):
    feed = {"sample_size": "100 kB", "link": "pcie3-x16", **how}
    found = metrics(MLP, points((16, 10)), input=feed, host={"step": "1 ms"}, steps=3)
    assert found["step_time_s"] == pytest.approx(10e-3, rel=1e-12)
    assert found["other_s"] > 1e-3


def test_measured_steps_train_with_data_where_there_are_some():
    data = {"kind": "blobs", "num_samples": 64}
    chosen = scenario(MLP, points((16, 10)), dataset=data, epochs=1)
    assert chosen.numerics
    found = simdp.simulate(chosen).metrics
    assert len(found["loss"]) == 4
    assert found["step_time_s"] == pytest.approx(10e-3, rel=1e-12)


@for_each("model", [RESNET, BARE], ids=["images", "bare"])
def test_a_result_loads_again_and_gives_the_same(model):
    chosen = scenario(model, points((16, 120)), host={"step": "1 ms"})
    assert not chosen.numerics
    again = checked(chosen.resolved(), Path())
    assert again == chosen
    assert simdp.simulate(again).metrics == simdp.simulate(chosen).metrics


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("model", "compute", "more", "line"),
    [
        (
            MLP,
            points((16, 10), device="t4"),
            {},
            "workload.compute.points.0.device: unknown device 't4'. Did you mean 't4-16gb'? ",
        ),
        (
            MLP,
            points((16, 10), device="t4-16gb"),
            {},
            "workload.compute.points: none holds for device v100-sxm2-16gb; add one of it, or one "
            "that names no device.",
        ),
        (
            MLP,
            points((16, 10)),
            {"host": {"step": "10 ms"}, "optimizer": "none"},
            "workload.compute.points.0.step_time: 10 ms holds no compute, since the host and the "
            "update take 10 ms of it on one device; give the time of a whole step.",
        ),
        (
            MLP,
            points((16, 20), (32, 21)),
            {"input": {"sample_size": "1 MB", "link": {"alpha": "0 s", "bandwidth": "4 GB/s"}}},
            "workload.compute.points.1.step_time: 21 ms leaves 13 ms for compute next to the copy "
            "of the batch, less than the 16 ms of microbatch 16; correct one of them, or "
            "workload.input.",
        ),
        (
            {"kind": "parameters", "num_params": 2.5},
            points((16, 10)),
            {},
            "workload.model.num_params: 2.5 is not a whole number.",
        ),
        (
            {"kind": "profile", "path": "tests/none.csv"},
            points((16, 10)),
            {},
            "workload.compute: measured spreads a step's time, but the model profile has times of "
            "its own; write profile, or leave this out.",
        ),
        (
            BARE,
            "roofline",
            {},
            "workload.compute: roofline needs layers with FLOPs, but the model parameters has "
            "times of its own; write profile, or leave this out.",
        ),
        (
            {**BARE, "num_params": 7, "num_layers": 8},
            points((16, 10)),
            {},
            "workload.model: num_layers: 8 layers cannot share 7 parameters; give fewer layers.",
        ),
        (
            MLP,
            points((16, 10)),
            {"epochs": 2},
            "workload.epochs: there is no dataset to iterate over; write steps, or add a dataset.",
        ),
        (
            MLP,
            points((16, 10)),
            {"top": {"numerics": True}},
            "numerics: there is no data set to learn from; add a dataset, or write numerics: "
            "false.",
        ),
    ],
)
def test_what_a_measured_step_cannot_be_is_refused(model, compute, more, line):
    with pytest.raises(simdp.ScenarioError) as caught:
        scenario(model, compute, **more)
    assert caught.value.problems[0].startswith(line)


def test_a_step_of_a_sharded_row_gets_the_rest_of_the_update_back():
    bert = {**BERT, "sequence_length": 64}
    whole = metrics(bert, points((16, 120)), optimizer="adamw")
    alone = metrics(bert, points((16, 120), sharded_over=4), optimizer="adamw")
    more = 0.75 * whole["update_s"]
    assert alone["step_time_s"] == pytest.approx(0.12 + more, rel=1e-3)
    assert alone["update_s"] == whole["update_s"]
    split = {"world_size": 4}, {"strategy": "fsdp"}
    row = metrics(bert, points((16, 120), sharded_over=4), *split, optimizer="adamw")
    assert row["compute_s"] + row["update_s"] == pytest.approx(0.12, rel=0.01)


def test_a_measured_step_of_a_sharded_strategy_says_what_its_update_is_taken_for():
    bert, split = {**BERT, "sequence_length": 64}, ({"world_size": 4}, {"strategy": "fsdp"})

    def remark(*args, **more):
        found = simdp.simulate(scenario(bert, *args, optimizer="adamw", **more))
        return found.remarks.get("update")

    assert "write sharded_over: 4 in workload.compute.points" in remark(points((16, 20)), *split)
    for shards in (1, 4):
        assert remark(points((16, 20), sharded_over=shards), *split) is None
    assert remark(points((16, 20)), {"world_size": 4}, {"strategy": "ddp"}) is None
    assert remark(points((16, 2000)), *split) is None
