"""Models of kind operators: what a file holds, and what is refused."""

import json

import pytest
from for_each import for_each
from small_scenario import MINIMAL

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.workload.layers.base import Kernel

RECORDING = {
    "format": 1,
    "module": "Net",
    "torch": "2.9.0",
    "inputs": [{"name": "x", "elements": 10}],
    "parameters": [["a.weight", [20, 10]], ["a.bias", [20]], ["b.weight", [5, 20]]],
    "buffers": [["steps", [], True]],
    "operators": [
        {
            "name": "a.addmm",
            "policy": "product",
            "takes": [0],
            "elements": 20,
            "learned": [1, 0],
            "products": 400,
            "forward": [[400, 30, 0, 220, 0]],
            "backward": [[400, 30, 0, 220, 0], [20, 20, 0, 20, 0]],
            "keeps": [[0], False],
        },
        {
            "name": "b.mm",
            "policy": "product",
            "takes": [1],
            "elements": 5,
            "learned": [2],
            "products": 200,
            "forward": [[200, 25, 0, 100, 0]],
            "backward": [[200, 25, 0, 100, 0], [200, 25, 0, 100, 0]],
            "keeps": [[0], False, 0, 3],
        },
    ],
    "output": 2,
}


def scenario(tmp_path, recording=RECORDING, **workload):
    (tmp_path / "net.json").write_text(json.dumps(recording))
    model = {"kind": "operators", "path": "net.json"}
    raw = {**MINIMAL, "workload": {"model": model, "microbatch": 4, **workload}}
    return checked(raw, base=tmp_path)


def test_a_file_gives_parameters_and_the_order_of_their_gradients(tmp_path):
    graph = scenario(tmp_path).workload.graph
    assert [p.name for p in graph.parameters] == ["a.weight", "a.bias", "b.weight"]
    assert graph.ready_order == ("b.weight", "a.bias", "a.weight")
    assert [buffer.name for buffer in graph.buffers] == ["steps"]
    assert graph.num_parameters == 200 + 20 + 100


def test_times_follow_the_roofline_of_the_device(tmp_path):
    found = scenario(tmp_path)
    device = found.cluster.device
    assert not found.numerics
    result = simdp.simulate(found)
    kernels = [(400, 30, 220), (200, 25, 100), *[(200, 25, 100)] * 2, (400, 30, 220), (20, 20, 20)]
    expected = sum(
        max(
            (4 * flops + device.half_work) / device.rate("float32"),
            4 * (4 * elements + fixed) / device.memory_rate,
        )
        + device.launch
        for flops, elements, fixed in kernels
    )
    assert result.metrics["compute_s"] == pytest.approx(expected, 1e-12)
    world, each = found.cluster.world_size, 3 * 600
    assert result.metrics["model_flops"] == pytest.approx(world * 4 * each)


def test_mixed_precision_halves_the_real_numbers_alone(tmp_path):
    for precision, itemsize in (("full", 4), ({"kind": "mixed", "dtype": "bfloat16"}, 2)):
        layer = scenario(tmp_path, precision=precision).workload.graph.calls[1].layer
        assert layer.forward_cost([], itemsize) == [Kernel(200, 25 * itemsize, 100 * itemsize)]
        assert layer.kept([], itemsize) == ((0,), False, 3, 0)


def broken(**keys):
    return {**RECORDING, **keys}


def operator(**keys):
    return broken(operators=[RECORDING["operators"][0], {**RECORDING["operators"][1], **keys}])


@for_each(
    ("recording", "told"),
    [
        (broken(format=2), "net.json: format: 2 "),
        (broken(output=0), "net.json: output: is no operator's; record the file again."),
        (broken(frozen=[3]), "net.json: frozen: there are 3 parameters; record the file again."),
        (broken(operators=[]), "net.json: operators: "),
        (operator(takes=[2]), "operators.1.takes: a value that is not computed before it"),
        (operator(learned=[9]), "operators.1.learned: there are 3 parameters"),
        (operator(keeps=[[4]]), "operators.1.keeps: there are 1 inputs"),
        (operator(policy="quick"), "operators.1.policy: "),
        (operator(forward=[[-1, 0]]), "operators.1.forward.0"),
        ([1, 2], "net.json: "),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_together_is_refused(recording, told, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path, recording)
    assert told in str(caught.value)
    assert all("\n" not in line for line in caught.value.problems)


@for_each(
    ("keys", "told"),
    [
        ({"loss": "mse"}, "its loss is among them; leave the loss out."),
        ({"compute": "profile"}, "nor times; write roofline, or measured."),
        ({"dataset": "blobs"}, "leave the dataset out."),
        ({"compile": True}, "has kernels but no numbers; leave this out."),
        ({"attention": "flash"}, "has kernels but no numbers; leave this out."),
        ({"lora": {"rank": 2, "targets": ["a"]}}, "has kernels but no numbers; leave this out."),
        ({"weights": "w.npz"}, "has kernels but no numbers; leave this out."),
    ],
    ids=lambda keys: next(iter(keys)) if isinstance(keys, dict) else "",
)
def test_keys_that_need_numbers_or_layers_are_refused(keys, told, tmp_path):
    with pytest.raises(ScenarioError, match=told):
        scenario(tmp_path, **keys)


def test_numbers_are_refused(tmp_path):
    (tmp_path / "net.json").write_text(json.dumps(RECORDING))
    model = {"kind": "operators", "path": "net.json"}
    raw = {**MINIMAL, "workload": {"model": model, "microbatch": 4}, "numerics": True}
    with pytest.raises(ScenarioError, match="numerics"):
        checked(raw, base=tmp_path)
