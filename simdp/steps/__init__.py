"""Training steps as data: operations, the facts they depend on, and derived quantities.

A strategy yields `ops`, from `facts` alone, with `passes` for forward and backward; `program` keeps
the plans of a run, and reads off them what others ask. `partition` deals parameters to ranks, and
`buckets` sorts tensors into what travels together.
"""
