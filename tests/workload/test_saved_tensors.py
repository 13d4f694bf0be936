"""Bytes that autograd keeps of a Llama block, beside real torch: golden 20."""

import json
from pathlib import Path

from for_each import for_each

from simdp.workload import Workload
from simdp.workload.lifetimes import lifetimes, recomputed

CASES = json.loads((Path(__file__).parents[1] / "golden/g20_saved.json").read_text())["cases"]
RECOMPUTE = {
    "none": "none",
    "full": "blocks",
    "selective_all_mm": "selective",
    "selective_every_other_mm": "selective_every_other",
}
D, KV, FF, HEADS, BATCH, LENGTH = 32, 16, 48, 4, 3, 10
LLAMA = {
    "kind": "llama",
    "vocab_size": 7,
    "hidden_size": D,
    "intermediate_size": FF,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def kept_of_a_block(dtype, attention, **options):
    """What of the first block is there when forward is past it, but for what it hands on."""
    raw = {
        "model": LLAMA,
        "dataset": {"kind": "tokens", "num_samples": BATCH, "sequence_length": LENGTH},
        "loss": "cross_entropy",
        "microbatch": BATCH,
        "precision": "full" if dtype == "float32" else "mixed",
        "attention": attention,
        **options,
    }
    chosen = Workload.model_validate(raw).settled(Path())
    life, now, held = lifetimes(chosen, recomputed(chosen)), 0.0, []
    for stage in life.forward:
        now += sum(BATCH * tensor.per_sample + tensor.fixed for tensor in stage.taken)
        now -= sum(BATCH * tensor.per_sample + tensor.fixed for tensor in stage.given)
        held.append(now)
    first, *_, last = chosen.graph.blocks[0].calls
    return held[last] - held[first - 1]


@for_each("case", sorted(CASES))
def test_a_llama_block_keeps_what_torch_keeps(case):
    dtype, attention, how = case.split("|")
    attention = {"eager": "eager", "sdpa": "flash"}[attention]
    found = kept_of_a_block(dtype, attention, recompute=RECOMPUTE[how])
    assert found == CASES[case]["total_bytes"]


def test_a_llama_block_in_16_bit_keeps_float32_copies_of_its_norms_inputs():
    per_token = 20 * D + 4 * KV + 8 * FF + 4 * HEADS + 8
    assert kept_of_a_block("bfloat16", "flash") == BATCH * LENGTH * per_token


def test_a_compiled_block_keeps_inputs_of_products_and_of_norms():
    # Both norms' inputs and outputs, q, k, v, output; gate, up and their product.
    per_token = 2 * (6 * D + 2 * KV + 3 * FF) + 4 * HEADS
    assert kept_of_a_block("bfloat16", "flash", compile=True) == BATCH * LENGTH * per_token
    selective = kept_of_a_block("bfloat16", "flash", recompute="selective")
    again = kept_of_a_block("bfloat16", "flash", recompute="selective", compile=True)
    # Backward has no use for what leaves the block, which torch's partitioner finds out.
    assert again == selective - BATCH * LENGTH * 2 * D
