"""Comparisons: the same samples for every strategy, and points that cannot run."""

import numpy as np
import pytest
import yaml
from for_each import for_each
from small_scenario import CLUSTER, FAST

import simdp
from simdp.errors import ScenarioError
from simdp.strategies import STRATEGIES
from simdp.studies import many
from simdp.studies.compare import compare, keep_options
from simdp.studies.store import Store

pytestmark = pytest.mark.slow

WORKLOAD = {
    "model": {"kind": "mlp", "widths": [6, 5, 3]},
    "dataset": {"kind": "blobs", "num_samples": 64},
    "optimizer": {"kind": "sgd", "lr": 0.1},
    "dtype": "float64",
    "microbatch": 4,
    "steps": 3,
}
BOTH = {"strategy": ["single", "ddp"]}


@pytest.fixture
def lay(tmp_path):
    """Compare the points of a small scenario, whose sections may be changed."""

    def lay(over=BOTH, overrides=None, **top):
        sections = {"cluster": {"world_size": 4, **FAST}, "workload": WORKLOAD, **top}
        path = tmp_path / "box.yaml"
        path.write_text(yaml.safe_dump(sections, sort_keys=False))
        return compare(path, over, overrides)

    return lay


@pytest.fixture
def refused(lay, tmp_path):
    """The problems of a comparison that is refused, without the file's name."""

    def refused(*arguments, **top):
        with pytest.raises(ScenarioError) as caught:
            lay(*arguments, **top)
        return [line.removeprefix(f"{tmp_path / 'box.yaml'}: ") for line in caught.value.problems]

    return refused


def test_one_device_and_several_train_on_the_same_samples(lay):
    single, ddp = lay().points
    assert (single.world_size, ddp.world_size) == (1, 4)
    for point in (single, ddp):
        samples = point.metrics["throughput_samples_per_s"] * point.metrics["step_time_s"]
        assert samples == pytest.approx(16)
        assert point.changed["workload.global_batch"] == 16
    assert ddp.weights_difference < 1e-14
    assert ddp.metrics["loss"] == pytest.approx(single.metrics["loss"], rel=1e-12)


def test_every_strategy_runs_or_says_why_it_cannot(lay):
    kinds = ["single", *(kind for kind in STRATEGIES if kind != "single")]
    found = lay({"strategy": kinds})
    assert [point.label for point in found.points] == kinds
    assert all((point.metrics is None) == bool(point.problems) for point in found.points)
    assert all(point.same_weights is not None for point in found.ran)


def test_a_point_is_what_a_run_of_its_own_gives(lay, tmp_path):
    _, ddp = lay().points
    own = simdp.load_scenario(tmp_path / "box.yaml", {"strategy": "ddp", **ddp.changed})
    assert simdp.simulate(own).metrics == ddp.metrics


def test_the_notes_say_what_was_changed(lay):
    assert lay().notes == [
        "every point trains on the same 16 samples in a step: workload.global_batch: 16 in place "
        "of microbatch: 4 on 4 ranks.",
        "single runs on one device, cluster.world_size: 1.",
    ]


def test_values_of_one_strategy_keep_the_scenarios_batches(lay):
    found = lay({"strategy.bucket_cap": ["0 B", "25 MiB"]})
    assert found.notes == []
    assert [point.changed for point in found.points] == [{}, {}]
    assert found.points[1].weights_difference is not None


def test_a_global_batch_is_kept(lay):
    workload = {**WORKLOAD, "global_batch": 8}
    del workload["microbatch"]
    single, ddp = lay(workload=workload).points
    assert ddp.changed == {}
    assert single.changed == {"cluster.world_size": 1, "cluster.devices_per_node": 4}
    assert ddp.same_weights


def test_batches_dealt_by_rank_are_kept_and_single_says_that_it_cannot_take_them(lay):
    workload = {**WORKLOAD, "samples_per_rank": [8, 8, 8, 8]}
    single, ddp = lay(workload=workload).points
    assert single.problems == [
        "workload.samples_per_rank: has 4 entries for 1 ranks; give one each."
    ]
    assert ddp.metrics is not None


