"""Every rolecall error survives the way between two processes, whatever its constructor takes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from rolecall import errors
from rolecall.errors import (
    ConfigError,
    ConfigProblem,
    ModelUnavailableError,
    PayloadError,
    PlacementRefused,
    Refusal,
    RegistryUnavailableError,
    RolecallError,
    UpstreamStatusError,
)

SPECIAL: list[RolecallError] = [
    ConfigError([ConfigProblem(file="job.toml", key="roles.x", message="unknown", line=3)] * 2),
    PlacementRefused([Refusal(code="too-small", key="placement.devices", message="2 < 4", fix="write 4")]),
    PayloadError("no text", field="payload.text"),
    ModelUnavailableError("asleep", retry_after_s=7.5),
    RegistryUnavailableError("no snapshot", retry_after_s=0.5),
    UpstreamStatusError(418, b"teapot", "the engine answered 418"),
]


def kinds() -> list[type[RolecallError]]:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return [kind for kind in found if issubclass(kind, RolecallError)]


def example(kind: type[RolecallError]) -> RolecallError:
    special = {type(error): error for error in SPECIAL}
    return special[kind] if kind in special else kind("what happened")


class ThirdPartyError(PayloadError):
    """A plugin's own error with a constructor of its own."""

    def __init__(self, *, code: int) -> None:
        self.code = code
        super().__init__(f"code {code}", field="payload.code")


def traits(error: BaseException) -> tuple[Any, ...]:
    return type(error), str(error), error.args, error.__dict__


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_it_left(kind: type[RolecallError]) -> None:
    error = example(kind)
    assert traits(pickle.loads(pickle.dumps(error))) == traits(error)
    assert traits(copy.copy(error)) == traits(error)


def test_a_third_partys_error_comes_back_too() -> None:
    error = ThirdPartyError(code=9)
    assert traits(pickle.loads(pickle.dumps(error))) == traits(error)


def test_notes_travel_and_the_cause_stays() -> None:
    error = PayloadError("no text", field="payload.text")
    error.add_note("in batch 3")
    error.__cause__ = ValueError(lambda: "nothing can pickle me")
    back = pickle.loads(pickle.dumps(error))
    assert back.__notes__ == ["in batch 3"]
    assert back.__cause__ is None
