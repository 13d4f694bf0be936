"""When comm hooks work, what they send, and what they keep in memory."""

from collections import Counter
from pathlib import Path

import closed_forms
import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.engine.compression import CompressionKernels, orthonormal, product
from simdp.results.memory import MEMORY_PARTS
from simdp.scenario import checked
from simdp.strategies.comm_hooks.compression import LONG_PLACE_ITEMSIZE

pytestmark = pytest.mark.slow

ALPHA, BANDWIDTH, WORLD_SIZE = 2e-6, 10e9, 4
FLOPS, MEMORY, LAUNCH = 5e12, 1e12, 3e-6
DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "3 us",
}
ROWS, COLUMNS = 512, 256
NBYTES = ROWS * COLUMNS * 4
MATRIX = {"kind": "einsum", "equation": "bd,df->bf", "d": ROWS, "f": COLUMNS}
MLP = {"kind": "mlp", "widths": [64, 96, 96, 8]}
POWER = {"kind": "power_sgd", "rank": 4, "start_step": 0}
TOP_K = {"kind": "top_k", "ratio": 0.01}


def simulate(
    hook="none", model=MATRIX, steps=3, strategy=None, cluster=None, fabric="auto", **more
):
    workload = {
        "model": model,
        "dataset": {"kind": "regression", "num_samples": 4096},
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "microbatch": 64,
        "steps": steps,
    }
    raw = {
        "cluster": {
            "world_size": WORLD_SIZE,
            "device": DEVICE,
            "topology": "ring",
            "link": {"alpha": "2 us", "bandwidth": "10 GB/s"},
            **(cluster or {}),
        },
        "workload": {**workload, **more.pop("workload", {})},
        "strategy": {"kind": "ddp", "comm_hook": hook, **(strategy or {})},
        "numerics": False,
        **more,
    }
    return simdp.simulate(checked(raw, Path()), fabric=fabric)


def spans(result, activity, step=1, rank=0):
    return [s for s in result.trace.spans if (s.rank, s.step, s.activity) == (rank, step, activity)]


def ring(num_elements):
    return closed_forms.ring_all_reduce_time(num_elements * 4, WORLD_SIZE, ALPHA, 1 / BANDWIDTH)


def moved(num_elements, launches=1):
    return num_elements * 4 / MEMORY + launches * LAUNCH


def multiplied(rows, inner, columns):
    elements = rows * inner + inner * columns + rows * columns
    return max(2 * rows * inner * columns / FLOPS, elements * 4 / MEMORY) + LAUNCH


def made_orthonormal(rows, columns):
    return max(4 * rows * columns**2 / FLOPS, 4 * rows * columns * 4 / MEMORY) + 2 * LAUNCH


# PowerSGD ----------------------------------------------------------------------------------------


def test_p_is_computed_behind_backward_and_its_sum_travels_before_that_of_q():
    """Making P orthonormal and computing Q keep the communication stream from the next sum."""
    result = simulate(POWER)
    (backward, *_) = reversed(spans(result, "backward"))
    before, after = spans(result, "compress")
    p, q = spans(result, "comm")
    entries = ROWS * COLUMNS
    first = moved(5 * entries, 2) + made_orthonormal(COLUMNS, 4) + multiplied(ROWS, COLUMNS, 4)
    between = made_orthonormal(ROWS, 4) + multiplied(COLUMNS, ROWS, 4)
    last = moved(2 * COLUMNS * 4) + multiplied(ROWS, 4, COLUMNS) + moved(3 * entries)
    assert [span.name for span in (before, p, q, after)] == [
        "bucket 0 P",
        "all_reduce bucket 0 P",
        "all_reduce bucket 0 Q",
        "bucket 0 P Q",
    ]
    assert before.start == pytest.approx(backward.end, rel=1e-12)
    assert before.end - before.start == pytest.approx(first, rel=1e-9)
    assert p.end == pytest.approx(before.end + ring(ROWS * 4), rel=1e-9)
    assert q.end == pytest.approx(p.end + between + ring(COLUMNS * 4), rel=1e-9)
    assert after.start == pytest.approx(q.end, rel=1e-12)
    assert after.end - after.start == pytest.approx(last, rel=1e-9)
    (update,) = spans(result, "update")
    assert update.start == pytest.approx(after.end, rel=1e-12)


