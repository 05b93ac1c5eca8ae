"""Which arrangements a layout in short may be, and which installed mode is for one of them.

Pure. Modes declare their arrangement; nothing here knows one by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rolecall.interfaces.placement_mode import Arrangement
from rolecall.placement.shorthand.notation import BESIDE, PIPE, THEN, Layout, LayoutError, Step, Term

_SIGNS = {
    Arrangement.APART: "a | b",
    Arrangement.SIDE_BY_SIDE: "a + b -> trainer",
    Arrangement.IN_TURN: "a -> b -> trainer",
}


Arrangements = tuple[Arrangement, ...]


def arrangements(layout: Layout, training: Collection[str]) -> Arrangements:
    """Return the arrangements that a layout may be read as, the nearest one first.

    Args:
        training: names of training roles; all others are inference roles.

    Raises:
        LayoutError: it is none; has the first sign that no arrangement has there.
    """
    if layout.pools[1:]:
        _refuse_mixed_pools(layout)
        return (Arrangement.APART,)
    steps = layout.pools[0]
    inference = [step for step in steps if step[0].role not in training]
    _refuse_misplaced_training(layout, steps, training)
    if len(inference) > 1:
        _refuse_mixed_steps(layout, inference)
        return (Arrangement.IN_TURN,)
    if inference and len(_roles(inference[0])) > 1:
        return (Arrangement.SIDE_BY_SIDE,)
    if len(steps) > 1:
        return (Arrangement.IN_TURN, Arrangement.SIDE_BY_SIDE)
    return (Arrangement.APART, Arrangement.SIDE_BY_SIDE, Arrangement.IN_TURN)


def choose_mode(
    layout: Layout,
    suited: Arrangements,
    modes: Mapping[str, Arrangement],
    *,
    named: str | None,
) -> tuple[str, Arrangement]:
    """Return the mode for one of the ``suited`` arrangements, and which one it is.

    Args:
        modes: what each mode declares.
        named: the mode that the job file names, if it does.

    Raises:
        LayoutError: no mode, or several.
    """
    if named is not None:
        return named, _declared(layout, suited, modes, named)
    for arrangement in suited:
        names = [name for name, declared in modes.items() if declared is arrangement]
        if len(names) > 1:
            message = (
                f"several modes lay roles out {arrangement}: {', '.join(sorted(names))}; choose one with"
            )
            raise LayoutError([layout.fault(_first_sign(layout), f"{message} placement.mode")])
        if names:
            return names[0], arrangement
    ways = " or ".join(suited)
    message = f"no installed placement mode lays roles out {ways}; see: rolecall plugins check"
    raise LayoutError([layout.fault(_first_sign(layout), message)])


def _declared(
    layout: Layout, suited: Arrangements, modes: Mapping[str, Arrangement], named: str
) -> Arrangement:
    declared = modes[named]
    if declared in suited:
        return declared
    signs = _SIGNS.get(declared)
    write = f"write {signs}, or leave placement.mode out" if signs else "the shorthand has no sign for it"
    message = f'this is {suited[0]}, but placement.mode = "{named}" is {declared}; {write}'
    raise LayoutError([layout.fault(_first_sign(layout), message)])


def _first_sign(layout: Layout) -> int:
    return next((term.after_at for term in layout.terms() if term.after), 0)


# --- signs that don't go together ---------------------------------------------------------------


def _refuse_mixed_pools(layout: Layout) -> None:
    """Apart, a pool has one role; its models may be side by side."""
    for steps in layout.pools:
        first = steps[0][0]
        strangers = [term for step in steps for term in step if term.role != first.role]
        later = [step[0] for step in steps[1:]]
        if strangers or later:
            wrong = min((*strangers, *later), key=lambda term: term.at)
            message = f'"{wrong.after}" beside "{PIPE}": a role that stands apart shares its pool with nobody'
            raise LayoutError([layout.fault(wrong.after_at, f"{message}; use one sign throughout")])


def _refuse_misplaced_training(layout: Layout, steps: tuple[Step, ...], training: Collection[str]) -> None:
    """Training roles are side by side in one step of their own, the last one."""
    for number, step in enumerate(steps):
        trains = step[0].role in training
        mixed = next((term for term in step if (term.role in training) is not trains), None)
        if mixed is not None:
            message = (
                f'an inference role and a training role can\'t be side by side; write "{THEN}" or "{PIPE}"'
            )
            raise LayoutError([layout.fault(mixed.after_at, message)])
        if trains and number < len(steps) - 1:
            following = steps[number + 1][0]
            also = following.role in training
            message = (
                f'training roles are side by side; write "{BESIDE}"' if also else "the trainer comes last"
            )
            raise LayoutError([layout.fault(following.after_at, message)])


def _refuse_mixed_steps(layout: Layout, inference: list[Step]) -> None:
    """Where inference roles take turns, each has a step of its own."""
    for step in inference:
        second = next((term for term in step if term.role != step[0].role), None)
        if second is not None:
            message = f'"{BESIDE}" beside "{THEN}": inference roles take turns, or all are side by side'
            raise LayoutError([layout.fault(second.after_at, message)])


def _roles(step: tuple[Term, ...]) -> set[str]:
    return {term.role for term in step}
