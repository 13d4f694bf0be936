"""A run for times alone holds no array of all samples."""

import tracemalloc

import numpy as np
from for_each import for_each

from simdp import load_scenario, simulate
from simdp.workload.sampling import BatchSchedule, distributed_sampler, without_indices

TEXT = """
numerics: false
cluster: {{world_size: 3, device: a100-sxm4-80gb, link: nvlink3}}
workload:
  model: {{kind: mlp, widths: [4, 8, 3]}}
  dataset: {{kind: blobs, num_samples: {num_samples}}}
  optimizer: {{kind: sgd, lr: 0.1}}
  {batch}
strategy: ddp
"""


def scenario_of(folder, num_samples, batch):
    path = folder / "s.yaml"
    path.write_text(TEXT.format(num_samples=num_samples, batch=batch))
    return load_scenario(path)


def test_a_hundred_million_samples_take_no_memory(tmp_path):
    scenario = scenario_of(tmp_path, 10**8, "microbatch: 4\n  shuffle: true\n  steps: 3")
    tracemalloc.start()
    try:
        simulate(scenario)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20


@for_each(
    "batch",
    [
        "microbatch: 4\n  epochs: 2",
        "microbatch: 4\n  drop_last: true\n  epochs: 2",
        "microbatch: 4\n  grad_accum: 3\n  drop_last: {sampler: false, loader: true}\n  steps: 9",
        "global_batch: 10\n  grad_accum: 2\n  epochs: 2",
        "microbatch: 4\n  shuffle: false\n  epochs: 2",
    ],
)
def test_times_are_those_with_an_order_of_the_samples(batch, tmp_path, monkeypatch):
    scenario = scenario_of(tmp_path, 101, batch)
    ends = simulate(scenario).step_ends
    batches = BatchSchedule.batches

    def with_indices(self, world_size, seed, base, *more, has_indices=False):
        return batches(self, world_size, seed, base, *more[:1])

    monkeypatch.setattr(BatchSchedule, "batches", with_indices)
    np.testing.assert_array_equal(simulate(scenario).step_ends, ends)


def test_an_order_without_indices_is_distributed_without_copies():
    parts = distributed_sampler(without_indices(10**9 + 1), 8, drop_last=False)
    assert (parts.shape, parts.strides) == ((8, 10**9 // 8 + 1), (0, 0))
