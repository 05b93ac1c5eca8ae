"""A front's process: what it does with itself before it serves."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest

from rolecall.job import front


def test_what_start_up_made_is_no_work_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    async def serve_front(*_: Any, ready: Callable[[], None], **__: Any) -> None:
        frozen.append(gc.get_freeze_count())
        ready()

    monkeypatch.setattr(front, "serve_front", serve_front)
    monkeypatch.setattr(front, "_gateways_of", lambda plan, ending: {})
    plan = front.FrontPlan(file="job.toml", roles=(), discovery=None, drain_s=0)
    usual = gc.get_threshold()
    # Whatever other tests have done to this process.
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    with socket.socket() as bound:
        try:
            front.run_front(plan, [bound], ready=lambda: frozen.append(gc.get_freeze_count()))
        finally:
            eased = gc.get_threshold()
            gc.set_threshold(*usual)
            gc.unfreeze()
    assert frozen[0] < 1000 < frozen[1]
    assert eased[0] > 700