def test_a_list_of_micro_steps_is_kept_and_single_says_that_it_cannot_take_it(lay):
    workload = {**WORKLOAD, "grad_accum": [2, 3]}
    del workload["microbatch"]
    found = lay(workload=workload)
    assert found.points[0].problems == [
        "workload.grad_accum: gives each of 4 ranks its samples, so that one device would train on "
        "fewer; give global_batch and a number of micro-steps instead."
    ]
    assert found.notes == [
        "the batches are the scenario's own, since workload.grad_accum sets them by rank; "
        "strategies with a global_batch cannot use them."
    ]


def test_uneven_cuts_are_told_and_change_weights_where_ranks_count_the_same(lay):
    workload = {**WORKLOAD, "global_batch": 6}
    del workload["microbatch"]
    weighted = {"kind": "ddp", "weight_by_shard": True}
    found = lay({"strategy": ["single", "ddp", weighted]}, workload=workload)
    assert [point.same_weights for point in found.points] == [True, False, True]
    assert found.notes[0].startswith("6 samples do not divide among 4 ranks: weights differ")


def test_sums_that_are_averaged_are_told(lay):
    weighted = {"kind": "ddp", "weight_by_shard": True}
    workload = {**WORKLOAD, "loss": {"kind": "cross_entropy", "reduction": "sum"}}
    found = lay({"strategy": ["single", "ddp", weighted]}, workload=workload)
    assert [point.same_weights for point in found.points] == [True, False, True]
    assert (
        "the loss is a sum, and averaged gradients are those of a 4th of it: weights differ from "
        "one device's, unless weight_by_shard: true adds the sums up."
    ) in found.notes


def test_learning_rates_that_count_ranks_are_told(lay):
    found = lay(workload={**WORKLOAD, "lr_scaling": "linear"})
    assert found.notes[-1] == (
        "single learns at another rate, since lr_scaling: linear counts 1 device, not 4."
    )
    assert not found.points[1].same_weights


def test_a_model_of_measured_layers_takes_its_micro_batches_one_by_one(lay, tmp_path):
    table = "name,forward_us,backward_us,gradient_bytes\na,100,200,4000\n"
    (tmp_path / "layers.csv").write_text(table)
    model = {"kind": "profile", "path": "layers.csv"}
    workload = {"model": model, "microbatch": 4, "optimizer": "none"}
    single, ddp = lay(workload=workload).points
    assert single.changed["workload.grad_accum"] == 4
    assert single.metrics["compute_s"] == pytest.approx(4 * ddp.metrics["compute_s"])


def test_ranks_that_a_point_lacks_have_idle_stragglers_and_faults(lay):
    cluster = {
        "world_size": 4,
        **FAST,
        "stragglers": [{"kind": "slow_rank", "rank": 3, "factor": 2.0}],
    }
    alone, slowed = lay(cluster=cluster).points[0], lay().points[0]
    assert alone.metrics == slowed.metrics


def test_one_device_of_lists_and_nodes_is_the_first(lay):
    devices = ["v100-sxm2-16gb", *["a100-sxm4-80gb"] * 3]
    network = {"topology": "switch", "link": "ib-hdr", "links_per_node": 2, "nics": [0, 1]}
    cluster = {
        **CLUSTER,
        "device": devices,
        "devices_per_node": 2,
        "topology": ["switch", "ring"],
        "link": ["nvlink2", "nvlink3"],
        "inter_node": network,
    }
    single, ddp = lay(cluster=cluster, workload={**WORKLOAD, "dtype": "float32"}).points
    assert single.capacity_bytes == ddp.capacity_bytes == 15.78 * 2**30
    assert single.changed["cluster.device"] == "v100-sxm2-16gb"


def test_ranks_on_one_device_add_up_in_its_memory(lay):
    cluster = {"world_size": 4, "ranks_per_device": 2, **FAST}
    _, ddp = lay(cluster=cluster).points
    assert ddp.device_bytes == 2 * ddp.metrics["peak_memory_bytes"][0]


