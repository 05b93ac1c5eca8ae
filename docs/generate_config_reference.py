"""Write ``docs/reference/config.md`` from the classes in ``rolecall.config.specs``.

    python docs/generate_config_reference.py

The classes' docstrings say what keys mean; types, defaults and limits are read from the
attributes. A test holds the committed page equal to what this writes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import attrs

from rolecall.config import specs
from rolecall.config.words import type_words

PAGE = Path(__file__).parent / "reference" / "config.md"
TABLES = (
    specs.JobConfig,
    specs.JobSection,
    specs.PlacementSection,
    specs.RoleConfig,
    specs.ModelConfig,
    specs.TrainingConfig,
    specs.LoopSection,
    specs.RewardConfig,
    specs.BatchSection,
    specs.SinkSection,
    specs.PluginsSection,
    specs.ClusterSection,
    specs.GatewaySection,
    specs.LifecycleSection,
)
INTRODUCTION = """\
<!-- Written by docs/generate_config_reference.py from core/rolecall/config/specs.py; edit there. -->

# The job file

One TOML file describes a job. `examples/quickstart.toml` is a small one that runs.

Every key that is not listed here is refused, with the nearest one that is. So is a value of
another type: text where a number belongs, `true` where a whole number belongs. A whole number may
stand for a number. All problems are told at once, each with file, line and key:

```text
job.toml:12: roles.judge.routing_policy: routing policy "cachaware" is not installed; \
did you mean "cache_aware"? Installed: affinity, cache_aware, round_robin. See: rolecall plugins list
```

Names of roles, modes, policies, engines, adapters, sinks and observers are names of
[plugins](plugins.md). A plugin's own table (`options`, `engine_options`) is checked in the same
way against the class that the plugin declares. Durations are seconds, sizes bytes; relative paths
start from the job file's folder.

Beyond single keys, these rules hold for the whole file:

- `default_model`, `aliases` and `route_keys` lead to models of their role, and an alias has no
  model's name.
- A role has at least one model, unless its options name engines elsewhere, as a teacher's may; one without
  engines has none, and no `devices`.
- A model's `weight_source` is one that its role allows.
- The role that a reward's adapter asks is a role of the job.
- `placement.nodes` stands instead of `placement.devices`, not beside it.
- A training role has a name that no inference role has. It says how many `devices` it takes, or which
  other training role it is `on`: one that is itself on no other, has at least as many devices, and says
  `offload` for both.
- With `[batch]`, exactly one role of the job makes samples, and the prompts file exists.
- A gateway that other machines can reach has a `bearer_token_env`, or says
  `allow_unauthenticated = true`.
"""
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<text>.*)", re.DOTALL)


def render() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *(_section(table) for table in TABLES)])


def _section(table: type[Any]) -> str:
    title, prose, meanings = describe(table)
    rows = [
        f"| `{field.name}` | {_type(table, field)} | {_default(field)} | {meanings[field.name]} |"
        for field in attrs.fields(table)
    ]
    head = "| key | value | default | meaning |\n|---|---|---|---|"
    return "\n\n".join([f"## {title}", *prose, "\n".join([head, *rows])]) + "\n"


def describe(table: type[Any]) -> tuple[str, list[str], dict[str, str]]:
    """Return a class's title, its prose and the meaning of each key, from its docstring."""
    first, *paragraphs = inspect.cleandoc(table.__doc__ or "").split("\n\n")
    title, _, summary = first.partition(": ")
    prose = [_sentence(summary)] if summary else []
    meanings: dict[str, str] = {}
    for paragraph in paragraphs:
        entries = list(_entries(paragraph))
        if entries:
            meanings.update(entries)
        else:
            prose.append(_sentence(paragraph))
    return _markdown(title).removesuffix("."), prose, meanings


def _entries(paragraph: str) -> Iterator[tuple[str, str]]:
    """Yield (key, meaning) from ``key, key: meaning`` lines with indented continuations."""
    for entry in re.split(r"\n(?=\S)", paragraph):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            return
        for name in match["names"].split(", "):
            yield name, _markdown(match["text"])


def _sentence(text: str) -> str:
    text = _markdown(text)
    return text[0].upper() + text[1:]


def _markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


def _type(table: type[Any], field: attrs.Attribute[Any]) -> str:
    words = type_words(get_type_hints(table)[field.name]).replace('"', "`")
    limits = ", ".join(_limits(field.validator))
    return f"{words}; {limits}" if limits else words


def _limits(validator: Any) -> Iterator[str]:
    """Yield what attrs' validators allow, looking into lists and optional ones."""
    if hasattr(validator, "compare_op"):
        yield f"{validator.compare_op} {validator.bound}"
    elif hasattr(validator, "pattern"):
        yield f"matches `{validator.pattern.pattern}`"
    elif hasattr(validator, "min_length"):
        yield f"at least {validator.min_length} inside"
    for inner in getattr(validator, "_validators", ()):
        yield from _limits(inner)
    if hasattr(validator, "validator"):
        yield from _limits(validator.validator)


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    factory = getattr(field.default, "factory", None)
    if factory is not None:
        return "empty" if factory is dict else "its defaults"
    if field.default is None:
        return "none"
    return f"`{json.dumps(field.default)}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
