"""What a run's prompts were, kept beside its journal, so that a resumed run can't go on with others.

Which prompts a batch takes follows from its number, the prompt file and two settings. If one of these is not
what it was, a resumed run would train on some prompts twice and on others never, and nothing would show it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

from rolecall.batches.prompts_order import PromptSource
from rolecall.durable_files import write_durably
from rolecall.errors import JobError

_log = logging.getLogger(__name__)

_TOLD = {
    "prompts": "the number of prompts",
    "digest": "the prompts themselves",
    "prompts_per_batch": "batch.prompts_per_batch",
    "shuffle_seed": "batch.shuffle_seed",
}


def prompts_point_path(journal: Path) -> Path:
    """Return where the prompts of a run with this journal are told of."""
    return journal.with_name(f"{journal.name}.prompts")


def keep_prompts_point(journal: Path, source: PromptSource) -> None:
    """Note what the prompts of a run that begins are.

    Raises:
        JobError: it can't be written.
    """
    path = prompts_point_path(journal)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(source.resume_point()).encode())
    except OSError as error:
        raise JobError(f"{path} can't be written, so this run could not be resumed: {error}") from error


def check_prompts_point(journal: Path, source: PromptSource) -> None:
    """Return if a run that is resumed would take the prompts that it began with, or nobody noted them.

    Raises:
        JobError: it would take others; says what has changed.
    """
    path = prompts_point_path(journal)
    try:
        parsed: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        _log.warning("%s is not there: whether the prompts are those of the run before is not known", path)
        return
    except (OSError, ValueError) as error:
        raise JobError(f"{path}, which tells of the prompts of the run, can't be read: {error}") from error
    kept = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    now = source.resume_point()
    changed = [f"{_TOLD[name]} ({_shown(name, kept, now)})" for name in _TOLD if kept.get(name) != now[name]]
    if changed:
        raise JobError(
            f"the batches so far were made of other prompts; changed: {', '.join(changed)}. A resumed run "
            "would take some twice and others never. Put back what was changed, or begin anew with "
            f"`rolecall run` without --resume. To go on with the new ones all the same, remove {path}"
        )


def _shown(name: str, kept: dict[str, Any], now: Any) -> str:
    if name == "digest":
        return "another digest"
    return f"{kept.get(name)} → {now[name]}"
