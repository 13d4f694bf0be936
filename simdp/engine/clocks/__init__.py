"""Two clocks for one plan: every transfer an event, or whole rounds as arrays.

The events happen in a `loop` of SimPy's, with one network of `links` and `transfers` over it; the
parameter server and rank programs live there, too.
"""