def test_several_keys_make_a_grid_whose_last_key_runs_fastest(lay):
    found = lay({**BOTH, "cluster.world_size": [2, 4]})
    assert [point.label for point in found.points] == [
        "single, world_size: 2",
        "single, world_size: 4",
        "ddp, world_size: 2",
        "ddp, world_size: 4",
    ]
    assert [point.changed["workload.global_batch"] for point in found.points] == [8, 16, 8, 16]


def test_a_key_that_names_a_machine_brings_each_points_own(lay):
    cluster = {"world_size": 4}
    over = {"cluster.machine": ["dgx-1", "dgx-a100"]}
    old, new = lay(over, cluster=cluster, workload={**WORKLOAD, "dtype": "float32"}).points
    assert old.capacity_bytes < new.capacity_bytes


def test_what_is_set_for_all_lets_each_machine_bring_the_rest(lay):
    cluster, small = {"machine": "dgx-1", "world_size": 4}, {**WORKLOAD, "dtype": "float32"}
    over, twice = {"cluster.machine": ["dgx-1", "dgx-a100"]}, {"workload.grad_accum": 2}
    found = lay(over, twice, cluster=cluster, workload=small)
    written = lay(over, cluster=cluster, workload={**small, "grad_accum": 2})
    assert [p.metrics for p in found.points] == [p.metrics for p in written.points]
    assert found.points[0].capacity_bytes < found.points[1].capacity_bytes


def test_what_the_file_says_of_its_hardware_is_noted_where_machines_are_compared(lay):
    cluster, small = {"world_size": 4, "link": "nvlink3"}, {**WORKLOAD, "dtype": "float32"}
    over = {"cluster.machine": ["dgx-1", "dgx-a100"]}
    (note,) = lay(over, cluster=cluster, workload=small).notes
    assert note.startswith("cluster.link: the file's own at every point; leave them out of it")
    assert lay(over, cluster={"world_size": 4}, workload=small).notes == []


def test_without_numerics_there_are_no_weights_to_compare(lay):
    found = lay(overrides={"numerics": False})
    assert [point.same_weights for point in found.points] == [None, None]
    assert found.points[0].metrics.last_loss is None


def test_models_of_other_shapes_are_not_compared(lay):
    other = {"kind": "mlp", "widths": [6, 4, 3]}
    found = lay({"workload.model": [WORKLOAD["model"], other]})
    assert [point.same_weights for point in found.points] == [True, None]


def test_weights_that_diverge_differ_by_no_number(lay):
    wild = {**WORKLOAD, "optimizer": {"kind": "sgd", "lr": 1e200}, "steps": 8}
    other = lay({"workload.optimizer.lr": [0.1, 1e200]}, workload=wild).points[1]
    assert (other.same_weights, other.weights_difference) == (False, None)


def test_weights_of_another_rate_differ_by_their_share_of_the_largest(lay, tmp_path):
    found = lay({"workload.optimizer.lr": [0.1, 0.2]}).points[1]
    runs = [
        simdp.simulate(simdp.load_scenario(tmp_path / "box.yaml", {"workload.optimizer.lr": lr}))
        for lr in (0.1, 0.2)
    ]
    first, second = (run.replicas[0] for run in runs)
    wanted = max(np.abs(second[k] - first[k]).max() / np.abs(first[k]).max() for k in first)
    assert found.weights_difference == pytest.approx(wanted)
    assert not found.same_weights


def test_parameters_that_differ_are_named(lay):
    frozen = {"kind": "sgd", "lr": 0.1, "param_groups": [{"params": ["layers.0.*"], "lr": 0.2}]}
    found = lay({"workload.optimizer": [WORKLOAD["optimizer"], frozen]})
    assert [point.num_parameters for point in found.points] == [4, 4]
    assert found.points[0].differing == []
    assert "layers.0.weight" in found.points[1].differing