def test_backward_goes_on_when_a_bucket_has_been_put_together_again():
    """torch's hook ends in a synchronize; before its start, buckets travel behind backward."""
    apart = {"bucket_cap": "0 B"}
    result = simulate({**POWER, "start_step": 2}, MLP, steps=4, strategy=apart)
    sent = spans(result, "comm", step=2)
    matrices = [span for span in sent if span.name.endswith(" P")]
    ends = [span.end for span in spans(result, "compress", 2) if span.name.endswith("P Q")]
    assert (len(matrices), len(ends)) == (2, 6)
    for activity in ("backward", "update"):
        for work in spans(result, activity, 2):
            assert not any(work.start < s.end and s.start < work.end for s in sent)
    hidden = spans(result, "comm")
    assert any(
        w.start < s.end and s.start < w.end for w in spans(result, "backward") for s in hidden
    )


def test_power_sgd_sends_its_factors_and_what_is_not_worth_it():
    model = {"model": MLP}
    plain, compressed = simulate(**model), simulate(POWER, **model)
    matrices, vectors = [(96, 64), (96, 96)], 96 + 96 + 8 + 8 * 96  # the last one saves too little
    elements = sum(4 * (rows + columns) for rows, columns in matrices) + vectors
    share = 2 * (WORLD_SIZE - 1) / WORLD_SIZE
    assert compressed.metrics["bytes_sent_per_rank"] == [share * elements * 4] * WORLD_SIZE
    assert compressed.metrics["bucket_bytes"] == plain.metrics["bucket_bytes"]
    names = [span.name.removeprefix("all_reduce ") for span in spans(compressed, "comm")]
    assert names == ["bucket 0 as it is", "bucket 0 P", "bucket 0 Q"]
    rest, p, _ = spans(compressed, "comm")
    unpacked = moved(4 * vectors, 1 + 4)
    assert p.end == pytest.approx(rest.end + unpacked + ring(4 * (96 + 96)), rel=1e-9)


def test_a_bucket_without_matrices_travels_once_and_is_unpacked_at_the_end():
    whole = {**POWER, "min_compression_rate": 1000.0}
    result = simulate(whole)
    assert [span.name for span in spans(result, "comm")] == ["all_reduce bucket 0 as it is"]
    _, after = spans(result, "compress")
    entries = ROWS * COLUMNS
    unpacked = moved(4 * entries, 2) + moved(3 * entries)
    assert after.end - after.start == pytest.approx(unpacked, rel=1e-9)


def test_the_slowest_device_decides_when_q_is_there():
    slow = {**DEVICE, "memory_bandwidth": "100 GB/s"}
    mixed = {"device": [DEVICE, slow, DEVICE, DEVICE]}
    equal, unequal = simulate(POWER), simulate(POWER, cluster=mixed)
    p, q = spans(unequal, "comm")[-2:]
    between = 4 * ROWS * 4 * 4 / 1e11 + (ROWS * COLUMNS + (ROWS + COLUMNS) * 4) * 4 / 1e11
    assert q.end == pytest.approx(p.end + between + 3 * LAUNCH + ring(COLUMNS * 4), rel=1e-9)
    assert equal.metrics["step_time_s"] < unequal.metrics["step_time_s"]


def test_before_its_start_power_sgd_only_averages():
    late = simulate({**POWER, "start_step": 2}, steps=4)
    plain = simulate(steps=4)
    for step, compressed in enumerate([False, False, True, True]):
        assert bool(spans(late, "compress", step)) == compressed
        if not compressed:
            assert spans(late, "comm", step) == spans(plain, "comm", step)


def test_one_kernel_for_all_matrices_of_a_shape_saves_launches_and_changes_no_byte():
    model = {"kind": "mlp", "widths": [64] * 8}
    single, batched = (
        simulate({**POWER, "batch_tensors_with_same_shape": batch}, model)
        for batch in (False, True)
    )
    sent = [result.metrics["bytes_sent_per_rank"] for result in (single, batched)]
    assert sent[0] == sent[1]
    saved = single.metrics["step_time_s"] - batched.metrics["step_time_s"]
    # Seven matrices: twice QR (2) and a product, and a product; the copies cost one and seven.
    assert saved == pytest.approx((6 * 7 - 1 - 7) * LAUNCH, rel=0.1)


