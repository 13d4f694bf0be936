"""How much of an all_reduce hides behind backward? As much as nobody waits for too early.

python -m simdp exec scenarios/overlap.py --world-size 4 -- 8

The argument is the number of layers. timeline.png shows both ways, one after the other.
"""

import sys

import numpy as np

import simdp.distributed as dist

LAYERS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
BACKWARD = 0.3e-3  # seconds per layer
NUM_WEIGHTS = 4_000_000  # of each layer, 16 MB


def backward(layer):
    """Take the time of a layer's backward."""
    dist.compute(seconds=BACKWARD, activity="backward", name=f"layer {layer}")


def one_after_the_other(gradients):
    """Wait for every all_reduce at once."""
    for layer in reversed(range(LAYERS)):
        backward(layer)
        dist.all_reduce(gradients[layer], op=dist.ReduceOp.AVG)


def side_by_side(gradients):
    """Wait for all of them in the end."""
    handles = []
    for layer in reversed(range(LAYERS)):
        backward(layer)
        handles.append(dist.all_reduce(gradients[layer], op=dist.ReduceOp.AVG, async_op=True))
    for handle in handles:
        handle.wait()


dist.init_process_group("nccl")
gradients = [np.ones(NUM_WEIGHTS, dtype=np.float32) for _ in range(LAYERS)]
for way in (one_after_the_other, side_by_side):
    dist.barrier()
    begin = dist.clock()
    way(gradients)
    if dist.get_rank() == 0:
        print(f"{way.__name__}: {(dist.clock() - begin) * 1e3:.2f} ms")
dist.destroy_process_group()
