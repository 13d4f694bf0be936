"""The JSON of a diagnosis."""

import json

from simdp.results.diagnosis import BucketRow, Diagnosis, Finding, Remedy


def test_json_has_the_fields_that_tools_rely_on():
    finding = Finding(
        "straggler", 0.4, "Rank 3 is late.", (3,), 0.04, (Remedy("replace it", 0.06),)
    )
    buckets = (BucketRow(100, "float32"),)
    found = Diagnosis("kineto", 0.1, 0.05, 0.01, 0.02, 0.03, 4, buckets, (finding,))
    document = json.loads(found.to_json())
    fields = ["step_time_s", "compute_s", "exposed_comm_s", "hidden_comm_s", "idle_s", "num_ranks"]
    assert [document[field] for field in fields] == [0.1, 0.05, 0.01, 0.02, 0.03, 4]
    assert document["buckets"] == [{"num_elements": 100, "dtype": "float32"}]
    (verdict,) = document["verdict"]
    assert set(verdict) >= {"cause", "share", "evidence", "ranks", "remedies"}
    assert verdict["remedies"] == [{"change": "replace it", "step_time_s": 0.06}]
    assert verdict["ranks"] == [3]
