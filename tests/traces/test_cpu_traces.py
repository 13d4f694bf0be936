import pytest
from kineto import document, event, one_step, put, step

from simdp.traces import COMMUNICATION, COMPUTE, read_trace

DIMS = {"Input Dims": [[1000]], "Input type": ["float"]}
LISTS = {"Input Dims": [[[1000]], [], []], "Input type": ["TensorList", "", "Scalar"]}


def gloo(start, duration, name="all_reduce", tid=201, **args):
    return event("user_annotation", f"gloo:{name}", start, duration, tid, **(args or DIMS))


def events():
    """Two operators, the second of which calls an all-reduce that a thread of gloo carries out."""
    return [
        step(1, 0, 100),
        event("cpu_op", "aten::linear", 10, 20),
        event("cpu_op", "aten::addmm", 12, 10),
        event("cpu_op", "autograd::engine::evaluate_function: AccumulateGrad", 40, 30),
        event("cpu_op", "c10d::allreduce_", 50, 15, **LISTS),
        gloo(60, 35),
    ]


def trace_of(tmp_path, listed, **fields):
    return read_trace(put(tmp_path / "t.json", document(listed, deviceProperties=[], **fields)))


def names(columns):
    return [columns.names[code] for code in columns.name]


def test_outermost_operators_stand_in_for_kernels(tmp_path):
    trace = trace_of(tmp_path, events())
    kernels = trace.kernels
    gradient = "autograd::engine::evaluate_function: AccumulateGrad"
    assert names(kernels) == ["aten::linear", gradient, "gloo:all_reduce", gradient]
    assert kernels.start * 1e6 == pytest.approx([10, 40, 60, 65])
    assert kernels.end * 1e6 == pytest.approx([30, 50, 95, 70]), "less the call of c10d"
    assert kernels.kind.tolist() == [COMPUTE, COMPUTE, COMMUNICATION, COMPUTE]
    assert kernels.stream.tolist() == [100, 100, 201, 100]
    assert (kernels.launched == kernels.start).all()
    held = [trace.host.names[trace.host.name[op]] for op in kernels.op]
    assert held == names(kernels)


def test_the_backends_events_are_collectives(tmp_path):
    trace = trace_of(tmp_path, events())
    found = trace.collectives
    assert names(found) == ["all_reduce"]
    assert (found.num_elements[0], found.dtype[0], found.group[0]) == (1000, "float32", "0")
    assert (found.start[0], found.end[0], found.enqueued[0]) == pytest.approx((60e-6, 95e-6, 5e-5))
    assert trace.kernels.kind[found.kernel[0]] == COMMUNICATION
    assert (found.step[0], trace.device_name) == (0, None)
    assert trace.remarks[0].startswith("No device is in it: the outermost operators of each thread")


def test_calls_and_events_are_joined_in_order_by_name_and_size(tmp_path):
    small = {"Input Dims": [[[7]], []], "Input type": ["TensorList", ""]}
    listed = [
        step(1, 0, 200),
        event("cpu_op", "c10d::allreduce_", 10, 5, **LISTS),
        event("cpu_op", "c10d::allreduce_", 20, 5, **small),
        event("cpu_op", "c10d::allreduce_", 30, 5, **LISTS),
        event("cpu_op", "c10d::broadcast_", 40, 5, **small),
        gloo(35, 5, **{"Input Dims": [[7]], "Input type": ["float"]}),
        gloo(41, 5),
        gloo(90, 5, tid=202),
    ]
    found = trace_of(tmp_path, listed).collectives
    assert names(found) == ["all_reduce", "broadcast", "all_reduce", "all_reduce"]
    assert found.enqueued * 1e6 == pytest.approx([20, 40, 10, 30])
    assert found.kernel.tolist() == [0, -1, 1, 2], "the broadcast was called, but is not seen"


def test_gloo_reduces_and_scatters_by_an_all_reduce(tmp_path):
    dims = {"Input Dims": [[500], [1000], []], "Input type": ["float", "float", ""]}
    listed = [
        event("cpu_op", "c10d::_reduce_scatter_base_", 10, 5, **dims),
        event("cpu_op", "c10d::allreduce_", 20, 5, **LISTS),
        gloo(30, 5),
        gloo(40, 5),
        gloo(50, 5),
    ]
    found = trace_of(tmp_path, listed).collectives
    assert names(found) == ["reduce_scatter", "all_reduce", "all_reduce"]
    assert found.num_elements.tolist() == [1000] * 3
    assert found.out_elements.tolist() == [500, 1000, 1000]
    assert found.enqueued[:2] * 1e6 == pytest.approx([0, 10])
    assert (found.kernel >= 0).all()


def test_messages_and_gathers(tmp_path):
    lists = {"Input Dims": [[], [[3]]], "Input type": ["", "TensorList"]}
    listed = [
        event("cpu_op", "c10d::allgather_", 0, 5, **lists),
        gloo(6, 5, "all_gather", **{"Input Dims": [[3]], "Input type": ["long int"]}),
        gloo(20, 5, "send", 100, **{"Input Dims": [[4, 2]], "Input type": ["double"]}),
        gloo(30, 5, "barrier", **{"Ev Idx": 0}),
    ]
    found = trace_of(tmp_path, listed).collectives
    assert names(found) == ["all_gather", "send", "barrier"]
    assert found.num_elements.tolist() == [3, 8, -1]
    assert found.out_elements.tolist() == [6, -1, -1]
    assert found.dtype.tolist() == ["int64", "float64", ""]


def test_with_a_device_the_hosts_collectives_are_kept_too(tmp_path):
    trace = trace_of(tmp_path, [*one_step(), gloo(5, 10)])
    assert names(trace.collectives) == ["all_reduce", "all_reduce"]
    assert trace.collectives.kernel.tolist() == [-1, 1]
    assert len(trace.kernels) == 3


def test_a_node_of_autograd_that_waits_for_a_collective_does_not_compute(tmp_path):
    node = "autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward"
    listed = [
        step(1, 0, 1000),
        event("cpu_op", node, 10, 600),
        event("cpu_op", "RegisterPostBackwardFunctionBackward", 11, 590),
        event("cpu_op", "aten::copy_", 20, 30),
        event("cpu_op", "aten::add", 560, 30),
        event("cpu_op", "aten::mm", 700, 200),
        gloo(100, 400),
        gloo(700, 200, tid=202),
    ]
    kernels = trace_of(tmp_path, listed).kernels
    at = kernels.kind == COMPUTE
    assert kernels.start[at] * 1e6 == pytest.approx([10, 500, 700])
    assert kernels.end[at] * 1e6 == pytest.approx([100, 610, 900]), "operators are never waiting"


def test_sizes_of_batches_and_gradients_are_kept(tmp_path):
    dims = {"Input Dims": [[32, 8], [4, 8], [4]]}
    listed = [
        event("cpu_op", "aten::linear", 10, 20, **dims),
        event("cpu_op", "aten::linear", 40, 20),
        event("cpu_op", "aten::relu", 70, 20, **dims),
        event("cpu_op", "torch::autograd::AccumulateGrad", 100, 20, **{"Input Dims": [[4, 8]]}),
        event("cpu_op", "aten::embedding", 130, 20, **{"Input Dims": [[9, 9], [2, "x"]]}),
    ]
    host = trace_of(tmp_path, listed).host
    assert host.elements.tolist() == [256, -1, -1, 32, -1]
