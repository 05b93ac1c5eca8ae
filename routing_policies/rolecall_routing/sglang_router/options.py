"""Options of ``sglang_router``: the ``router_options`` table of a role."""

from __future__ import annotations

from typing import Any, Literal

from attrs import field, frozen, validators

_positive: Any = validators.gt(0)

Policy = Literal["manual", "round_robin", "random", "cache_aware"]


@frozen(kw_only=True)
class SglangRouterOptions:
    """How the router chooses among its workers.

    policy: ``manual`` keeps the requests of one ``X-SMG-Routing-Key`` on one engine, and gives a new key
        to the engine that has the fewest; requests without a key go anywhere. ``round_robin`` and
        ``random`` ignore keys. ``cache_aware`` follows common beginnings of ``text`` (it does not see
        ``input_ids``) until loads differ by the two thresholds.
    prefill_policy, decode_policy: for the halves of prefill/decode pairs; None takes ``policy``.
    cache_threshold, balance_abs_threshold, balance_rel_threshold: of ``cache_aware``.
    """

    policy: Policy = "manual"
    prefill_policy: Policy | None = None
    decode_policy: Policy | None = None
    cache_threshold: float = field(default=0.3, validator=[validators.ge(0), validators.le(1)])
    balance_abs_threshold: int = field(default=64, validator=_positive)
    balance_rel_threshold: float = field(default=1.5, validator=_positive)

    def flags(self) -> list[str]:
        """The router's command line for these options."""
        flags = ["--policy", self.policy, "--assignment-mode", "min_group"]
        if self.prefill_policy is not None:
            flags += ["--prefill-policy", self.prefill_policy]
        if self.decode_policy is not None:
            flags += ["--decode-policy", self.decode_policy]
        return [
            *flags,
            *("--cache-threshold", str(self.cache_threshold)),
            *("--balance-abs-threshold", str(self.balance_abs_threshold)),
            *("--balance-rel-threshold", str(self.balance_rel_threshold)),
        ]
