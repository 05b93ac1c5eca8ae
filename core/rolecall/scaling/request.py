"""What may be asked for: :class:`ScaleOut` and :class:`ScaleIn`, and how they are read from JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from attrs import field, frozen, validators

from rolecall.errors import PayloadError

TIMEOUT_S = 1800.0
"""A large model's engine takes minutes to start, and a long request as long to end."""

LONGEST_TIMEOUT_S = 1_000_000.0

BASE_URL = (
    r"https?://(\[[0-9a-f:.]+\]|[A-Za-z0-9._-]+)"
    r"(:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4}))?"
    r"(/[A-Za-z0-9._~-]+)*/?"
)
"""What an engine's base URL looks like: nothing in it but a host, a port, and a path."""

_URL = re.compile(BASE_URL)
_positive: Any = validators.gt(0)


class OnPartial(StrEnum):
    """What happens to the replicas that came or went when others did not."""

    KEEP = "keep"
    ROLL_BACK = "roll_back"


@frozen(kw_only=True)
class ScaleOut:
    """More replicas: up to ``total`` of them, or one for each engine at ``urls`` that somebody else runs.

    total: all replicas of the model, the external ones too.
    urls: base URLs of engines; those that are replicas already are left as they are.
    model_path: checkpoint that those engines have to report; None: as the model's own replicas do.
    model: may be None for a role with one model.
    timeout_s: for the whole operation.
    """

    total: int | None = field(default=None, validator=validators.optional(_positive))
    urls: tuple[str, ...] = ()
    model_path: str | None = None
    model: str | None = None
    on_partial: OnPartial = OnPartial.KEEP
    timeout_s: float = field(default=TIMEOUT_S, validator=_positive)
    dry_run: bool = False


@frozen(kw_only=True)
class ScaleIn:
    """Fewer replicas: down to ``total``, the last that came first, and never those of the job file.

    force: end replicas whose requests do not end by themselves in ``lifecycle.drain_grace_s``; their callers
        get an error. Else they are waited for until the operation's time is over, and stay if it is.
    """

    total: int = field(validator=_positive)
    model: str | None = None
    force: bool = False
    on_partial: OnPartial = OnPartial.KEEP
    timeout_s: float = field(default=TIMEOUT_S, validator=_positive)
    dry_run: bool = False


ScaleRequest = ScaleOut | ScaleIn


def scale_out_from(body: Mapping[str, Any]) -> ScaleOut:
    """Return the request in a JSON object.

    Raises:
        PayloadError: a field is wrong, unknown or missing; names it.
    """
    fields = _Fields(body, {"total", "urls", "model_path", "model", "on_partial", "timeout_s", "dry_run"})
    total, urls = fields.whole("total"), fields.urls()
    if (total is None) == (not urls):
        raise PayloadError("total: give either total, or urls of engines that run already", field="total")
    model_path = fields.text("model_path")
    if model_path is not None and not urls:
        raise PayloadError("model_path: is about engines at urls, and none is given", field="model_path")
    return ScaleOut(total=total, urls=urls, model_path=model_path, **fields.common())


def scale_in_from(body: Mapping[str, Any]) -> ScaleIn:
    """Return the request in a JSON object.

    Raises:
        PayloadError: a field is wrong, unknown or missing; names it.
    """
    fields = _Fields(body, {"total", "model", "force", "on_partial", "timeout_s", "dry_run"})
    total = fields.whole("total")
    if total is None:
        raise PayloadError("total: is needed, the number of replicas that stay", field="total")
    return ScaleIn(total=total, force=fields.flag("force"), **fields.common())


class _Fields:
    def __init__(self, body: Mapping[str, Any], known: set[str]) -> None:
        for name in body:
            if name not in known:
                raise PayloadError(f"{name}: is unknown; there is {', '.join(sorted(known))}", field=name)
        self._body = body

    def common(self) -> dict[str, Any]:
        timeout_s = self._body.get("timeout_s", TIMEOUT_S)
        if (
            isinstance(timeout_s, bool)
            or not isinstance(timeout_s, int | float)
            or not (0 < timeout_s <= LONGEST_TIMEOUT_S)
        ):
            raise self._wrong("timeout_s", f"seconds above 0, up to {LONGEST_TIMEOUT_S:g}")
        on_partial = self._body.get("on_partial", OnPartial.KEEP)
        if on_partial not in list(OnPartial):
            raise self._wrong("on_partial", " or ".join(OnPartial))
        return {
            "model": self.text("model"),
            "on_partial": OnPartial(on_partial),
            "timeout_s": float(timeout_s),
            "dry_run": self.flag("dry_run"),
        }

    def whole(self, name: str) -> int | None:
        value = self._body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self._wrong(name, "a whole number from 1 on")
        return value

    def flag(self, name: str) -> bool:
        value = self._body.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise self._wrong(name, "a text that is not empty")
        return value

    def urls(self) -> tuple[str, ...]:
        value = self._body.get("urls")
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not value:
            raise self._wrong("urls", "a list of base URLs")
        found = [url for url in cast("list[object]", value) if isinstance(url, str) and _URL.fullmatch(url)]
        if len(found) < len(value):
            raise self._wrong("urls", "base URLs such as http://host:port, without credentials or a query")
        return tuple(dict.fromkeys(url.rstrip("/") for url in found))

    def _wrong(self, name: str, wanted: str) -> PayloadError:
        return PayloadError(f"{name}: must be {wanted}, found {self._body.get(name)!r:.200}", field=name)
