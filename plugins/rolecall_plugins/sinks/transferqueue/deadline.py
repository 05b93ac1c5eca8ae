"""Blocking calls with an end: TransferQueue's client waits for ever for a controller that died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from rolecall.api import SinkError

_Result = TypeVar("_Result")


def within(timeout_s: float, what: str, call: Callable[[], _Result], hint: str = "") -> _Result:
    """Return ``call()``, or raise if it takes longer. The call itself can't be ended; it is left to
    a daemon thread, which does not keep the process alive.

    Raises:
        SinkError: it took too long, or raised; the original error is the cause.
    """
    outcome: Future[_Result] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (handed to the caller, who raises it)
            outcome.set_exception(error)

    threading.Thread(target=work, name=f"transferqueue: {what}", daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except SinkError:
        raise
    except TimeoutError as error:
        raise SinkError(f"TransferQueue: {what} took longer than {timeout_s:g} s. {hint}".rstrip()) from error
    except Exception as error:
        raise SinkError(f"TransferQueue: {what} failed: {error}") from error
