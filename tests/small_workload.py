"""A workload as small as they come, and what strategies make of it, or of any gradients."""

from types import SimpleNamespace

from simdp.cluster.hardware import Overheads
from simdp.steps.facts import Facts, StepContext
from simdp.steps.ops import Unless
from simdp.steps.program import LATE, Program, flat
from simdp.workload import Workload
from simdp.workload.layers.base import Parameter

LINEAR = {"kind": "linear", "in_features": 4, "out_features": 3}
NUM_SAMPLES = 640
CLASSIFIER = {
    "kind": "transformer",
    "task": "classifier",
    "num_labels": 3,
    "vocab_size": 11,
    "d_model": 4,
    "nhead": 2,
    "num_layers": 1,
    "dim_feedforward": 6,
    "pad_id": 0,
}
"""A model of sequences, which may be padded."""


def workload(**options):
    model = {"kind": "sequential", "layers": [LINEAR], "input_shape": [4]}
    data = {"kind": "regression", "num_samples": NUM_SAMPLES}
    return Workload.model_validate({"model": model, "dataset": data, "microbatch": 2, **options})


def program(strategy, chosen=None, world_size=4, num_samples=NUM_SAMPLES, local_size=None):
    """What a strategy does with a workload."""
    return Program.of(strategy, chosen or workload(), world_size, num_samples, local_size)


def facts_of(
    parameters,
    ready,
    unused=(),
    world_size=4,
    itemsize=4,
    nominal=None,
    node_bandwidth=float("inf"),
    **overheads,
):
    """Facts of a model of which nothing but its gradients is known, each of a call of its own.

    Parameters
    ----------
    parameters : sequence of Parameter, or mapping of str to int
        In order of registration; by names and sizes they are vectors.
    ready, unused : sequence of str
        Names in the order in which gradients become ready, and those that have none.
    itemsize : int
        Bytes per element of a gradient.
    nominal, node_bandwidth
        As of `Facts`.
    """
    if isinstance(parameters, dict):
        parameters = [Parameter(name, (size,), 1.0) for name, size in parameters.items()]
    costs = Overheads(**overheads)
    found = Facts(workload(), world_size, world_size, costs, lambda: node_bandwidth, nominal)
    found.parameters, found.ready_order, found.unused = parameters, list(ready), list(unused)
    found.sizes = {parameter.name: parameter.num_elements for parameter in parameters}
    found.itemsize, found._gradient_dtype = itemsize, {2: "float16", 4: "float32"}[itemsize]
    calls = [SimpleNamespace(layer=None)] * len(ready)
    ready_at = [[name] for name in reversed(ready)]
    found.graph = SimpleNamespace(calls=calls, ready_at=ready_at, frozen=frozenset())
    return found


def step_of(facts, number=LATE):
    """A step long after the first ones, or another one."""
    kinds, _ = facts.workload.kinds_of_steps(facts.world_size, NUM_SAMPLES)
    return StepContext(facts, number, kinds[0])


def program_of(strategy, facts, num_steps=10):
    """What a strategy does where these are the facts."""
    kinds, _ = facts.workload.kinds_of_steps(facts.world_size, NUM_SAMPLES)
    return Program(strategy, facts, kinds, num_steps)


def ops_of(plan, *kinds):
    """Operations of some kinds, also those that a skipped update leaves out."""
    return [op for op in flat(plan) if isinstance(op, kinds) and not isinstance(op, Unless)]
