"""A workload as small as they come, for what strategies say about workloads."""

from simdp.workload import Workload

LINEAR = {"kind": "linear", "in_features": 4, "out_features": 3}


def workload(**options):
    model = {"kind": "sequential", "layers": [LINEAR], "input_shape": [4]}
    data = {"kind": "regression", "num_samples": 640}
    return Workload.model_validate({"model": model, "dataset": data, "microbatch": 2, **options})
