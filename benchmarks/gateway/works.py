"""The works that proxies are measured at, and what rolecall is to reach at them.

Pure values and arithmetic: it starts nothing. A *round* is one measurement of one subject (a proxy, a client,
or ``direct``, which is no proxy) at one work; subjects take turns, so a ratio is taken within a round and the
median of the rounds' ratios is judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median

from attrs import evolve, field, frozen

ROLECALL = "rolecall"
ROUTER = "sglang-router"
NGINX = "nginx"
PLAIN = "starlette-httpx"
LITELLM = "litellm"
DIRECT = "direct"
CLIENT = "rolecall client"
BARE = "bare transport"
BARE_JSON = "bare transport, JSON"
"""The bare transport with the request encoded and the answer decoded, as a caller would have to."""

GENERATE, CHAT = "/generate", "/v1/chat/completions"

SMALL, LARGE = 1_788, 255_409
"""Bytes of an answer of 36, and of some 6,200 tokens with log-probabilities."""


_FAST = frozenset({ROLECALL, ROUTER, NGINX})
"""Those that get through the larger works in their time: httpx's cost grows with the connections in use."""


@frozen(kw_only=True)
class Work:
    """What the load generator asks, and what the worker answers.

    once: every caller asks one time, all at once; measured is how long that takes in all.
    fresh: each round has a new process, so that memory can be told.
    clients: what is measured are clients of rolecall, not proxies.
    subjects: who takes part where not everybody does; ``direct`` always may.
    """

    name: str
    title: str
    callers: int
    path: str = GENERATE
    prompt_ids: int = 16
    answer_bytes: int = SMALL
    delay_ms: int = 0
    stream: bool = False
    once: bool = False
    fresh: bool = False
    clients: bool = False
    subjects: frozenset[str] = frozenset({ROLECALL, ROUTER, NGINX, PLAIN})

    def takes(self, subject: str) -> bool:
        return subject == DIRECT or subject in self.subjects

    def body(self) -> bytes:
        """Return the request's body; the model key is one that a gateway has to take out or rewrite."""
        if self.path == CHAT:
            return json.dumps({"model": "m", "messages": [{"role": "user", "content": "2 + 2 ="}]}).encode()
        ids = [1_000 + place * 7_919 % 90_000 for place in range(self.prompt_ids)]
        asked = {
            "model": "m",
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 64, "temperature": 1.0},
            "return_logprob": True,
        }
        return json.dumps(asked | ({"stream": True} if self.stream else {}), separators=(",", ":")).encode()


def _burst(calls: int) -> Work:
    return Work(
        name=f"burst-{calls}",
        title=f"{calls:,} calls of 2 s at once",
        callers=calls,
        delay_ms=2_000,
        once=True,
        fresh=True,
        subjects=_FAST | {CLIENT},
    )


WORKS = (
    Work(name="unary-2k-64", title="answers of 2 KB, 64 callers", callers=64),
    Work(name="unary-2k-512", title="answers of 2 KB, 512 callers", callers=512, subjects=_FAST),
    Work(
        name="chat-2k-64",
        title="chat, answers of 2 KB, 64 callers",
        callers=64,
        path=CHAT,
        subjects=frozenset({ROLECALL, ROUTER, NGINX, PLAIN, LITELLM}),
    ),
    Work(name="unary-256k-64", title="answers of 256 KB, 64 callers", callers=64, answer_bytes=LARGE),
    Work(name="ids-16k", title="requests of 16k input ids, 64 callers", callers=64, prompt_ids=16_384),
    Work(name="stream-256", title="256 streams, 50 events/s each", callers=256, stream=True),
    Work(name="one-caller", title="answers of 2 KB, 1 caller", callers=1),
    Work(
        name="memory",
        title="answers of 256 KB, 512 callers",
        callers=512,
        answer_bytes=LARGE,
        fresh=True,
        subjects=_FAST,
    ),
    _burst(2_000),
    _burst(8_000),
    Work(
        name="client-64",
        title="clients, answers of 2 KB, 64 callers",
        callers=64,
        clients=True,
        subjects=frozenset({CLIENT, BARE, BARE_JSON}),
    ),
)


# --- rounds -----------------------------------------------------------------------------


@frozen(kw_only=True)
class Round:
    """One measurement: figures by name (the units are in the names), and what went wrong, if anything did."""

    figures: Mapping[str, float] = field(factory=dict[str, float])
    fault: str = ""

    def get(self, figure: str) -> float | None:
        return self.figures.get(figure)


