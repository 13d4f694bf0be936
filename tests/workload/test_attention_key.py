"""The key ``attention``: other kernels, with the same tensors, orders and calls."""

from for_each import for_each
from pydantic import TypeAdapter

from simdp.workload import Workload
from simdp.workload.models import AnyModel
from simdp.workload.transforms import in_kernels

TINY = {"kind": "gpt2", "vocab_size": 7, "n_positions": 8, "n_embd": 4, "n_layer": 2, "n_head": 2}


def ways(graph):
    """Implementations of a graph's attention."""
    layers = (call.layer for call in graph.calls)
    return {layer.implementation for layer in layers if layer.kind == "attention"}


def graph(model, **keys):
    data = {"kind": "tokens", "num_samples": 4}
    raw = {"model": model, "dataset": data, "microbatch": 2, **keys}
    return Workload.model_validate(raw).graph


@for_each(
    ("model", "usual"),
    [
        (TINY, "eager"),
        ("bert-base", "eager"),
        ("transformer-base", "eager"),
        ("llama3-8b", "flash"),
        ("qwen2.5-0.5b", "flash"),
        ("mistral-7b", "flash"),
        ("mpt-125m", "flash"),
        ("pythia-1b", "flash"),
    ],
)
def test_attention_runs_as_the_models_library_does_unless_it_is_told(model, usual):
    assert ways(graph(model)) == {usual}
    for way in ("eager", "flash"):
        assert ways(graph(model, attention=way)) == {way}


def test_the_tensors_and_all_orders_stay():
    chosen = TypeAdapter(AnyModel).validate_python(TINY).graph
    other = in_kernels(chosen, "flash")
    assert other.parameters == chosen.parameters
    assert other.ready_order == chosen.ready_order
    assert [c.inputs for c in other.calls] == [c.inputs for c in chosen.calls]
    assert [block.calls for block in other.blocks] == [block.calls for block in chosen.blocks]


def test_inference_keeps_what_was_chosen():
    way = {"attention": "flash", "mode": "inference", "optimizer": "none"}
    assert ways(graph(TINY, **way)) == {"flash"}


def test_a_model_without_attention_refuses_the_key(refuse):
    workload = {
        "model": {"kind": "mlp", "widths": [4, 3]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "microbatch": 8,
        "attention": "flash",
    }
    assert refuse(workload=workload) == [
        "workload.attention: the model has no attention; leave this out."
    ]


def test_a_model_of_times_refuses_the_key(refuse):
    workload = {
        "model": {"kind": "parameters", "num_params": 100},
        "microbatch": 8,
        "attention": "flash",
    }
    assert (
        "workload.attention: the model parameters has times but no numbers; leave this out."
        in refuse(workload=workload)
    )
