"""Comm hooks as users write them."""

import numpy as np


def mean(state, bucket):
    return bucket.all_reduce(bucket.buffer() / bucket.world_size)


def half(state, bucket):
    sent = bucket.buffer().astype("float16")
    return bucket.all_reduce(sent).then(lambda total: total / bucket.world_size)


def first_half(state, bucket):
    """Sends every other number; what was not sent is added the next time."""
    key = " ".join(bucket.parameters())
    whole = bucket.buffer() + state.get(key, 0)
    state["calls"] = state.get("calls", 0) + 1
    begin = state["calls"] % 2
    sent = whole[begin::2].copy() if bucket.buffer().size % 2 == 0 else whole
    state[key] = whole
    if sent.size < whole.size:
        state[key][begin::2] = 0
    else:
        state[key] = np.zeros_like(whole)

    def end(total):
        if total.size == whole.size:
            return total / bucket.world_size
        found = np.zeros_like(whole)
        found[begin::2] = total / bucket.world_size
        return found

    return bucket.all_reduce(sent).then(end)


def doubled(state, bucket):
    """Nothing travels."""
    return 2 * bucket.buffer()


def by_name(state, bucket):
    for name, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if name.endswith("bias"):
            gradient[...] = 0
    return bucket.all_reduce(bucket.buffer()).then(lambda total: total / bucket.world_size)
