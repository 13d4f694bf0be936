"""Which calls torch.compile makes one kernel of, and what it then keeps for backward."""

from pathlib import Path

import pytest
from for_each import for_each

import simdp
from simdp.scenario import checked
from simdp.workload import Workload
from simdp.workload.lifetimes import lifetimes, recomputed
from simdp.workload.transforms import Fused, chains

GPT2 = {
    "kind": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 6,
    "attn_pdrop": 0.0,
}  # fmt: skip
TOKENS = {"kind": "tokens", "num_samples": 8, "sequence_length": 6}


def workload(model=GPT2, dataset=TOKENS, **options):
    raw = {"model": model, "dataset": dataset, "microbatch": 2, **options}
    return Workload.model_validate(raw).settled(Path())


def named(graph):
    return [[graph.calls[n].layer.name for n in chain.calls] for chain in chains(graph)]


def test_elementwise_calls_between_products_are_one_chain_and_none_leaves_its_block():
    block = [
        ["ln_1"],
        ["attn.dropout", "attn.add", "ln_2"],
        ["mlp.act"],
        ["mlp.dropout", "mlp.add"],
    ]
    found = named(workload(loss="cross_entropy").graph)
    assert found == [[f"transformer.h.{i}.{n}" for n in names] for i in (0, 1) for names in block]


def test_what_flows_inside_a_chain_is_never_written_and_comes_from_what_enters():
    graph = workload(loss="cross_entropy").graph
    fused, first = Fused(graph), len(graph.inputs)
    chain = fused.chains[1]
    dropped, summed, normed = (first + number for number in chain.calls)
    assert chain.writes == (summed, normed)  # the sum goes around the next sublayer
    assert not fused.is_written(dropped)
    assert fused.sources(dropped) == [chain.reads[0]]
    assert fused.sources(summed) == [summed]


def test_pooling_batch_norm_and_products_stay_kernels_of_their_own():
    images = {"kind": "images", "num_samples": 8}
    graph = workload({"kind": "resnet18", "image_size": 32}, images, loss="cross_entropy").graph
    kinds = {graph.calls[n].layer.kind for chain in chains(graph) for n in chain.calls}
    assert kinds == {"relu", "add", "flatten"}


@for_each("recompute", ["none", "blocks", "selective"])
@for_each("precision", ["full", "amp", "mixed"])
def test_compiled_blocks_keep_less_and_give_everything_back(recompute, precision):
    kept = []
    for compiled in (False, True):
        chosen = workload(
            compile=compiled, recompute=recompute, precision=precision, loss="cross_entropy"
        )
        life, now = lifetimes(chosen, recomputed(chosen)), [0.0]
        order = [*life.forward, life.backward[-1]]
        again = {run.calls[-1]: run.again for run in recomputed(chosen)}
        for number in reversed(range(len(life.backward) - 1)):
            order += [life.again[n] for n in again.get(number, ())] + [life.backward[number]]
        for stage in (*order, life.end):
            now.append(now[-1] + sum(t.per_sample + t.fixed for t in stage.taken))
            now.append(now[-1] - sum(t.per_sample + t.fixed for t in stage.given))
        assert now[-1] == pytest.approx(0)
        kept.append(now[2 * len(life.forward)])
    if recompute == "none":
        assert kept[1] < kept[0]  # masks of dropout, and statistics of norms
    else:
        assert kept[1] <= kept[0]


def problems(model, **options):
    raw = {
        "cluster": {"world_size": 1, "device": "a100-sxm4-80gb"},
        "strategy": "single",
        "numerics": False,
    }
    work = {"model": model, "microbatch": 2, **options}
    with pytest.raises(simdp.errors.ScenarioError) as raised:
        checked({**raw, "workload": work}, Path())
    return raised.value.problems


def test_there_must_be_something_to_compile():
    einsum = {"kind": "einsum", "equation": "bd,df->bf", "d": 8, "f": 4}
    assert problems(einsum, compile=True, dataset={"kind": "regression", "num_samples": 8}) == [
        "workload.compile: no block of the model has an elementwise call to fuse; leave this out."
    ]


def test_a_cuda_graph_needs_samples_of_one_length():
    model = {"kind": "bert-base", "num_hidden_layers": 1, "pad_id": 0}
    data = {**TOKENS, "sequence_length": 24, "min_length": 2}
    assert problems(model, cuda_graphs=True, dataset=data, loss="cross_entropy") == [
        "workload.cuda_graphs: samples differ in length, but a graph has fixed shapes; leave this "
        "out, or give all samples one length."
    ]


def test_measured_times_hold_what_compilation_and_graphs_would_save():
    measured = {"kind": "measured", "points": [{"microbatch": 2, "step_time": "5 ms"}]}
    for key in ("compile", "cuda_graphs"):
        assert problems({**GPT2}, **{key: True}, compute=measured) == [
            f"workload.{key}: the times of compute: measured include it already; write false, or "
            "compute: roofline."
        ]
    assert problems({**GPT2}, host={"async_launch": True}, compute=measured) == [
        "workload.host: async_launch models the launches of single kernels; compute: measured "
        "includes these; leave it out."
    ]


def test_a_cuda_graph_leaves_nothing_to_launch_ahead():
    assert problems({**GPT2}, host={"async_launch": True}, cuda_graphs=True) == [
        "workload.host: async_launch models the launches of single kernels; a CUDA graph has "
        "none of these; leave it out."
    ]
