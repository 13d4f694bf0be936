"""Training steps as data: operations, the facts they depend on, and derived quantities.

A strategy yields `ops` from `facts`, with `passes` for forward and backward; `program` keeps the
plans of a run, and derives quantities from them; `partition` defines shards and buckets.
"""
