"""The audit: a lower bound on the loss of a release, from draws.

The theorems bound the loss from above; the audit tries to refute them. It draws releases from two
neighbouring data sets, distinguishes them as well as it can, and turns its success into a lower
bound on epsilon with a stated confidence. An audit refutes, it does not prove (docs/audit.md).
"""

from dynadp.research.audit.bounds import Bound, lower_bound
from dynadp.research.audit.cases import Case, random_cases, worst_cases
from dynadp.research.audit.entropy import Stream, repeats_itself
from dynadp.research.audit.node import AuditedNode
from dynadp.research.audit.verdict import Audit, audit, audit_mechanism

__all__ = [
    "Audit",
    "AuditedNode",
    "Bound",
    "Case",
    "Stream",
    "audit",
    "audit_mechanism",
    "lower_bound",
    "random_cases",
    "repeats_itself",
    "worst_cases",
]
