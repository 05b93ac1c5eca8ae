"""One event of every kind that the system emits, as observers get them."""

from __future__ import annotations

from rolecall.events.event import Event

_ENGINE = "policy/replica-0"

SAMPLE_EVENTS: tuple[Event, ...] = tuple(
    Event(kind=kind, time_s=1_700_000_000.25 + number, fields=fields)
    for number, (kind, fields) in enumerate(
        (
            (
                "replica.state",
                {
                    "role": "solver",
                    "engine": _ENGINE,
                    "from": None,
                    "to": "STARTING",
                    "reason": "",
                    "generation": 1,
                    "incarnation": 1,
                    "token": 0,
                },
            ),
            (
                "replica.prepared",
                {
                    "role": "solver",
                    "engine": _ENGINE,
                    "bytes": 2**36,
                    "read_bytes": 2**35,
                    "seconds": 20.5,
                    "problem": None,
                },
            ),
            (
                "replica.memory",
                {"role": "solver", "engine": _ENGINE, "awake": True, "resident_bytes": 2**37},
            ),
            (
                "engine.reaped",
                {
                    "role": "solver",
                    "engine": _ENGINE,
                    "incarnation": 2,
                    "node": "10.0.0.7",
                    "killed": [4711, 4712],
                    "left": [],
                    "left_bytes": 0,
                    "vacant": True,
                },
            ),
            (
                "weights.update",
                {
                    "role": "solver",
                    "model": "policy",
                    "version": "42",
                    "source": "disk",
                    "current": None,
                    "updated": [],
                    "failed": [_ENGINE],
                },
            ),
            (
                "scale.state",
                {
                    "role": "solver",
                    "model": "policy",
                    "action": "scale_out",
                    "operation": "scale-1",
                    "from": "RUNNING",
                    "to": "DONE",
                    "reason": "every replica came",
                    "engines": [_ENGINE],
                    "left": [],
                },
            ),
            (
                "lease.state",
                {
                    "role": "solver",
                    "from": "SLEEPING",
                    "to": "ONLOADING",
                    "reason": "activate",
                    "token": 7,
                    "batch": None,
                },
            ),
            (
                "lease.reconciled",
                {
                    "role": "solver",
                    "operation": "reconcile-1",
                    "by": "ada@login-1",
                    "decided_s": 1_700_000_000.5,
                    "proof": "node-gone",
                    "note": "switched off",
                    "evidence": {_ENGINE: "FAILED: its node has left the cluster"},
                },
            ),
            (
                "operation.state",
                {
                    "operation": "solver-on-0",
                    "method": "activate",
                    "role": "solver",
                    "batch": 0,
                    "from": "WAITING",
                    "to": "CALLING",
                    "reason": "the role gets its command",
                    "token": 7,
                },
            ),
            ("batch.state", {"batch": 0, "from": None, "to": "PENDING", "reason": "begin"}),
            ("stage.state", {"batch": 0, "stage": "rules", "role": None, "state": "started"}),
            ("stage.progress", {"batch": 0, "stage": "generate", "done": 0, "total": 64, "tokens": 0}),
            (
                "router.started",
                {"role": "solver", "model": "policy", "url": "http://10.0.0.7:3000", "number": 1},
            ),
            ("router.ended", {"role": "solver", "model": "policy", "reason": 'it said "no",\nand 猫'}),
            ("handover", {"batch": 0, "role": "solver", "direction": "onload", "seconds": 0.5}),
            (
                "observer.raised",
                {"observer": "pager (acme-pager 1.2)", "event": "lease.state", "error": "OSError: no pager"},
            ),
        )
    )
)
