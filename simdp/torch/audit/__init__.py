"""Audits a torch script: runs it on several numbers of ranks, and explains what differs.

The script runs in processes of its own, each with a changed suspect or none; the runs are compared
tensor by tensor, and a cause is named only if the difference vanishes with it.
"""

from __future__ import annotations

from simdp.torch.audit.script import ScriptAudit, audit_function, audit_script

__all__ = ["ScriptAudit", "audit_function", "audit_script"]