@for_each(
    ("columns", "epsilon", "moved_columns", "launches"),
    [(1, 0.0, 3, 2), (1, 1e-8, 3, 3), (2, 0.0, 14, 8), (2, 1e-8, 14, 10), (3, 1e-8, 12, 2)],
)
def test_gram_schmidt_goes_column_by_column_and_qr_does_not(
    columns, epsilon, moved_columns, launches
):
    kernel = orthonormal(100, columns, 4, epsilon)
    assert (kernel.nbytes, kernel.launches) == (moved_columns * 400, launches)
    assert kernel.flops == (4 * 100 * 9 if columns > 2 else 0)


def test_in_sixteen_bits_any_number_of_columns_goes_one_by_one():
    assert orthonormal(100, 3, 2, 0.0).launches == 3 * 2 + 2 * 4
    assert orthonormal(100, 3, 2, 0.0).flops == 0


def test_a_batched_product_is_one_launch_for_all_its_matrices():
    moved_entries = 5 * (2 * 3 + 3 * 4 + 2 * 4)
    assert product(2, 3, 4, 2, batch=5) == CompressionKernels(
        5 * 2.0 * 2 * 3 * 4, moved_entries * 2
    )


# Top-k -------------------------------------------------------------------------------------------


def test_top_k_reads_a_bucket_several_times_and_gathers_what_it_chose():
    result = simulate(TOP_K)
    entries, count = ROWS * COLUMNS, round(0.01 * ROWS * COLUMNS)
    chosen = count * 2  # a value and its place have as many bytes as two values
    before, after = spans(result, "compress")
    select = moved(3 * entries) + moved(2 * entries) + moved(5 * entries, 5)
    select += moved(2 * chosen, 2) + moved(chosen)
    assert before.end - before.start == pytest.approx(select, rel=1e-9)
    (gather,) = spans(result, "comm")
    share = (WORLD_SIZE - 1) * (ALPHA + chosen * 4 / BANDWIDTH)
    assert gather.end - before.end == pytest.approx(share, rel=1e-9)
    add = moved(entries) + moved(WORLD_SIZE * (chosen + 2 * count), WORLD_SIZE)
    assert after.start == pytest.approx(gather.end, rel=1e-12)
    assert after.end - after.start == pytest.approx(add, rel=1e-9)
    sent = (WORLD_SIZE - 1) * count * (4 + 4)
    assert result.metrics["bytes_sent_per_rank"] == pytest.approx([sent] * WORLD_SIZE)


def test_without_error_feedback_nothing_is_added_before():
    entries, count = ROWS * COLUMNS, round(0.01 * ROWS * COLUMNS)
    shorter = simulate({**TOP_K, "error_feedback": False})
    saved = spans(simulate(TOP_K), "compress")[0], spans(shorter, "compress")[0]
    assert (saved[0].end - saved[0].start) - (saved[1].end - saved[1].start) == pytest.approx(
        moved(3 * entries) + moved(2 * count), rel=1e-6
    )


def test_at_least_one_entry_is_sent():
    tiny = simulate({"kind": "top_k", "ratio": 1e-9})
    assert tiny.metrics["bytes_sent_per_rank"][0] == pytest.approx((WORLD_SIZE - 1) * 8)


def test_places_beyond_an_int32_take_eight_bytes():
    huge = {"kind": "parameters", "num_params": 2**31}
    sent = simulate(
        {"kind": "top_k", "ratio": 1e-6}, huge, cluster={"device": {**DEVICE, "memory": "1 TB"}}
    ).metrics["bytes_sent_per_rank"]
    count = round(1e-6 * 2**31)
    entry = 4 + LONG_PLACE_ITEMSIZE
    assert sent[0] == pytest.approx((WORLD_SIZE - 1) * count * entry)


# Memory ------------------------------------------------------------------------------------------


