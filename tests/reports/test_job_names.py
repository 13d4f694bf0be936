"""Names of a sweep's points: what tells them apart, and no more."""

from jobs_drawn import job, one_job, three_jobs

from simdp.reports.job_table import cells, names


def test_options_that_all_values_of_a_kind_have_go():
    elastic = {"kind": "elastic", "restart": "45 s"}
    values = [{"kind": "restart", "restart": "45 s"}, elastic, {**elastic, "rejoin": "at_once"}]
    points = [job({"recovery": value}) for value in values]
    assert cells(points, "recovery") == ["restart", "elastic", "elastic(rejoin=at_once)"]
    assert names(points) == ["restart", "elastic", "elastic(rejoin=at_once)"]


def test_plain_values_stand_behind_their_keys():
    assert names(three_jobs().points) == ["every: 10 min", "every: daly", "every: 30 min"]
    assert names(one_job().points) == [""]
