"""Makes scenarios from traces of real steps, so that they can be changed."""

from simdp.studies.replay.remedies import remedies
from simdp.studies.replay.scenario import (
    Replayed,
    read_job,
    replay,
    replay_of,
    size_of,
)

__all__ = ["Replayed", "read_job", "remedies", "replay", "replay_of", "size_of"]