@for_each(
    ("every", "warm_up", "steps", "counted", "averages", "whole"),
    [(4, 0, 3, 2, 0, 5), (4, 0, 10, 9, 2, 9), (2, 4, 7, 3, 1, 8)],
)
def test_periods_of_local_sgd_that_are_cut_off_are_told(
    lay, every, warm_up, steps, counted, averages, whole
):
    local = {"kind": "local_sgd", "local_steps": every, "warmup_steps": warm_up}
    found = lay({"strategy": ["ddp", local]}, {"workload.steps": steps, "numerics": False})
    assert (
        f"local_sgd averages weights every {every} steps; steps counted here: {counted}, averages "
        f"among them: {averages}; set workload.steps: {whole}, for whole periods."
    ) in found.notes


@for_each(("every", "warm_up", "steps"), [(4, 0, 9), (2, 4, 8), (1, 0, 3), (1, 9, 3)])
def test_whole_periods_of_local_sgd_need_no_note(lay, every, warm_up, steps):
    local = {"kind": "local_sgd", "local_steps": every, "warmup_steps": warm_up}
    found = lay({"strategy": ["ddp", local]}, {"workload.steps": steps, "numerics": False})
    assert not [note for note in found.notes if "whole periods" in note]


def test_a_point_that_cannot_run_leaves_the_others_alone(lay):
    found = lay(
        {"cluster.world_size": [2, 4, 80]},
        overrides={"workload.global_batch": 16, "workload.microbatch": None},
    )
    assert [point.metrics is not None for point in found.points] == [True, True, False]
    (why,) = found.points[2].problems
    assert why == "workload.global_batch: 16 samples cannot feed 80 ranks; use 80 or more."


def test_if_no_point_can_run_what_they_share_is_said_once(refused):
    (line,) = refused({"workload.grad_acum": [1, 2]})
    assert line.startswith("workload: unknown key 'grad_acum'. Did you mean 'grad_accum'? Known: ")


def test_if_no_point_can_run_each_says_why(refused):
    overrides = {"workload.global_batch": 2, "workload.microbatch": None}
    assert refused({"cluster.world_size": [4, 8]}, overrides) == [
        "with world_size: 4: workload.global_batch: 2 samples cannot feed 4 ranks; use 4 or more.",
        "with world_size: 8: workload.global_batch: 2 samples cannot feed 8 ranks; use 8 or more.",
    ]


def test_one_point_is_refused(refused):
    assert refused({"strategy": ["ddp"]}) == [
        "--over strategy=ddp: is one point, with nothing to compare it with; give two values or "
        "more, as in strategy=single,ddp."
    ]


@for_each("key", ["strategy", "strategy.kind"])
def test_an_unknown_strategy_is_refused_with_a_hint(refused, key):
    (line,) = refused({key: ["single", "dpd"]})
    assert line.startswith(f"--over {key}: unknown strategy 'dpd'. Did you mean 'ddp'? Known: ")


def test_a_wrong_option_of_a_strategy_is_refused(refused):
    (line,) = refused({"strategy": ["single", {"kind": "ddp", "bucket_cap": 25}]})
    assert line.startswith("--over strategy: bucket_cap: 25 has no unit")


def test_a_sweep_is_refused_unless_it_is_left_out(refused, lay):
    sweep = {"cluster.world_size": [2, 4]}
    assert refused(sweep=sweep) == [
        "sweep: compare has points of its own; leave it out, or --set sweep=null."
    ]
    assert len(lay(overrides={"sweep": None}, sweep=sweep).points) == 2


@for_each(
    ("over", "line"),
    [
        ({"strategy": []}, "--over strategy: [] is not a list of values; write for example [1]."),
        (
            {"name": ["a", "b"]},
            "--over name: cannot be swept; sweep a key of cluster, workload, ...",
        ),
        (
            {"seed": list(range(200)), "workload.steps": list(range(1, 101))},
            "--over makes 20000 points; at most 10000 are allowed.",
        ),
    ],
)
def test_keys_that_make_no_grid_are_refused(refused, over, line):
    assert refused(over) == [line]


