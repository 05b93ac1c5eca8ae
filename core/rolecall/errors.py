"""Every error rolecall raises on purpose, under one base.

Messages say what was asked, what was found, what is allowed and what to do next. Foreign
exceptions are translated at the edge where they enter and kept as ``__cause__``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from attrs import frozen


class RolecallError(Exception):
    """Base of all errors that rolecall raises on purpose.

    Every subclass can be pickled, whatever its constructor takes: errors travel between
    processes. The cause stays behind, as it may be anything.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with ``args``, which fails for constructors that take more
        # than the message.
        return _restore, (type(self), self.args), self.__dict__ or None


def _restore(kind: type[RolecallError], args: tuple[Any, ...]) -> RolecallError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


# --- config -----------------------------------------------------------------------------


@frozen(kw_only=True)
class ConfigProblem:
    """One thing wrong in a job file.

    ``key`` is the dotted path (``roles.judge.routing_policy``), ``line`` is 1-based or None
    where TOML gives no position, ``message`` names what was found, what is allowed and a fix.
    """

    file: str
    key: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigError(RolecallError):
    """A job file is wrong; carries every problem found, not just the first."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


# --- plugins ----------------------------------------------------------------------------


class PluginError(RolecallError):
    """Base of everything that can be wrong with a plugin."""


class UnknownPluginError(PluginError):
    """No installed distribution offers that name for that kind."""


class DuplicatePluginError(PluginError):
    """Two distributions claim one name of a kind."""


class PluginLoadError(PluginError):
    """A selected plugin raised while it was imported; the original error is the cause."""


class PluginContractError(PluginError):
    """A plugin was imported but breaks the contract of its kind."""


class ScaffoldError(RolecallError):
    """A new plugin can't be written: a name that can't be used, or a folder that is not empty."""


# --- placement --------------------------------------------------------------------------


@frozen
class Fix:
    """One way to lift a refusal that needs no judgement: keys of the job file and what to write there.

    Keys are dotted as TOML writes them, values what TOML reads; None takes the key out.

    >>> str(Fix((("placement.devices", 16), ("roles.judge.devices", None))))
    'placement.devices = 16 without roles.judge.devices'
    """

    assignments: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        written = " with ".join(
            f"{key} = {_toml(value)}" for key, value in self.assignments if value is not None
        )
        left_out = " and ".join(key for key, value in self.assignments if value is None)
        if not left_out:
            return written
        return f"{written} without {left_out}" if written else f"leave out {left_out}"


_SHOWN_ITEMS = 16


def _toml(value: Any) -> str:
    """Write a value for people; of a long list only how it begins."""
    if isinstance(value, list | tuple):
        items = [_toml(item) for item in cast("Sequence[object]", value)]
        more = len(items) - _SHOWN_ITEMS
        return f"[{', '.join(items if more <= 0 else [*items[:_SHOWN_ITEMS], f'… {more} more'])}]"
    return json.dumps(value, ensure_ascii=False)


@frozen(kw_only=True)
class Refusal:
    """One reason why a job can't be placed. Each rule of the core has a subclass, with its numbers.

    ``code`` is a stable kebab-case name for scripts; ``key`` the config key to change;
    ``message`` the rule with its numbers; ``fix`` what to write instead, for people; ``fixes`` the same
    where it is a value, each of which lifts the refusal alone.
    """

    code: str
    key: str
    message: str
    fix: str
    fixes: tuple[Fix, ...] = ()

    def __str__(self) -> str:
        return f"{self.key}: {self.message} [{self.code}]\n    fix: {self.fix}"


class PlacementRefused(RolecallError):
    """The job does not fit, on paper or on the probed bundles; carries all refusals."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("\n".join(str(refusal) for refusal in self.refusals))


# --- routing, requests ------------------------------------------------------------------


class RequestError(RolecallError):
    """A request can't be served; ``status`` is the HTTP status the gateway answers with."""

    status = 500


