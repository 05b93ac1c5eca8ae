"""A worker: compares one answer with its reference, again and again, in a process of its own.

math-verify bounds its time with SIGALRM, which only works in a program's main thread, and turns what it
could not do within it into "not equal". So its time limits are off here: this process is killed from outside
when its time is up. Its own swallowing of errors is off, too, as far as it goes.

stdin: a line of JSON for each question; stdout: one for each answer, ``{"equal": bool}``, ``{"fault": why}``
for a reference that can't be read, or ``{"error": what}``. Ends with stdin. Run as a script, so that nothing
else is imported.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any


def main() -> None:
    """Answer until stdin ends."""
    questions, answers = sys.stdin, os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed by a library is no answer
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.set_int_max_str_digits(4300)
    import math_verify

    for line in questions:
        try:
            answer = _compare(math_verify, json.loads(line))
        except Exception as error:  # noqa: BLE001 - SymPy may raise anything; it is told as an error
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _compare(library: Any, question: dict[str, Any]) -> dict[str, Any]:
    forms = {
        "latex": library.LatexExtractionConfig,
        "expression": library.ExprExtractionConfig,
        "letter": library.StringExtractionConfig,
    }
    wanted = [forms[name]() for name in question["forms"]]
    gold = library.parse(
        question["reference"], extraction_config=wanted, parsing_timeout=None, raise_on_error=True
    )
    if not gold:
        return {"fault": "nothing in it can be read"}
    found = library.parse(
        question["response"], extraction_config=wanted, parsing_timeout=None, raise_on_error=True
    )
    equal = library.verify(
        gold,
        found,
        float_rounding=question["decimals"],
        strict=question["strict"],
        timeout_seconds=None,
        raise_on_error=True,
    )
    return {"equal": bool(equal)}


if __name__ == "__main__":
    main()