def test_a_key_inside_of_nothing_is_refused_with_the_file(refused):
    assert refused({"cluster.world_size.x": [1, 2]}) == [
        "cluster.world_size.x: cluster.world_size is 4, which has no keys inside."
    ]


def test_progress_counts_the_points(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump({"cluster": {"world_size": 2, **FAST}, "workload": WORKLOAD}))
    heard = []
    compare(path, BOTH, progress=lambda number, count: heard.append((number, count)))
    assert heard == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.long
def test_several_processes_and_the_store_give_the_same(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump({"cluster": {"world_size": 4, **FAST}, "workload": WORKLOAD}))
    over = {"strategy": ["single", "ddp", "fsdp", "local_sgd"]}
    whole = compare(path, over).to_json()
    with Store(tmp_path) as store:
        assert compare(path, over, workers=2, store=store).to_json() == whole
    with Store(tmp_path, go_on=True) as store:
        assert compare(path, over, store=store).to_json() == whole
        assert store.num_found == 4


def test_a_point_that_fails_while_it_is_played_says_why(lay, monkeypatch):
    simulate = many.simulate

    def failing(point, **options):
        if point.strategy.kind == "ddp":
            raise MemoryError
        return simulate(point, **options)

    monkeypatch.setattr(many, "simulate", failing)
    single, ddp = lay().points
    assert (single.problems, ddp.metrics) == ([], None)
    assert "not enough memory" in ddp.problems[0]


def test_weights_that_are_large_are_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump({"cluster": {"world_size": 4, **FAST}, "workload": WORKLOAD}))
    monkeypatch.setattr(many, "MAX_KEPT", 10)
    for _ in range(2):
        with Store(tmp_path, go_on=True) as store:
            compare(path, BOTH, store=store)
            assert store.num_found == 0


# The file's own strategy --------------------------------------------------------------------------


def test_a_strategy_named_as_the_files_own_keeps_its_options():
    own = {"strategy": {"kind": "ddp", "bucket_cap": "2 MiB"}}

    def points(*values):
        return [({"strategy": value}, {"strategy": value}) for value in values]

    made = points("ddp", {"kind": "ddp"}, "fsdp")
    kept, (said,) = keep_options(own, made)
    assert kept == [0]
    assert [raw["strategy"] for _, raw in made] == [own["strategy"], {"kind": "ddp"}, "fsdp"]
    assert said == (
        "ddp has the options that the file gives it, bucket_cap: 2 MiB; write {kind: ddp} for its "
        "defaults. Other strategies have theirs."
    )
    kept, (said,) = keep_options(own, points("fsdp", "zero1"))
    assert kept == []
    assert said == (
        "the file's options of ddp, bucket_cap: 2 MiB, are left out: every value names its own."
    )
    for raw in ({"strategy": "ddp"}, {"strategy": {"kind": "ddp"}}, {}):
        assert keep_options(raw, points("ddp", "fsdp")) == ([], [])
    assert keep_options(own, [({"cluster.world_size": 2}, {})]) == ([], [])


def test_steps_that_differ_by_chance_show_how_far_their_mean_may_be_off(lay, tmp_path):
    slow = {"world_size": 4, **FAST, "stragglers": [{"kind": "jitter", "sigma": 0.5}]}
    workload = {**WORKLOAD, "steps": 9}
    over = {"strategy": ["ddp", {"kind": "ddp", "gradient_as_bucket_view": True}]}
    noisy = lay(over, cluster=slow, workload=workload)
    alone = simdp.load_scenario(tmp_path / "box.yaml", {"numerics": False})
    steps = np.diff(simdp.simulate(alone).step_ends, axis=1).mean(axis=0)[1:]
    error = steps.std(ddof=1) / len(steps) ** 0.5
    assert noisy.points[0].step_error_s == pytest.approx(error, rel=1e-9)
    assert noisy.points[0].is_tie(noisy.points[1])
    even = lay(over, workload=workload)
    assert [point.step_error_s for point in even.points] == [0.0, 0.0]
