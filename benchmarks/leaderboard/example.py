"""An entrant: one device's time plus the exposed part of a ring; reads JSON, prints times."""

import json
import sys


def seconds(point):
    """Time of a point; None without a prediction."""
    if point["kind"] != "step" or point["micro_step_s"] is None:
        return None
    compute = point["micro_step_s"] * point["grad_accum"]
    if point["ranks"] == 1:
        return compute
    bandwidth = point["inter_bandwidth"] or point["intra_bandwidth"]
    exchange = 2 * (1 - 1 / point["ranks"]) * point["gradient_bytes"] / bandwidth
    return compute + max(exchange - compute / 2, 0)


for question in json.load(sys.stdin)["questions"]:
    time = seconds(question)
    print("-" if time is None else f"{time} {time / 2} {time * 2}")
