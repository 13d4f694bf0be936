"""A small calibration whose figures are made up."""

from simdp.results.calibration import (
    CalibrationStudy,
    FittedConstant,
    FittedPoint,
    FittedStep,
    NextPoint,
    NextStep,
    StepCalibration,
)


def calibration():
    points = [
        FittedPoint("box.csv", "all_reduce", 1, 8, 1024.0, 1e-4, 1.1e-4, "ring", "ll"),
        FittedPoint("box.csv", "all_reduce", 1, 8, 2.0**20, 2e-4, 0.6e-4, "ring", "simple"),
    ]
    constants = (FittedConstant("launch", "10 us", "9 us", "11 us", True),)
    following = NextPoint("all_reduce", 1, 8, 2.0**24, "all_reduce of 25 MiB", 0.1, 0.05)
    return CalibrationStudy("box", constants, 0.05, "", "0.1.0", tuple(points), following)


def step_calibration(next_point=True):
    points = (
        FittedStep("box: world_size=2", 0.1, 0.104),
        FittedStep("box: world_size=4", 0.2, 0.19),
        FittedStep("box: world_size=8", 0.35, 0.36),
    )
    constants = (
        FittedConstant("cluster.overheads.message", "10 us", "9 us", "11 us", True),
        FittedConstant("collectives.cost.ramp", "3 us", "1 us", "90 us", False),
    )
    following = NextStep("box: world_size=16", 0.1, 0.05) if next_point else None
    return StepCalibration("box", constants, 0.04, "cluster: {}\n", "0.1.0", points, following)
