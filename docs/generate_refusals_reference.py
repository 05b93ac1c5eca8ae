"""Write ``docs/reference/refusals.md``: every refusal of a layout, with a job that triggers it.

    python docs/generate_refusals_reference.py

Every text is what rolecall really says of the examples in ``refusal_examples.py``. Tests hold the committed
page equal to what this writes, ask that no refusal's class is left out, and apply every fix that is a value.
"""

from __future__ import annotations

import inspect
import json
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs
from refusal_examples import (
    BASE,
    BINDING,
    LINES,
    PAPER,
    Changes,
    Line,
    borrowed,
    bound,
    job_table,
    said_of,
)

from rolecall.errors import Refusal
from rolecall.placement import binding_checks

PAGE = Path(__file__).parent / "reference" / "refusals.md"

INTRODUCTION = f"""\
<!-- Written by docs/generate_refusals_reference.py, which makes all of these happen; edit there. -->

# Refusals

Why a job is not started, in full. Nothing is started before the whole job has been checked, on paper by
`rolecall plan` and at the start of every job, and once more on the devices that the cluster really gave
([placement](placement.md)). All refusals are told at once, each with its code, the key to change, the rule
with its numbers, and a fix. Exit code 2. In Python: `PlacementRefused.refusals`, each a `Refusal` of a class
of its own, whose `fixes` are the fixes that are values. A fix lifts its refusal; where that was the only one,
the job can be placed.

Where an engine can't lie on the job's nodes, or the roles find no room, everything else is told as if that
had been mended as the first fix says.

The examples change keys of this job, which can be placed:

```toml
{BASE}```
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, _table(), *_paper(), *_binding(), *_layouts()])


def codes() -> dict[str, type[Refusal]]:
    """Return the class of each code on the page, in the page's order."""
    examples = [example.refusal for _, examples in PAPER.values() for example in examples]
    examples += [reports.refusal for reports in BINDING]
    return {code_of(refusal): refusal for refusal in (*examples, binding_checks.BorrowedBundleSize)}


def code_of(refusal: type[Refusal]) -> str:
    """Return the code that a class of refusals has."""
    return str(attrs.fields_dict(refusal)["code"].default)


def _table() -> str:
    rows = [f"| [`{code}`](#{code}) | {_meaning(refusal)} |" for code, refusal in codes().items()]
    return "\n".join(["| code | refused is |", "|---|---|", *rows]) + "\n"


def _meaning(refusal: type[Refusal]) -> str:
    text = " ".join(inspect.cleandoc(refusal.__doc__ or "").split("\n\n")[0].replace("``", "`").split())
    return (text[0].lower() + text[1:] if not text.startswith("`") else text).removesuffix(".")


def _paper() -> Iterator[str]:
    for heading, (prose, examples) in PAPER.items():
        yield f"## {heading}\n\n{_wrapped(prose)}\n"
        shown: set[type[Refusal]] = set()
        for example in examples:
            if example.refusal not in shown:
                yield _heading(example.refusal)
                shown.add(example.refusal)
            said = said_of(job_table(example.changes))
            if example.prose:
                yield f"{_wrapped(example.prose)}\n"
            yield _block("toml", _changed_keys(example.changes))
            yield _block("console", f"$ rolecall plan job.toml\n{said}")


def _changed_keys(changes: Changes) -> str:
    written = [f"{key} = {json.dumps(value)}" for key, value in changes.items() if value is not None]
    return "\n".join([*written, *(f"# without {key}" for key, value in changes.items() if value is None)])


def _binding() -> Iterator[str]:
    yield "## Binding\n"
    yield (
        _wrapped(
            "When the placement groups are there, a probe in every bundle reports its node and its device."
            " Here the job has one engine of four devices, planned on one node of four or on two of two."
        )
        + "\n"
    )
    for reports in BINDING:
        yield _heading(reports.refusal)
        per_node = reports.changes.get("placement.devices_per_node", 4)
        lines = [f"planned: 4 bundles, {per_node} a node"]
        lines += [
            f'pool "{probe.pool_id}", bundle {probe.bundle}: node {probe.node_ip}/{probe.node_id}, '
            + (f"device {probe.device_ids[0]}" if probe.device_ids else "no device")
            for probe in reports.found
        ]
        yield _block("text", "\n".join(lines))
        yield _block("text", bound(reports))
    yield _heading(binding_checks.BorrowedBundleSize)
    yield _block("text", 'lent: bundle 0 of {"GPU": 1}, bundle 1 of {"GPU": 2}')
    yield _block("text", borrowed())


def _layouts() -> Iterator[str]:
    yield "## Layouts in one line\n"
    yield (
        _wrapped(
            "`placement.layout` and `--layout` are read before anything is planned, so what is wrong with"
            " them is a problem of the job file: no code, but the character. In Python:"
            " `ConfigError.problems`."
        )
        + "\n"
    )
    for heading, lines in LINES.items():
        yield f"### {heading}\n"
        for line in lines:
            if line.changes:
                yield _block("toml", _changed_keys(line.changes))
            yield _block("console", told(line))


def told(line: Line) -> str:
    """Return the command with a layout, and what it says."""
    options = ("--layout", line.layout) if line.layout else ()
    command = " ".join(
        ["rolecall plan job.toml", *(["--layout", shlex.quote(line.layout)] if options else [])]
    )
    return f"$ {command}\n{said_of(job_table(line.changes), *options)}"


def _heading(refusal: type[Refusal]) -> str:
    return f"### {code_of(refusal)}\n\n{_wrapped(_meaning(refusal)[0].upper() + _meaning(refusal)[1:])}.\n"


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, width=110, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
