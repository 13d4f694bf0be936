"""What does all_reduce leave on every rank? The example of torch's tutorial, on virtual ranks.

python -m simdp exec scenarios/all_reduce.py --world-size 4
"""

import numpy as np

import simdp.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
tensor = np.arange(2) + 1 + 2 * rank
print(f"rank {rank} has {tensor}")
dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
print(f"rank {rank} has {tensor} after {dist.clock() * 1e6:.1f} us")
dist.destroy_process_group()