class PayloadError(RequestError):
    """The caller's payload, model or route key is wrong (400); ``field`` is its path."""

    status = 400

    def __init__(self, message: str, *, field: str) -> None:
        self.field = field
        super().__init__(message)


class ModelUnavailableError(RequestError):
    """The model exists but no replica may be asked now (503); retry after ``retry_after_s``.

    ``model`` is its id, None if it is not known which one is meant.
    """

    status = 503

    def __init__(self, message: str, *, retry_after_s: float = 1.0, model: str | None = None) -> None:
        self.retry_after_s = retry_after_s
        self.model = model
        super().__init__(message)


class RegistryUnavailableError(ModelUnavailableError):
    """The discovery registry can't be read or holds no valid snapshot for the role (503)."""


class UpstreamError(RequestError):
    """The engine could not be reached, or answered outside its protocol (502)."""

    status = 502


class UpstreamStatusError(RequestError):
    """The engine answered with an HTTP error; status and body are passed through.

    ``retry_after_s`` is what its ``Retry-After`` says, None if it says nothing.
    """

    def __init__(self, status: int, body: bytes, message: str, *, retry_after_s: float | None = None) -> None:
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DeadlineError(RequestError):
    """The request's deadline passed (504); the engine was told to abort it."""

    status = 504


class SnapshotError(RolecallError):
    """A discovery snapshot is not valid schema 2; the message names the field's path."""


# --- engines, leases, batches -----------------------------------------------------------


class TransitionError(RolecallError):
    """A state change that is not in the transition table was asked for."""


class ModelSourceError(RolecallError):
    """A model's ``source`` is malformed, or the model can't be had from it now."""


class EngineError(RolecallError):
    """An engine did not do what it was told."""


class RouterError(EngineError):
    """A model's router did not do what it was told, or could not be had."""


class EngineStartError(EngineError):
    """An engine did not become ready; the message ends with the tail of its log."""


class ReleaseNotProvedError(EngineError):
    """Release was answered, but memory is still held; the replica counts as awake."""


class CanaryMismatchError(EngineError):
    """After waking, the fixed prompt's log-probabilities differ: weights were lost."""


class CapabilityError(EngineError):
    """The operation is not allowed for this weight source or not offered by the backend."""


class InferenceRecoveryRequired(EngineError):
    """Survivors can't be ruled out; an operator must prove the slot free before a rebuild."""


class ScaleRefused(RolecallError):
    """A model can't be scaled as asked; nothing has changed."""


class ScaleConflictError(ScaleRefused):
    """Another change of the role's size is under way; only one is, at any time."""


class UnknownScaleOperationError(ScaleRefused):
    """There is no such operation, or it is too long ago."""


class StaleTokenError(RolecallError):
    """A lifecycle command carried a fencing token lower than one already seen."""


class LeaseError(RolecallError):
    """A lease can't be granted or returned."""


class LeaseBlockedError(LeaseError):
    """The lease, or one it conflicts with, is fenced: its remote result is unknown."""


class OperationReuseError(LeaseError):
    """An operation id was used again for another batch, method or role."""


class BatchFailedError(RolecallError):
    """The batch, or the run it belongs to, has failed; the message is the first failure."""


class JournalError(RolecallError):
    """The coordinator's journal can't be written or read; what was asked has not happened."""


class CommitTimeoutError(RolecallError):
    """A batch was not committed in time; names the batch and its present state."""


class ScoringError(RolecallError):
    """A score is missing, misshapen or not finite; nothing was written back."""


class SinkError(RolecallError):
    """A batch sink did not store, read or clear a partition."""


class JobError(RolecallError):
    """A job can't be started, found or stopped."""


class ClusterError(JobError):
    """The cluster did not give, show or take back what the job asked of it."""


class CleanupPendingError(ClusterError):
    """Something the job owns on the cluster could not be proved gone; the clean-up stays to do."""
