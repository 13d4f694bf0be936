"""Checks of a workload that need its files, shapes and parameter names."""

from __future__ import annotations

from pathlib import Path

from simdp.errors import ScenarioError, joined, shown, unknown_name
from simdp.workload import Workload, weights
from simdp.workload.finetuning import matching
from simdp.workload.layers.base import ShapeError
from simdp.workload.sampling import Permutation, read_permutation


def workload_problems(workload: Workload, base: Path) -> list[str]:
    """Check shapes and files of a valid workload; return one line per error, led by the key.

    ``base`` is the folder of relative paths.
    """
    problems = []
    try:
        workload = workload.settled(base)
    except ScenarioError as error:
        if workload.model.unread:  # its own file; for others the check of the dataset reports it
            return [f"model: {line}" for line in error.problems]
    for key, check in (
        ("model", _problem_with_model),
        ("quantized", _problem_with_quantized),
        ("lora", _problem_with_lora),
        ("frozen", _problem_with_frozen),
        ("weights", _problem_with_weights),
        ("optimizer.param_groups", _problem_with_groups),
        ("optimizer", _problem_with_shapes),
        ("dataset", _problem_with_dataset),
        ("shuffle", _problem_with_shuffle),
        ("group_by_length", _problem_with_grouping),
        ("packing", _problem_with_packing),
        ("sync_batchnorm", _problem_with_synchronising),
        ("attention", _problem_with_attention),
        ("compile", _problem_with_compiling),
        ("cuda_graphs", _problem_with_cuda_graphs),
    ):
        try:
            wrong = check(workload, base)
        except ScenarioError as error:
            wrong = joined(error.problems)
        if wrong:
            problems.append(f"{key}: {wrong}")
            if key == "model":  # the others need its shapes
                break
    return problems


def _problem_with_model(workload: Workload, base: Path) -> str | None:
    model = workload.model
    lacking = [name for name, shape in model.input_shapes().items() if shape is None]
    if lacking:
        return f"the shape of {lacking[0]} is not known; {model.how_to_give_shapes()}"
    try:
        model.shapes(model.known_shapes())
    except ShapeError as error:
        return f"the layers do not chain: {error}."
    if not model.ready_order():
        return "it has no trainable parameters; add a layer such as linear."
    return None


def _problem_with_quantized(workload: Workload, base: Path) -> str | None:
    if workload.quantized is None:
        return None
    from simdp.workload.layers.linear import Linear
    from simdp.workload.transforms import can_be_stored, stored_weights

    layers = [layer for layer in workload.model.graph.registered if isinstance(layer, Linear)]
    for target in workload.quantized.targets:
        if not any(can_be_stored(layer, [target]) for layer in layers):
            return _no_linear(target, [layer.name for layer in layers])
    learned = [n for n in stored_weights(workload.graph) if n not in workload.graph.frozen]
    if learned:
        return (
            f"{learned[0]} is trainable, but weights in 4 bits are frozen; list it in frozen, or "
            "add lora."
        )
    return None


def _problem_with_lora(workload: Workload, base: Path) -> str | None:
    if workload.lora is None:
        return None
    from simdp.workload.transforms import Adapted, is_target  # imports layers

    layers = [call.layer for call in workload.model.graph.calls]
    names = list(dict.fromkeys(layer.name for layer in layers if isinstance(layer, Adapted)))
    for target in workload.lora.targets:
        if not any(is_target(layer, [target]) for layer in layers):
            return _no_linear(target, names)
    return None


def _no_linear(target: str, names: list[str]) -> str:
    lead = f"targets: no linear layer is called {shown(target)}"
    return unknown_name("", target, names, lead=lead) if names else f"{lead}; the model has none."


def _problem_with_frozen(workload: Workload, base: Path) -> str | None:
    names = [parameter.name for parameter in workload.graph.parameters]
    for pattern in workload.frozen:
        if not matching([pattern], names):
            return unknown_name("", pattern, names, lead=f"no parameter matches {shown(pattern)}")
    if workload.frozen and not workload.graph.ready_order:
        return "every parameter matches, so that nothing is trained; leave some out."
    return None