Rounds = Mapping[str, Sequence[Round]]
"""The rounds of one work, by subject."""


def with_added_latency(rounds: Mapping[str, Round]) -> dict[str, Round]:
    """Return the subjects' rounds of one turn, with what each adds to the median latency without it."""
    direct = rounds.get(DIRECT)
    base = direct.get("p50_us") if direct else None
    added = dict(rounds)
    for subject, one in rounds.items():
        latency = one.get("p50_us")
        if subject != DIRECT and base is not None and latency is not None:
            added[subject] = evolve(one, figures={**one.figures, "added_p50_us": latency - base})
    return added


def middle(rounds: Sequence[Round], figure: str) -> float | None:
    """Return the median of a figure over the rounds that have it."""
    found = [value for one in rounds if (value := one.get(figure)) is not None]
    return median(found) if found else None


def middle_ratio(rounds: Rounds, figure: str, subject: str, against: str) -> float | None:
    """Return the median over the rounds of one subject's figure divided by another's in the same round."""
    ratios = [
        mine / theirs
        for one, other in zip(rounds.get(subject, ()), rounds.get(against, ()), strict=False)
        if (mine := one.get(figure)) is not None and (theirs := other.get(figure))
    ]
    return median(ratios) if ratios else None


# --- targets ----------------------------------------------------------------------------


@frozen(kw_only=True)
class Target:
    """A figure of ``subject``, or its ratio to that of ``against``, is at most ``limit``.

    at_least: it is at least ``limit``.
    """

    work: str
    what: str
    figure: str
    limit: float
    against: str | None = ROUTER
    subject: str = ROLECALL
    at_least: bool = False


def _burst_targets(subject: str) -> list[Target]:
    return [
        Target(work=f"burst-{calls}", what=what, figure=figure, limit=limit, against=None, subject=subject)
        for calls, seconds in ((2_000, 3.0), (8_000, 4.0))
        for what, figure, limit in (
            ("calls failed", "failed", 0.0),
            ("seconds in all", "seconds", seconds),
            ("KB a call", "kb_a_call", 60.0),
        )
    ]


TARGETS = (
    Target(work="unary-2k-64", what="CPU a request", figure="cpu_us", limit=0.75),
    Target(work="unary-2k-512", what="CPU a request", figure="cpu_us", limit=0.9),
    Target(work="unary-256k-64", what="CPU a request", figure="cpu_us", limit=1.2),
    Target(work="ids-16k", what="CPU a request", figure="cpu_us", limit=0.2),
    Target(work="stream-256", what="CPU an event", figure="cpu_us", limit=1.1),
    Target(work="stream-256", what="p99 delay, µs", figure="event_p99_us", limit=5_000, against=None),
    Target(work="one-caller", what="added p50", figure="added_p50_us", limit=1.0),
    Target(work="memory", what="peak memory", figure="peak_mb", limit=0.5),
    *_burst_targets(ROLECALL),
    *_burst_targets(CLIENT),
    Target(work="client-64", what="CPU a call", figure="cpu_us", limit=1.1, subject=CLIENT, against=BARE),
    Target(
        work="unary-2k-64", what="requests/s", figure="per_second", limit=20, against=PLAIN, at_least=True
    ),
    Target(
        work="chat-2k-64", what="requests/s", figure="per_second", limit=50, against=LITELLM, at_least=True
    ),
)


@frozen(kw_only=True)
class Verdict:
    """``value`` and ``reached`` are None where something is missing to judge by."""

    target: Target
    value: float | None
    reached: bool | None


def judge(target: Target, rounds: Rounds) -> Verdict:
    """Hold a target against the rounds of its work. A round that went wrong is a miss, whatever it says."""
    mine = rounds.get(target.subject, ())
    if target.figure == "failed":
        value = max((one.figures["failed"] for one in mine if "failed" in one.figures), default=None)
    elif target.against is None:
        value = middle(mine, target.figure)
    else:
        value = middle_ratio(rounds, target.figure, target.subject, target.against)
    flawless = all(not one.fault for one in mine)
    if value is None:
        return Verdict(target=target, value=None, reached=None if flawless else False)
    reached = value >= target.limit if target.at_least else value <= target.limit
    return Verdict(target=target, value=value, reached=reached and flawless)
