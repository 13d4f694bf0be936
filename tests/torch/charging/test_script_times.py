"""Scripts take as long as the same jobs written as scenarios; a benchmark has more of them."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.script_times import BOUND, CASES, scenario_seconds, script_seconds  # noqa: E402

EXACT = 0.001
"""What is met where no parameter is shared, normed or buffered."""

BOUNDS = {
    "mlp, one GPU": EXACT,
    "mlp, DDP on 4": EXACT,
    "mlp, DDP, 2 micro-steps": EXACT,
    "mlp, one GPU, 4 micro-steps": EXACT,
    "mlp, DDP, fp16 hook": EXACT,
    "deep mlp, DDP, bf16 hook": EXACT,
    "mlp, DDP, gradients as views": BOUND,
    "tiny mlp, one GPU": EXACT,
    "ResNet-50, bfloat16, one GPU": BOUND,
    "ResNet-18, DDP on 4": BOUND,
    "GPT-2, one GPU": BOUND,
    "llama, bfloat16, FSDP2 on 4": BOUND,
}


@pytest.mark.parametrize("name", list(BOUNDS))
def test_a_script_takes_as_long_as_the_scenario_of_the_same_job(name):
    (case,) = (case for case in CASES if case.name == name)
    expected = scenario_seconds(case)
    assert script_seconds(case) == pytest.approx(expected, rel=BOUNDS[name])
