"""What a rank finds reaches the process that started it."""

import pickle

from simdp.probes.arguments import handover


def test_what_is_collected_in_another_process_is_read_in_this_one():
    with handover() as (collect, read):
        assert read() is None
        pickle.loads(pickle.dumps(collect))({"steps": [1.5, 2.5]})
        assert read() == {"steps": [1.5, 2.5]}
