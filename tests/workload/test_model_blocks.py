"""Blocks: which modules a model repeats, found in the names of its parameters."""

from for_each import for_each

from simdp.workload import Workload
from simdp.workload.layers.base import block_names, grouped
from simdp.workload.layers.linear import Linear


def graph(model, dataset="images"):
    data = {"kind": dataset, "num_samples": 8}
    return Workload.model_validate({"model": model, "dataset": data, "microbatch": 2}).graph


@for_each(
    ("names", "found"),
    [
        (["layers.0.weight", "layers.0.bias", "layers.1.weight"], ["layers.0", "layers.1"]),
        (["conv1.weight", "layer1.0.conv1.weight", "fc.bias"], ["layer1.0"]),
        (["layer2.0.downsample.0.weight"], ["layer2.0"]),
        (["Mixed_5b.branch1x1.conv.weight", "fc.weight"], ["Mixed_5b"]),
        (["encoder.layers.0.norm.weight", "encoder.norm.weight"], ["encoder.layers.0"]),
        (["weight"], []),
    ],
)
def test_a_block_ends_with_the_first_number_of_a_name_or_is_its_first_part(names, found):
    assert block_names(names) == found


def test_layers_without_parameters_go_with_the_call_before_them():
    blocks = graph({"kind": "mlp", "widths": [4, 5, 6]}, "regression").blocks
    assert [(block.name, block.calls) for block in blocks] == [
        ("layers.0", (0, 1)),
        ("layers.1", (2,)),
    ]


def test_resnet_and_transformers_have_the_blocks_that_torch_wraps():
    names = [block.name for block in graph("resnet18").blocks]
    assert names == [f"layer{stage}.{number}" for stage in (1, 2, 3, 4) for number in (0, 1)]
    blocks = graph("gpt2", "tokens").blocks
    assert [block.name for block in blocks] == [f"transformer.h.{i}" for i in range(12)]
    assert {len(block.parameters) for block in blocks} == {12}


def test_every_call_and_parameter_is_in_one_block_or_the_root():
    model = graph("inception_v3")
    modules = model.modules([block.name for block in model.blocks])
    assert modules[0].name == ""
    calls = [number for module in modules for number in module.calls]
    assert sorted(calls) == list(range(len(model.calls)))
    names = [name for module in modules for name in module.parameters]
    assert sorted(names) == sorted(parameter.name for parameter in model.parameters)


def test_the_innermost_of_several_modules_holds_a_layer():
    layers = [Linear(name=name, in_features=2, out_features=2) for name in ("a.b", "a.c.d")]
    found = grouped(layers, layers, ["a", "a.c"])
    assert [(block.name, block.calls) for block in found] == [("", ()), ("a", (0,)), ("a.c", (1,))]


def test_what_several_modules_use_is_the_roots():
    shared = Linear(name="a.shared", in_features=2, out_features=2)
    other = Linear(name="b", in_features=2, out_features=2)
    found = {
        block.name: block.parameters for block in grouped([shared, other], [shared, other], ["a"])
    }
    assert found["a"] == ("a.shared.weight", "a.shared.bias")

    class Tied(Linear):
        def parameters(self):
            return shared.parameters()

    tied = Tied(name="b", in_features=2, out_features=2)
    found = {b.name: b.parameters for b in grouped([shared, tied], [shared, tied], ["a", "b"])}
    assert found == {"": ("a.shared.weight", "a.shared.bias"), "a": (), "b": ()}


def test_every_layer_is_a_block_where_only_times_are_known():
    model = {"kind": "parameters", "num_params": 100, "num_layers": 3}
    point = {"microbatch": 2, "step_time": "1 s"}
    raw = {"model": model, "compute": {"kind": "measured", "points": [point]}, "microbatch": 2}
    found = Workload.model_validate(raw).graph.blocks
    assert [block.name for block in found] == ["parameters.0", "parameters.1", "parameters.2"]
