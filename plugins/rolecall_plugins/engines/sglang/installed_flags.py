"""The server flags of the SGLang that an engine will run, and ``server_args`` held against them.

Asks the engine's own interpreter, in the engine's environment, which reads SGLang's sources
(``in_engine/rolecall_server_flags.py``, 0.5 to 1 s). Called before each start, so that a misspelt flag is
told at once, and not after half a minute by a process that ends.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import subprocess
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from rolecall.api import EngineStartError

from .server_flags import flag_of

logger = logging.getLogger(__name__)

_READER = Path(__file__).parent / "in_engine" / "rolecall_server_flags.py"
_FEWEST = 50
"""A SGLang whose sources show fewer flags is laid out in a way that is not known here."""


async def installed_flags(python: str, environment: Mapping[str, str]) -> frozenset[str] | None:
    """Return the flags, with their dashes; None if they can't be read, and SGLang has to judge alone.

    Raises:
        EngineStartError: there is no such interpreter, or it has no SGLang.
    """
    try:
        reader = await asyncio.create_subprocess_exec(
            python, str(_READER), env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise EngineStartError(
            f'the interpreter "{python}" can\'t be run: {error}; set engine_options.python to one that '
            "has SGLang"
        ) from error
    try:
        output, complaint = await reader.communicate()
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
    if reader.returncode != 0:
        logger.warning("the server flags of SGLang could not be read: %s", complaint.decode()[-500:])
        return None
    flags: list[str] | None = json.loads(output)
    if flags is None:
        raise EngineStartError(
            f'SGLang is not installed for the interpreter "{python}"; install rolecall[sglang], or set '
            "engine_options.python to an interpreter that has it"
        )
    return frozenset(flags) if len(flags) >= _FEWEST else None


def check_server_args(server_args: Mapping[str, Any], known: Set[str], python: str) -> None:
    """Refuse keys that are no flags of this SGLang.

    Raises:
        EngineStartError: names all of them, each with the nearest known one.
    """
    unknown = [key for key in server_args if flag_of(key) not in known]
    if not unknown:
        return
    keys = [flag[2:].replace("-", "_") for flag in known]
    raise EngineStartError(
        f'no flags of the SGLang installed for "{python}": '
        + ", ".join(f"server_args.{key}{_did_you_mean(key, keys)}" for key in unknown)
    )


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f' (did you mean "{match[0]}"?)' if match else ""
