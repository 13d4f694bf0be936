"""Parameters that some ranks do not use, against the mean written out rank by rank."""

import numpy as np
from draws import draws
from every_strategy import scenario
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

import simdp

DDP = {"kind": "ddp", "find_unused_parameters": True}
NAMES = [f"layers.{number}.{kind}" for number in range(3) for kind in ("weight", "bias")]
FLOATS = {"numerics": True, "dtype": "float64", "steps": 1}
PLAIN = {"optimizer": {"kind": "sgd", "lr": 0.1}, **FLOATS}
INF = {"kind": "inf", "rank": 0, "step": 2}
MLP = {"kind": "mlp", "widths": [6, 8, 5, 3]}


def play(strategy=None, world_size=4, **workload):
    found = simdp.simulate(scenario(strategy or DDP, world_size=world_size, **workload))
    return found.replicas


def alone(rank, world_size):
    """What the rank's own samples would teach: all others use nothing."""
    others = {other: NAMES for other in range(world_size) if other != rank}
    return play(world_size=world_size, unused=others, **PLAIN)[0]


sets = st.dictionaries(st.integers(0, 2), st.lists(st.sampled_from(NAMES), unique=True))


@draws(4, 8)
@given(sets)
def test_the_gradient_is_the_mean_over_all_ranks_of_which_some_add_zeros(unused):
    nobody = dict.fromkeys(range(3), NAMES)
    first = play(world_size=3, unused=nobody, **PLAIN)[0]
    each = [alone(rank, 3) for rank in range(3)]
    found = play(world_size=3, unused=unused, **PLAIN)
    for name in NAMES:
        changes = [
            own[name] - first[name]
            for rank, own in enumerate(each)
            if name not in unused.get(rank, ())
        ]
        wanted = first[name] + sum(changes, np.zeros_like(first[name]))
        for own in found:
            np.testing.assert_allclose(own[name], wanted, rtol=0, atol=1e-14)


def test_what_no_rank_uses_is_not_touched_and_what_one_uses_is():
    decay = {"optimizer": {"kind": "sgd", "lr": 0.1, "weight_decay": 0.5}, **FLOATS}
    nobody = {rank: ["layers.1.weight"] for rank in range(4)}
    first = play(unused=dict.fromkeys(range(4), NAMES), **decay)[0]
    untouched = play(unused=nobody, **decay)[0]
    np.testing.assert_array_equal(untouched["layers.1.weight"], first["layers.1.weight"])
    assert np.any(untouched["layers.1.bias"] != first["layers.1.bias"])
    some = play(unused={rank: nobody[rank] for rank in (0, 1, 2)}, **decay)[0]
    assert np.any(some["layers.1.weight"] != first["layers.1.weight"])


@for_each("options", [{"grad_accum": 2}, {"inject": [INF]}])
def test_accumulation_and_faults_find_their_gradients(options):
    unused = {0: ["layers.2.bias", "layers.2.weight"]}
    found = play(unused=unused, **{**PLAIN, "steps": 2, **options})
    for own in found[1:]:
        for name in NAMES:
            np.testing.assert_array_equal(own[name], found[0][name])


@for_each(
    ("strategy", "unused", "line"),
    [
        (
            DDP,
            {4: []},
            "workload.unused: rank 4 does not exist; with world_size 4, ranks are 0 ...",
        ),
        (DDP, {1: ["fc"]}, "workload.unused.1: no parameter is called 'fc'; known: layers.0.weig"),
        ({"kind": "zero2"}, {1: NAMES}, "workload.unused: strategy.kind: zero2 needs a gradient"),
        (
            {**DDP, "static_graph": True},
            {1: NAMES},
            "workload.unused: strategy.static_graph determines",
        ),
        (
            {"kind": "ddp"},
            {1: NAMES},
            "strategy.find_unused_parameters: rank 1 does not use layers.0.weight, so that its",
        ),
    ],
)
def test_what_cannot_be_is_refused(refuse, strategy, unused, line):
    wrong = {"cluster.world_size": 4, "strategy": strategy, "workload.unused": unused}
    (found,) = refuse({**wrong, "workload.model": MLP})
    assert found.startswith(line)
