"""Recovery: what a job does when part of it fails."""

from __future__ import annotations

from simdp.spec import PositiveSeconds, Seconds, Spec


class Recovery(Spec):
    """What all policies have: the times that a restart from a checkpoint takes.

    Attributes
    ----------
    detection : float
        Until it is known that something failed [s].
    hang_timeout : float
        The same where nothing fails but nothing goes on either [s]; torch's process groups over
        NCCL give up after 10 min.
    rescheduling : float
        Until nodes are found for all processes [s]; the job is queued.
    restart : float
        Start of all processes until they load [s]; also when the job begins.
    load : float or None
        Until the state is back [s]; None: a checkpoint's bytes over storage, or the time of a
        write where only that is given.
    """

    kind: str
    detection: Seconds = 0.0
    hang_timeout: PositiveSeconds = 600.0
    rescheduling: Seconds = 0.0
    restart: Seconds = 0.0
    load: Seconds | None = None

    @property
    def num_spares(self) -> int | None:
        """Nodes that stand by; None where there always is another one."""
        return 0
