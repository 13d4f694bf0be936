"""Threads of ranks that a program of ranks leaves."""

import threading


def no_rank_is_left():
    """Whether the threads of all ranks end, however long a busy machine takes for it."""
    ranks = [each for each in threading.enumerate() if each.name.startswith("rank ")]
    for thread in ranks:
        thread.join(60)
    return not any(thread.is_alive() for thread in ranks)
