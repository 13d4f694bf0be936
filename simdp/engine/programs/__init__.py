"""Rank programs: a thread per rank, one of which runs at a time, on a virtual clock.

A program's calls block, as those of torch.distributed do. A rank runs until it must wait; then the
baton goes to the rank that is next in virtual time. What lives here knows ranks, groups, calls and
instants; how a user writes them is in `simdp.distributed`.
"""
