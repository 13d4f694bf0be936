"""Finished jobs of plain figures, to be written and drawn."""

from simdp.results.job import BADPUT, JobRuns, JobStretch, JobStudy, Spread

HOUR = 3600.0


def job(chosen=None, shift=0.0, **more):
    """20 runs that take some hours."""
    finishes = [(20.0 + shift + number / 10) * HOUR for number in range(20)]
    strip = [
        JobStretch("startup", 0.0, 0.5 * HOUR),
        JobStretch("training", 0.5 * HOUR, 8 * HOUR),
        JobStretch("checkpoint_save", 8 * HOUR, 8.5 * HOUR),
        JobStretch("lost", 8.5 * HOUR, 10 * HOUR),
        JobStretch("recovery", 10 * HOUR, 11 * HOUR),
        JobStretch("checkpoint_restore", 11 * HOUR, 11.5 * HOUR),
        JobStretch("training", 11.5 * HOUR, finishes[0]),
    ]
    badput = dict.fromkeys(BADPUT, 0.0) | {"lost_work": 1.5 * HOUR, "recovery": HOUR}
    keys = {
        "set": chosen or {},
        "runs": len(finishes),
        "goodput": Spread.of([0.8 + number / 200 for number in range(20)]),
        "ettr": Spread.of([0.85] * 20),
        "finish_s": Spread.of(finishes),
        "cost_usd": None,
        "energy_kwh": None,
        "num_failures": 1.0,
        "mttf_s": 21 * HOUR,
        "badput_s": badput,
        "chance_to_finish": None,
        "finish_interval_s": (20 * HOUR, 21.9 * HOUR),
        "assumed": {
            "num_steps": 10000,
            "step_s": 6.5,
            "num_nodes": 8,
            "mttf_s": 20 * HOUR,
            "interval_steps": 100,
            "interval_s": 650.0,
            "blocking_s": 2.0,
            "background_s": 20.0,
            "load_s": 30.0,
            "price_date": "2026-05",
            "recovery": {"kind": "restart", "detection": "30 s", "restart": "300 s"},
        },
        "finishes": finishes,
        "strip": strip,
    }
    return JobRuns(**{**keys, **more})


def one_job(**more):
    """A job by itself."""
    return JobStudy("0.1.0", {"name": "small", "seed": 0}, more.pop("until_s", None), [job(**more)])


def three_jobs():
    """A sweep over intervals."""
    values = ["10 min", "daly", "30 min"]
    points = [
        job({"checkpoint.every": value}, shift, chance_to_finish=0.5)
        for value, shift in zip(values, (1.0, 0.0, 3.0), strict=True)
    ]
    scenario = {"name": "small", "seed": 0, "sweep": {"checkpoint.every": values}}
    return JobStudy("0.1.0", scenario, 22 * HOUR, points)