def _problem_with_weights(workload: Workload, base: Path) -> str | None:
    if workload.weights is None:
        return None
    names = workload.model.file_names
    return weights.problem_with(base / workload.weights, workload.graph, names, workload.adapters)


def _problem_with_groups(workload: Workload, base: Path) -> str | None:
    idle = workload.optimizer.unmatched([p.name for p in workload.graph.parameters])
    if not idle:
        return None
    return f"no parameter matches {idle[0]!r}; --save-weights shows the names."


def _problem_with_shapes(workload: Workload, base: Path) -> str | None:
    shapes = {parameter.name: parameter.shape for parameter in workload.graph.parameters}
    for name in workload.graph.ready_order:
        wrong = workload.optimizer.for_parameter(name).problem_with(name, shapes[name])
        if wrong:
            return wrong
    return None


def _problem_with_dataset(workload: Workload, base: Path) -> str | None:
    dataset = workload.dataset
    if workload.model.timed:
        dataset.length(base)  # only its existence matters
        return None
    wrong = dataset.problem_with(workload.model, workload.loss, base)
    path = getattr(dataset, "path", None)
    return f"{base / path}: {wrong}" if wrong and path else wrong


def _problem_with_grouping(workload: Workload, base: Path) -> str | None:
    if not workload.group_by_length or workload.lengths(0, base):
        return None
    return (
        "all samples are of one length; give the dataset lengths, or the model a pad_id, or leave "
        "this out."
    )


def _problem_with_packing(workload: Workload, base: Path) -> str | None:
    packing, model = workload.packing, workload.model
    if packing is None or model.timed:
        return None
    if model.graph.inputs != ("x",) or model.target_follows != "x":
        return f"joins samples of language models, and {model.kind} is none here; leave this out."
    if workload.dataset.drawn_lengths(model, 0, base) is None:
        return "there are no lengths of samples to join; give the dataset lengths."
    if workload.group_by_length:
        return "packs are equally long already; leave this or group_by_length out."
    ((takes,),) = model.known_shapes()
    if packing.most(model) != takes:
        return f"packs have {packing.most(model)} tokens, but the model takes {takes}; change one."
    eager = any(
        call.layer.kind == "attention" and call.layer.costly != "fused_attention"
        for call in workload.graph.calls
    )
    if packing.strategy == "bfd" and eager:
        return (
            "eager attention does not keep the samples of a pack apart; write attention: flash, "
            "or strategy: wrapped."
        )
    return None


def _problem_with_synchronising(workload: Workload, base: Path) -> str | None:
    if not workload.sync_batchnorm or workload.graph.is_synchronised:
        return None
    return "the model has no batch norm; leave this out."


def _problem_with_attention(workload: Workload, base: Path) -> str | None:
    if workload.attention is None:
        return None
    from simdp.workload.transforms import has_kernels  # imports layers

    if any(has_kernels(call.layer) for call in workload.graph.calls):
        return None
    return "the model has no attention; leave this out."


def _problem_with_compiling(workload: Workload, base: Path) -> str | None:
    if not workload.compile:
        return None
    from simdp.workload.transforms import chains  # imports layers

    if chains(workload.graph):
        return None
    return "no block of the model has an elementwise call to fuse; leave this out."


def _problem_with_cuda_graphs(workload: Workload, base: Path) -> str | None:
    if not workload.cuda_graphs or not workload.lengths(0, base):
        return None
    return (
        "samples differ in length, but a graph has fixed shapes; leave this out, or give all "
        "samples one length."
    )


def _problem_with_shuffle(workload: Workload, base: Path) -> str | None:
    if isinstance(workload.shuffle, Permutation):
        read_permutation(base / workload.shuffle.path, workload.num_samples(base), 0)
    return None
