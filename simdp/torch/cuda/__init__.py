"""CUDA without CUDA: devices that exist on the virtual clock, with tensors in the host's memory.

A tensor is an ordinary one of the CPU. Which virtual device it is on is written on its storage,
so that views, saved tensors and gradients have it too; all of torch that asks is answered from
there, and a dispatch mode (`simdp.torch.charging`) passes it on from arguments to results.
"""
