"""Which strategies refuse frozen parameters."""

from for_each import for_each

LOW = {"kind": "ddp", "mixed_precision": {"param_dtype": "bfloat16"}}


@for_each(
    ("strategy", "line"),
    [
        (
            {"kind": "parameter_server"},
            "workload.frozen: strategy.kind: parameter_server sends every weight and receives a "
            "gradient of each; use ddp or another strategy without a server.",
        ),
        (
            LOW,
            "workload.frozen: strategy.mixed_precision copies weights down and frees the copies "
            "with their gradients, of which frozen ones have none; leave it out, or write "
            "workload.precision.",
        ),
    ],
)
def test_strategies_that_cannot_carry_frozen_parameters_are_refused(refuse, strategy, line):
    wrong = {"strategy": strategy, "workload.frozen": ["*.bias"], "workload.dtype": "float32"}
    assert line in refuse(wrong)
