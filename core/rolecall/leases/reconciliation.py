"""The audit record of a reconciliation: who had a fence lifted, on what proof, and what was found.

Made by the ledger when the lease has left BLOCKED; kept in the journal and told as the event
``lease.reconciled``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from rolecall.engines.proof import Proof
from rolecall.ids import EngineId, RoleName


@frozen(kw_only=True)
class Claim:
    """What an operator presents.

    by: who presents it, as a person would be looked for: user and machine.
    """

    proof: Proof
    by: str
    note: str = ""


@frozen(kw_only=True)
class Reconciliation:
    """What came of a claim that was found true.

    decided_s: Unix time of the decision.
    evidence: engine → what its role found.
    """

    role: RoleName
    claim: Claim
    decided_s: float
    evidence: Mapping[EngineId, str] = field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values, flat; see :meth:`from_json`."""
        return {
            "role": self.role,
            "by": self.claim.by,
            "decided_s": self.decided_s,
            "proof": self.claim.proof.value,
            "note": self.claim.note,
            "evidence": dict(self.evidence),
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Reconciliation:
        """Inverse of :meth:`to_json`; other keys are passed over."""
        return Reconciliation(
            role=RoleName(record["role"]),
            claim=Claim(proof=Proof(record["proof"]), by=record["by"], note=record["note"]),
            decided_s=record["decided_s"],
            evidence={EngineId(engine): text for engine, text in record["evidence"].items()},
        )
