import json

import pytest
from for_each import for_each
from kineto import put

from simdp.errors import ScenarioError
from simdp.traces import kind_of, read_ddp_logging

SAID = {
    "backend_name": "nccl",
    "module_name": "ResNet",
    "dtypes": "float",
    "bucket_sizes": "102228128",
    "rebuilt_bucket_sizes": "8196000, 31502336",
    "rank": 1,
    "world_size": 2,
    "iteration": 40,
    "num_parameter_tensors": 161,
    "total_parameter_size_bytes": 102228128,
    "avg_forward_compute_time": 40_000_000,
    "avg_backward_compute_time": 80_000_000,
    "avg_backward_comm_time": 60_000_000,
    "avg_backward_compute_comm_overlap_time": 50_000_000,
    "has_sync_bn": 0,
    "odd": [1],
}


def test_times_and_buckets(tmp_path):
    path = put(tmp_path / "ddp.json", json.dumps(SAID))
    found = read_ddp_logging(path)
    assert kind_of(path) == "ddp_logging"
    assert (found.rank, found.world_size, found.backend) == (1, 2, "nccl")
    assert (found.module, found.iteration, found.dtypes) == ("ResNet", 40, ("float32",))
    assert (found.forward_s, found.backward_s) == pytest.approx((0.04, 0.08))
    assert (found.backward_comm_s, found.overlap_s) == pytest.approx((0.06, 0.05))
    assert found.bucket_nbytes == (8196000, 31502336)
    assert (found.parameter_nbytes, found.num_parameters) == (102228128, 161)
    assert found.fields == {key: value for key, value in SAID.items() if key != "odd"}


def test_before_anything_was_timed_or_rebuilt(tmp_path):
    said = SAID | {"rebuilt_bucket_sizes": "", "avg_forward_compute_time": 0, "rank": "x"}
    found = read_ddp_logging(put(tmp_path / "ddp.json", json.dumps(said)))
    assert found.bucket_nbytes == (102228128,)
    assert (found.forward_s, found.rank) == (None, None)
    said["rebuilt_bucket_sizes"] = [5, 7]
    found = read_ddp_logging(put(tmp_path / "ddp.json", json.dumps(said)))
    assert found.bucket_nbytes == (5, 7)


@for_each(
    ("text", "why"),
    [
        ("", "is empty"),
        ("{", "is no JSON"),
        ("[]", "is no logging data of DDP: it lacks bucket_sizes and module_name"),
        ('{"module_name": "x"}', "is no logging data of DDP"),
    ],
)
def test_another_file_is_refused_in_a_line(tmp_path, text, why):
    path = put(tmp_path / "ddp.json", text)
    with pytest.raises(ScenarioError) as caught:
        read_ddp_logging(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: ")
    assert why in line
    assert "_get_ddp_logging_data()" in line
