"""Facts of a run, and what a step answers and notes."""

import numpy as np
from for_each import for_each
from small_workload import LINEAR, NUM_SAMPLES, workload

from simdp.cluster.hardware import Overheads
from simdp.steps.facts import Exchanged, Facts, StepContext
from simdp.steps.partition import Bucket

NORM = {"name": "bn", "kind": "batch_norm1d", "num_features": 3}
HALF = {"precision": {"kind": "mixed", "dtype": "bfloat16"}}
TIMED = {"model": {"kind": "parameters", "num_params": 100}, "dataset": "none"}


def facts(world_size=4, nominal=None, **options):
    return Facts(workload(**options), world_size, 2, Overheads(), nominal=nominal)


def step(number=0, kind=0, num_samples=NUM_SAMPLES, **options):
    found = facts(**options)
    kinds, _ = found.workload.kinds_of_steps(4, num_samples)
    return StepContext(found, number, kinds[kind])


# The run -----------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_model():
    found = facts()
    assert found.sizes == {"0.weight": 12, "0.bias": 3}
    assert list(found.ready_order) == ["0.bias", "0.weight"]
    assert found.num_elements(["0.weight", "0.bias"]) == 15
    assert (found.world_size, found.local_size) == (4, 2)


@for_each(
    ("options", "gradient", "weight"),
    [({}, 4, 4), ({"dtype": "float64"}, 8, 8), (HALF, 2, 2)],
)
def test_bytes_per_element_are_those_of_the_precision(options, gradient, weight):
    found = facts(**options)
    assert (found.itemsize, found.weight_itemsize) == (gradient, weight)
    assert found.bucket(["0.bias"]).nbytes == 3 * gradient


def test_counters_have_eight_bytes():
    model = {"kind": "sequential", "layers": [LINEAR, NORM], "input_shape": [4]}
    found = facts(model=model)
    sizes = {buffer.name: found.itemsize_of(buffer) for buffer in found.buffers}
    assert sizes == {"bn.running_mean": 4, "bn.running_var": 4, "bn.num_batches_tracked": 8}


def test_a_bucket_has_the_gradients_dtype_or_another():
    names = ("0.bias", "0.weight")
    assert facts().bucket(names) == Bucket(names, 15, "float32", 60.0, room=60.0)
    half = facts().bucket(names, "float16", is_compressed=True, unit=3)
    assert half == Bucket(names, 15, "float16", 30.0, 30.0, is_compressed=True, unit=3)


def test_a_bucket_takes_room_of_its_own_unless_gradients_live_in_it_or_it_is_told_otherwise():
    assert facts().bucket(["0.bias"]).room == 12
    assert facts().bucket(["0.bias"], is_view=True).room == 0
    assert facts().bucket(["0.bias"], room=0.0).room == 0


def test_what_follows_from_the_facts_is_made_once():
    found, made = facts(), []
    assert found.once("x", lambda: made.append(1) or "first") == "first"
    assert found.once("x", lambda: "second") == "first"
    assert made == [1]


def test_without_nominal_times_nothing_takes_time_and_it_is_noted_that_they_were_asked_for():
    found = facts()
    kinds, _ = found.workload.kinds_of_steps(4, NUM_SAMPLES)
    assert not found.foreseen
    assert found.ready_times(kinds[0], 0) == [0.0, 0.0]
    assert found.foreseen
    other, third = facts(), facts()
    assert other.all_reduce_seconds(8.0) < other.all_reduce_seconds(80.0)
    assert other.foreseen
    assert third.node_bandwidth() == float("inf")  # the network's too
    assert third.foreseen


def test_synchronised_layers_exchange_statistics():
    """Mean and square sum of each feature and a count, gathered; two sums in backward."""
    model = {"kind": "sequential", "layers": [LINEAR, NORM], "input_shape": [4]}
    assert facts(model=model).exchanges == {}
    found = facts(model=model, sync_batchnorm=True).exchanges
    assert found == {1: Exchanged(4.0 * 4 * 7, 4.0 * 6)}


def test_a_model_of_layers_recomputes_nothing_and_has_no_tails_unless_told_so():
    assert facts().recomputed == {}
    assert facts().tails == frozenset()
    mlp = {"kind": "mlp", "widths": [4, 5, 3], "activation": "relu"}
    again = facts(model=mlp, recompute="blocks").recomputed
    assert again
    assert all(last == run[-1] for last, run in again.items())


# A step ------------------------------------------------------------------------------------------


def test_what_a_step_is_asked_is_noted_with_its_answer():
    found = step(number=3, grad_accum=2)
    assert found.asked == {}
    assert found.num_micro_steps == 2
    assert found.before(4)
    assert not found.before(3)
    assert found.asked == {
        ("micro_steps",): 2,
        ("earlier", 4): True,
        ("earlier", 3): False,
    }


def test_another_step_answers_alike_or_not():
    asked, later, much_later = step(3), step(4), step(9)
    asked.before(5)
    assert later.answers(asked.asked)
    assert not much_later.answers(asked.asked)
    assert later.asked == {}  # to compare is not to ask


@for_each(
    ("length", "since", "ends"),
    [(1, 0, range(10)), (3, 0, (2, 5, 8)), (3, 2, (1, 4, 7)), (4, 1, (0, 4, 8))],
)
def test_a_period_ends_after_so_many_steps_since_another(length, since, ends):
    found = [number for number in range(10) if step(number).ends_period(length, since)]
    assert found == list(ends)


def test_who_has_samples_is_told_by_micro_step_or_for_any_of_them():
    uneven = {"samples_per_rank": [8, 2, 8, 1], "grad_accum": 2}
    first = step(num_samples=19, **uneven)
    assert first.active(0) == (True, True, True, True)
    assert first.active(1) == (True, False, True, False)
    assert first.active() == (True, True, True, True)
    assert step(kind=1, num_samples=19, **uneven).active() == (True, False, True, False)


def test_the_last_step_of_an_epoch_closes_it():
    uneven = {"samples_per_rank": [8, 2, 8, 1], "grad_accum": 2}
    assert [step(kind=kind, num_samples=19, **uneven).closes_epoch for kind in (0, 1)] == [
        False,
        True,
    ]


def test_a_model_of_times_begins_with_its_second_step():
    assert step(0).reduced_before(1)
    assert not step(1).reduced_before(1)
    assert not step(0, **TIMED).reduced_before(1)


def test_nominal_times_are_asked_for_by_micro_step():
    class Known:
        def ready_times(self, batches, micro):
            return np.array([1.0, 2.0]) + micro

    found = facts(nominal=Known(), grad_accum=2)
    kinds, _ = found.workload.kinds_of_steps(4, NUM_SAMPLES)
    asked = StepContext(found, 0, kinds[0])
    assert asked.ready_times(1) == (2.0, 3.0)
    assert asked.asked == {("nominal_times", 1): (2.0, 3.0)}
