"""Outcome: rates of work from a model's FLOPs, and what crosses wires and cards."""

import pytest
import yaml

import simdp
from simdp.cluster.stragglers import STRAGGLERS
from simdp.collectives.costs import LinksCost, Wiring
from simdp.collectives.costs.nccl import NcclCost
from simdp.engine.outcome import NOT_REACHED, ModelRates, wires_of
from simdp.scenario import checked
from simdp.studies.compare import compare
from simdp.studies.sweep import sweep
from tests.for_each import for_each

PEAK = {
    "peak": {"float32": "10 TFLOP/s", "float16": "40 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
}


def metrics(tmp_path, workload, cluster=None, **other):
    cluster = {"world_size": 2, "device": PEAK, "link": "nvlink3", **(cluster or {})}
    raw = {"cluster": cluster, "workload": workload, "numerics": False, **other}
    return simdp.simulate(checked(raw, tmp_path)).metrics


def test_mfu_is_three_forwards_of_products_over_the_peak_of_all_devices(tmp_path):
    mlp = {"model": {"kind": "mlp", "widths": [256, 512, 128]}, "microbatch": 64}
    per_sample = 3 * 2 * (256 * 512 + 512 * 128)
    for extra, cluster, peak in (
        ({}, {}, 2 * 10e12),
        ({"precision": "amp"}, {}, 2 * 40e12),
        ({}, {"ranks_per_device": 2}, 10e12),
        ({}, {"device": [PEAK, {**PEAK, "peak": {"float32": "30 TFLOP/s"}}]}, 40e12),
    ):
        m = metrics(tmp_path, mlp | extra, cluster)
        assert m["mfu"] == pytest.approx(m["throughput_samples_per_s"] * per_sample / peak)
        assert m["tokens_per_s"] is None
    inference = metrics(tmp_path, {**mlp, "mode": "inference"})
    per_forward = inference["throughput_samples_per_s"] * per_sample / 3 / 20e12
    assert inference["mfu"] == pytest.approx(per_forward)


def test_flops_of_a_causal_decoder_are_those_of_palms_appendix(tmp_path):
    model = {"kind": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50}
    data = {"kind": "tokens", "num_samples": 64, "sequence_length": 24}
    work = {"model": model, "dataset": data, "microbatch": 4, "loss": "cross_entropy"}
    products = 2 * 12 * 16 * 16 + 50 * 16
    per_token = 6 * products + 12 * 2 * 16 * 24  # causal attention in full
    kept = metrics(tmp_path, work)
    assert kept["model_flops"] == 2 * 4 * 24 * per_token
    done = kept["model_flops"] / kept["step_time_s"]
    assert kept["mfu"] == kept["hfu"] == pytest.approx(done / 20e12)
    assert kept["tokens_per_s_per_gpu"] == pytest.approx(kept["tokens_per_s"] / 2)
    for how, more in (
        ("selective", 4 * 2 * 16 * 24),  # attention is not fused
        ("selective_every_other", 4 * 2 * 16 * 24 + 2 * 2 * (1 + 4) * 16 * 16),
        ("blocks", 2 * 2 * 12 * 16 * 16 + 4 * 2 * 16 * 24),
    ):
        again = metrics(tmp_path, {**work, "recompute": how})
        assert again["model_flops"] == kept["model_flops"]
        assert again["hfu"] / again["mfu"] == pytest.approx(1 + more / per_token), how


def test_tokens_are_those_of_the_samples_without_their_padding(tmp_path):
    model = {"kind": "bert-base", "hidden_size": 16, "num_hidden_layers": 1} | {
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 50,
        "pad_id": 0,
    }
    data = {"kind": "tokens", "num_samples": 64, "sequence_length": 24}
    work = {"model": model, "dataset": data, "microbatch": 4, "loss": "cross_entropy"}
    full = metrics(tmp_path, work)
    assert full["tokens_per_s"] == pytest.approx(24 * full["throughput_samples_per_s"])
    padded = metrics(tmp_path, {**work, "dataset": {**data, "min_length": 2}})
    assert 2 < padded["tokens_per_s"] / padded["throughput_samples_per_s"] < 24


def test_a_model_that_only_has_times_has_no_rates(tmp_path):
    (tmp_path / "layers.csv").write_text(
        "name,forward_us,backward_us,gradient_bytes\na,10,20,4000\n"
    )
    m = metrics(tmp_path, {"model": {"kind": "profile", "path": "layers.csv"}, "microbatch": 4})
    assert all(m[name] is None for name in ModelRates._fields)


WIRING = Wiring(16, 2, 8, 1e-6, 400e9, 5e-6, 200e9, 4)


def test_nccls_ring_keeps_both_kinds_of_wires_busy_for_its_bytes():
    ring = NcclCost.model_validate({"algorithms": ["ring"]})
    nbytes, sent = 1e9, 2 * 15 / 16
    (first, n1, s1), (second, n2, s2) = wires_of(ring, WIRING, {("all_reduce", nbytes): 3.0})
    assert (first, second) == ("a node's network cards", "a device's links in its node")
    assert n1 == n2 == pytest.approx(3 * nbytes * sent)
    assert s1 == pytest.approx(n1 / 200e9)
    assert s2 == pytest.approx(n2 / 400e9)
    assert s1 <= 3 * ring.seconds("all_reduce", nbytes, WIRING)


def test_nobody_knows_the_wires_of_other_costs_and_one_rank_uses_none():
    calls = {("all_reduce", 1e9): 1.0}
    assert wires_of(LinksCost(), WIRING, calls) == []
    assert wires_of(NcclCost(), WIRING, None) == []
    assert wires_of(NcclCost(), WIRING._replace(world_size=1), calls) == []


NODES = {
    "world_size": 16,
    "devices_per_node": 8,
    "device": "h100-sxm5-80gb",
    "link": "nvlink4",
    "inter_node": {"link": "ib-ndr", "links_per_node": 4},
}


def network(tmp_path, cluster, **collectives):
    work = {"model": {"kind": "mlp", "widths": [256, 256]}, "microbatch": 4}
    raw = {"cluster": cluster, "workload": work, "numerics": False, "collectives": collectives}
    return simdp.simulate(checked(raw, tmp_path)).network


def test_a_ring_uses_one_card_of_a_node_and_a_hierarchy_all(tmp_path):
    assert network(tmp_path, NODES, all_reduce="ring")["cards"] == {"used": 1, "of": 4}
    assert network(tmp_path, NODES, all_reduce="hierarchical")["cards"] == {"used": 4, "of": 4}
    one = {**NODES, "inter_node": {"link": "ib-ndr"}}
    assert "cards" not in network(tmp_path, one, all_reduce="ring")
    assert "cards" not in network(tmp_path, {**NODES, "world_size": 8}, all_reduce="ring")


def test_a_timed_run_names_the_busier_wires(tmp_path):
    found = network(tmp_path, NODES, cost="nccl")
    assert found["num_links_used"] is None
    assert found["bottleneck"] == found["links"][0]
    assert 0 < found["links"][1]["utilization"] <= found["bottleneck"]["utilization"] <= 1
    alone = network(tmp_path, {**NODES, "world_size": 8}, cost="nccl")
    assert [link["link"] for link in alone["links"]] == ["a device's links in its node"]


# Events that a run is too short for ---------------------------------------------------------------

TWENTY_STEPS = {"model": {"kind": "mlp", "widths": [64, 64]}, "microbatch": 8, "steps": 20}

PAUSE = {"kind": "pause", "rank": 1, "every": "10 min", "duration": "36 s"}

TWO_NODES = {"devices_per_node": 1, "inter_node": {"topology": "switch", "link": "100gbe"}}


def short_run(tmp_path, workload=None, cluster=None, strategy="ddp"):
    cluster = {"world_size": 2, "device": PEAK, "link": "nvlink3", **(cluster or {})}
    workload = {**TWENTY_STEPS, **(workload or {})}
    raw = {"cluster": cluster, "workload": workload, "strategy": strategy, "numerics": False}
    return checked({k: v for k, v in raw.items() if v is not None}, tmp_path)


@pytest.mark.slow
@for_each(
    ("keys", "missed"),
    [
        (
            {"cluster": {"stragglers": [PAUSE]}},
            "the pause of rank 1 every 600 s (in the long run about 6 % of the time)",
        ),
        (
            {"cluster": {"stragglers": [{**PAUSE, "every": 20, "duration": "1 s"}]}},
            "the pause of rank 1 every 20 steps (in the long run about 99.9 % of the time)",
        ),
        ({"cluster": {"stragglers": [{**PAUSE, "every": 19}]}}, None),
        (
            {
                "cluster": {
                    **TWO_NODES,
                    "stragglers": [
                        {"kind": "degraded_link", "node": 1, "bandwidth": 0.1, "on": 5, "off": 20}
                    ],
                }
            },
            "a whole period of a flapping link, 25 steps (in the long run degraded in 20 % of the "
            "steps)",
        ),
        (
            {
                "cluster": {
                    **TWO_NODES,
                    "stragglers": [
                        {"kind": "degraded_link", "node": 1, "bandwidth": 0.1, "steps": [30, 40]}
                    ],
                }
            },
            "a degraded link from step 30 on",
        ),
        (
            {"strategy": {"kind": "ddp", "comm_hook": "power_sgd"}},
            "steps of the strategy after its first 1000, which differ",
        ),
        (
            {"strategy": {"kind": "local_sgd", "local_steps": 21}},
            "the average of weights every 21 steps",
        ),
        ({"strategy": {"kind": "local_sgd", "local_steps": 20}}, None),
        (
            {
                "workload": {"microbatch": None, "global_batch": 16, "rebalance": {"every": 20}},
                "strategy": {"kind": "ddp", "weight_by_shard": True},
            },
            "workload.rebalance every 20 steps",
        ),
    ],
)
def test_what_cannot_occur_in_a_run_is_said(tmp_path, keys, missed):
    found = simdp.simulate(short_run(tmp_path, **keys)).remarks.get(NOT_REACHED)
    assert found == (None if missed is None else f"20 steps are too short for {missed}")


def test_a_sweep_and_a_comparison_say_so_too(tmp_path):
    raw = short_run(tmp_path, cluster={"stragglers": [PAUSE]}).resolved()
    study = sweep(checked({**raw, "sweep": {"workload.microbatch": [8, 16]}}, tmp_path))
    assert all("the pause of rank 1" in point.remarks[NOT_REACHED] for point in study.points)
    file = tmp_path / "scenario.yaml"
    failing = {**raw["cluster"], "failures": [{"kind": "exponential", "mtbf": "1 h"}]}
    file.write_text(yaml.safe_dump({**raw, "cluster": failing}))
    notes = compare(file, {"strategy": ["ddp", "fsdp"]}).notes
    assert any(note.startswith("20 steps are too short for the pause") for note in notes)
    assert any(note.startswith("cluster.failures: not in this run") for note in notes)


@pytest.mark.slow
def test_the_long_run_share_of_a_pause_is_what_long_runs_lose(tmp_path):
    pause = {**PAUSE, "every": 10, "duration": "1 ms"}
    runs = [
        simdp.simulate(short_run(tmp_path, {"steps": 401}, {"stragglers": found})).metrics
        for found in ([pause], [])
    ]
    slow, even = (found["simulated_s"] for found in runs)
    (straggler,) = short_run(tmp_path, cluster={"stragglers": [pause]}).cluster.stragglers
    _, text = straggler.rare_event(runs[1]["step_time_s"])
    share = float(text.partition("about ")[2].partition(" %")[0]) / 100
    assert 1 - even / slow == pytest.approx(share, rel=0.02)


def test_every_straggler_that_comes_and_goes_names_its_rare_event():
    examples = {
        "pause": [PAUSE, {**PAUSE, "every": 7}],
        "degraded_link": [
            {"node": 1, "steps": [3, 4]},
            {"node": 1, "on": 2, "off": 8},
            {"node": 1},
        ],
        "slow_rank": [{"rank": 0, "factor": 2}],
        "slow_node": [{"node": 0, "factor": 2}],
        "empirical": [{"quantiles": [{"quantile": 0, "factor": 1}, {"quantile": 1, "factor": 2}]}],
        "gamma": [{"cv": 0.1}],
        "jitter": [{"sigma": 0.1}],
        "lognormal": [{"sigma": 0.1}],
        "shared_host": [{}],
    }
    assert examples.keys() == {*STRAGGLERS}
    for kind, written in examples.items():
        for one in written:
            straggler = STRAGGLERS[kind].model_validate({**one, "kind": kind})
            event = straggler.rare_event(1e-3)
            assert bool(event and event[0]) == straggler.comes_and_goes(), one
