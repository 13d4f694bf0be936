"""Two points that tests of the leaderboard share, and the points of a scenario."""

from benchmarks.leaderboard.points import load

POINTS = load()

SHOWN = {
    **POINTS.points[0],
    "id": "a#0",
    "cluster": "here",
    "site": "there",
    "nodes": 1,
    "ranks": 4,
    "role": "calibration",
    "measured_s": 0.5,
}
LEFT_OUT = {**SHOWN, "id": "a#1", "ranks": 8, "nodes": 2, "role": "predicted", "measured_s": 0.7}


def named(name):
    """The points of a scenario."""
    return [point for point in POINTS.points if point["scenario"] == name]
