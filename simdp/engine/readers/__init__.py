"""READERS of operations, which know nothing of each other.

`numbers` does what operations say to the arrays of all ranks, and `forecast` what can be said
without any; `memory` tells the `ledger` what devices hold, of `footprints` by how the model is
dealt; `costs` makes of them what the clocks play.
"""
