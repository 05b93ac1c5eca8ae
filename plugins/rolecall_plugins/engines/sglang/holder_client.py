"""Commands to the weights holder inside an engine's schedulers; see ``in_engine/rolecall_weights_holder.py``.

One client for one engine on one node, used by the engine object, one call at a time. The engine's
process needs :meth:`WeightsHolder.environment` and :meth:`WeightsHolder.arguments`.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from rolecall.api import EngineError
from rolecall_plugins.engines.http_control import SglangControl

_MODULE = "rolecall_weights_holder"
_FOLDER = Path(__file__).parent / "in_engine"
_COMMANDS = ("keep", "drop", "restore", "report")
_NOTHING = base64.b64encode(pickle.dumps([])).decode()
"""No tensors: a command needs none, and SGLang's unpickler takes an empty list."""


@frozen(kw_only=True)
class Held:
    """What a command left, summed over the node's model-parallel ranks.

    weights_bytes: size of the model's parameters, whether or not a memory saver has them mapped; on a CPU 0
        while they are dropped.
    host_bytes: pinned memory of the host copy.
    seconds: of the slowest rank, without the way there and back.
    """

    weights_bytes: int
    host_bytes: int
    seconds: float


class WeightsHolder:
    """Args: ``ranks`` model-parallel ranks in all, ``ranks_here`` of them on this node."""

    def __init__(self, control: SglangControl, directory: Path, *, ranks: int, ranks_here: int) -> None:
        self._control = control
        self._directory = directory
        self._ranks = ranks
        self._ranks_here = ranks_here

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return variables of the engine's process; ``inherited`` is the environment it has otherwise."""
        path = [str(_FOLDER), inherited.get("PYTHONPATH", "")]
        return {
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "ROLECALL_HOLDER_DIR": str(self._directory),
        }

    def arguments(self) -> list[str]:
        """Return arguments of the engine's command."""
        return ["--custom-weight-loader", *(f"{_MODULE}.{command}" for command in _COMMANDS)]

    async def keep(self) -> Held:
        """Copy the weights from the device into pinned host memory."""
        return await self._command("keep")

    async def drop(self) -> Held:
        """Free weights in host memory (an engine on a CPU)."""
        return await self._command("drop")

    async def restore(self) -> Held:
        """Copy the kept weights to the device; on a CPU allocate their memory again."""
        return await self._command("restore")

    async def report(self) -> Held:
        """Look, change nothing."""
        return await self._command("report")

    def last_report(self) -> Held:
        """Return what this node's ranks reported last, on a follower: it can't be asked itself.

        The head's commands reach the ranks of all nodes, and each leaves its report on its own node. All
        zero before the head's first command.
        """
        return _sum([_read(path, "a command") for path in self._directory.glob("*.json")])

    async def _command(self, name: str) -> Held:
        """Have every rank carry out a command.

        Raises:
            EngineError: a rank failed or gave no report; what its weights are is not known then.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for old in self._directory.glob("*.json"):
            old.unlink()
        await self._control.update_weights_from_tensors(
            [_NOTHING] * self._ranks, load_format=f"{_MODULE}.{name}", flush_cache=False
        )
        answers = [_read(path, name) for path in sorted(self._directory.glob("*.json"))]
        if len(answers) != self._ranks_here:
            raise EngineError(
                f"{name} of the weights: of {self._ranks_here} ranks {len(answers)} reported in "
                f"{self._directory}"
            )
        return _sum(answers)


def _sum(answers: Sequence[Mapping[str, Any]]) -> Held:
    return Held(
        weights_bytes=sum(int(answer["weights_bytes"]) for answer in answers),
        host_bytes=sum(int(answer["host_bytes"]) for answer in answers),
        seconds=max((float(answer["seconds"]) for answer in answers), default=0.0),
    )


def _read(path: Path, command: str) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if answer["error"] is not None:
        raise EngineError(f"{command} of the weights failed in process {path.stem}: {answer['error']}")
    return answer
