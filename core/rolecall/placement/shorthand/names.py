"""The names in a layout in short, held against those of the job file. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.config.specs import JobConfig, ModelConfig
from rolecall.nearest import did_you_mean
from rolecall.placement.shorthand.notation import Layout, Term

_Name = tuple[str, str | None]
"""What has a share: a role and its model, or a training role and None."""


def name_faults(layout: Layout, config: JobConfig) -> Iterator[str]:
    """Each model and each training role with processes of its own stands in the layout once, in order."""
    wanted = _wanted(config)
    found: list[_Name] = []
    sound = in_order = True
    for term in layout.terms():
        fault = _term_fault(term, config)
        if fault is not None:
            sound = False
            yield layout.fault(*fault)
            continue
        name = (term.role, model_of(term, config)[0] if term.role in config.roles else None)
        later = [other for other in found if _trains(other, config) == _trains(name, config)][-1:]
        if name in found:
            yield layout.fault(term.at, f"{_words(name, config)} has a share already")
        elif in_order and later and wanted.index(later[0]) > wanted.index(name):
            in_order = False
            message = f"in the job file {_words(name, config)} stands before {_words(later[0], config)}"
            yield layout.fault(term.at, f"{message}, and so it does on the devices; write them in that order")
        found.append(name)
    missing = ", ".join(_words(name, config) for name in wanted if name not in found)
    if missing and sound:
        at = len(layout.text.rstrip())
        yield layout.fault(at, f"no share is given to {missing}; every role of the job needs one")


def _wanted(config: JobConfig) -> list[_Name]:
    inference = [(name, model) for name, role in config.roles.items() for model in role.models]
    return [*inference, *((name, None) for name, role in config.training.items() if role.on is None)]


def _term_fault(term: Term, config: JobConfig) -> tuple[int, str] | None:
    """Say what is wrong with a term's names, and where; None if nothing."""
    training, role = config.training.get(term.role), config.roles.get(term.role)
    if training is not None:
        if training.on is not None:
            return term.at, f'"{term.role}" is on the devices of "{training.on}"; leave it out'
        return (term.model_at, f'training role "{term.role}" has no models') if term.model else None
    if role is None:
        names = [*dict.fromkeys(name for name, _ in _wanted(config))]
        hint = did_you_mean(term.role, names) or "."
        return term.at, f'"{term.role}" is no role of this job{hint} Roles: {", ".join(names)}'
    models = list(role.models)
    if not models:
        return term.at, f'role "{term.role}" has no engines, and so no share; leave it out'
    if term.model is None and len(models) > 1:
        each = " + ".join(f"{term.role}.{model}[...]" for model in models)
        return term.at, f'role "{term.role}" has {len(models)} models; write {each}'
    if term.model is not None and term.model not in models:
        hint = did_you_mean(term.model, models) or "."
        return term.model_at, f'"{term.model}" is no model of "{term.role}"{hint} Models: {", ".join(models)}'
    return None


def _trains(name: _Name, config: JobConfig) -> bool:
    return name[0] in config.training


def _words(name: _Name, config: JobConfig) -> str:
    role, model = name
    several = model is not None and len(config.roles[role].models) > 1
    return f'"{role}.{model}"' if several else f'"{role}"'


def model_of(term: Term, config: JobConfig) -> tuple[str, ModelConfig]:
    models = config.roles[term.role].models
    name = term.model if term.model is not None else next(iter(models))
    return name, models[name]