@for_each(
    ("hook", "kept"),
    [
        (POWER, NBYTES + 4 * (ROWS + COLUMNS) * 4),
        ({**POWER, "start_step": 1000}, NBYTES + 4 * (ROWS + COLUMNS) * 4),
        ({**POWER, "error_feedback": False}, 4 * (ROWS + COLUMNS) * 4),
        (TOP_K, NBYTES),
        ({**TOP_K, "error_feedback": False}, 0),
        ("fp16", 0),
    ],
)
def test_what_a_hook_keeps_is_in_memory_from_the_start(hook, kept):
    plain, result = (simulate(h).metrics["memory_bytes"]["buckets"] for h in ("none", hook))
    assert result - plain == kept


@for_each("hook", [POWER, TOP_K, "bf16"])
def test_what_a_hook_needs_for_a_while_it_gives_back(hook):
    holdings = [h for h in simulate(hook).trace.memory if h.step >= 0]
    assert sum(h.nbytes for h in holdings) == pytest.approx(0.0)
    assert max(h.nbytes for h in holdings) > 0


@for_each("hook", ["fp16", "bf16"])
def test_a_bucket_of_sixteen_bits_lies_beside_that_of_the_gradients_until_it_is_back(hook):
    plain, half = (simulate(h, model=MLP) for h in ("none", hook))
    gradients = sum(plain.metrics["bucket_bytes"])
    held = [
        [
            float(np.max(h.nbytes))
            for h in r.trace.memory
            if (h.step, MEMORY_PARTS[h.part]) == (1, "temporary") and 0 in h.ranks
        ]
        for r in (plain, half)
    ]
    assert Counter(held[1]) - Counter(held[0]) == Counter([gradients / 2, -gradients / 2])
    assert half.metrics["memory_bytes"]["buckets"] == plain.metrics["memory_bytes"]["buckets"]


# Sixteen bits, and gradients that are added up first ---------------------------------------------


@for_each("hook", ["fp16", "bf16"])
def test_sixteen_bits_halve_what_travels_and_need_no_work(hook):
    plain, half = simulate(), simulate(hook)
    sent = [result.metrics["bytes_sent_per_rank"][0] for result in (plain, half)]
    assert sent[1] == sent[0] / 2
    assert spans(half, "compress") == []


def test_accumulated_gradients_are_sent_once_for_all_their_micro_steps():
    """As many bytes per step, a quarter per sample; and a step takes less than four."""
    one = simulate(model=MLP)
    several = simulate(model=MLP, workload={"grad_accum": 4})
    eager = simulate(model=MLP, workload={"grad_accum": 4}, strategy={"no_sync": False})
    sent = [result.metrics["bytes_sent_per_rank"][0] for result in (one, several, eager)]
    assert sent == [sent[0], sent[0], 4 * sent[0]]
    exposed = [result.metrics["exposed_comm_s"] for result in (one, several, eager)]
    assert exposed[1] == pytest.approx(exposed[0], rel=0.01)
    assert exposed[2] > 3 * exposed[0]
    throughput = [result.metrics["throughput_samples_per_s"] for result in (one, several, eager)]
    assert throughput[1] > max(throughput[0], throughput[2])


def test_accumulated_gradients_learn_as_the_whole_batch_does():
    whole = {"microbatch": 64, "dtype": "float64", "steps": 5}
    device = {"device": {**DEVICE, "peak": {"float64": "10 TFLOP/s"}}}
    losses = [
        simulate(model=MLP, numerics=True, cluster=device, workload=workload).metrics["loss"]
        for workload in (whole, {**whole, "microbatch": 16, "grad_accum": 4})
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert losses[0][-1] < losses[0][0]


@for_each("hook", [POWER, TOP_K, "bf16"])
def test_numerics_change_neither_time_nor_bytes(hook):
    timed, computed = (simulate(hook, model=MLP, numerics=number) for number in (False, True))
    for key in ("bytes_sent_per_rank", "memory_bytes"):
        assert timed.metrics[key] == computed.metrics[key]
    for key in ("step_time_s", "simulated_s"):  # of two clocks
        assert timed.metrics[key] == pytest.approx(computed.metrics[key], rel=1e-12)


@for_each("hook", [POWER, TOP_K])
def test_both_clocks_agree_on_what_delays_a_stream(hook):
    late = {"stragglers": [{"kind": "slow_rank", "rank": 2, "factor": 1.7}]}
    times = [
        simulate(hook, MLP, cluster=late, fabric=fabric).metrics["simulated_s"]
        for fabric in ("event", "vector")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-12)
