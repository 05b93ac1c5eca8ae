"""Where a plugin's own code raised, without the frames of what called it."""

from __future__ import annotations

from rolecall.errors import PluginLoadError

_CALLERS = {"importlib", "pluggy", "rolecall"}
"""Packages whose frames lead to the plugin's code."""


def plugin_traceback(error: BaseException | None) -> str:
    """Return the traceback of the exception that made a plugin fail to load, ending with a line break.

    Looks along the causes of ``error``; an empty text if no plugin's code raised.
    """
    while error is not None and not isinstance(error, PluginLoadError):
        error = error.__cause__
    if error is None or error.__cause__ is None:
        return ""
    import traceback  # only a broken plugin needs it

    cause = error.__cause__
    frames = cause.__traceback__
    while frames is not None and frames.tb_frame.f_globals["__name__"].partition(".")[0] in _CALLERS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(cause), cause, frames))
