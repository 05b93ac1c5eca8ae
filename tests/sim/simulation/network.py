"""The network between the processes: delays, loses, repeats and cuts what they send.

A call is a message and its answer. What may become of either is the schedule's :class:`Fate`; what the caller
then sees is the caller's business: it names the error of silence. A call that was given up still runs on the
other side, as calls to other processes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from attrs import define, field

from rolecall.engines.results import LifecycleResult
from simulation.chance import Blow, Chance, Fate
from simulation.loop import SimLoop

T = TypeVar("T")

Note = Callable[[str, str], None]
"""Keeps a line of the timeline: who, what."""


@define(eq=False)
class Endpoint:
    """A process on the network. A dead one gets nothing, and nothing of it arrives anywhere."""

    name: str
    alive: bool = True
    waiting: dict[asyncio.Future[Any], Callable[[], Exception]] = field(factory=dict)
    """Calls to it under way, with the error by which their callers learn of its death."""
    on_death: list[Callable[[], object]] = field(factory=list)

    def die(self) -> None:
        if not self.alive:
            return
        self.alive = False
        for call in self.on_death:
            call()
        waiting, self.waiting = self.waiting, {}
        for answer, death in waiting.items():
            if not answer.done():
                answer.set_exception(death())


class Network:
    """``strike`` is called for every blow that is due; without ``note`` no timeline is kept."""

    def __init__(
        self,
        loop: SimLoop,
        chance: Chance,
        *,
        strike: Callable[[Blow, Endpoint], None],
        note: Note | None,
    ) -> None:
        self._loop = loop
        self.chance = chance
        self._strike = strike
        self._note = note
        self._cut: set[str] = set()
        self._messages = 0
        self.fates: list[str] = []
        self.healthy = False
        self.quiet = False
        """Calls go straight through, without delays, faults or trace."""

    @property
    def messages(self) -> int:
        return self._messages

    def cut(self, name: str, seconds: float) -> None:
        """Cut a process off from everybody for a while."""
        self._cut.add(name)
        self._loop.call_later(seconds, self._cut.discard, name)

    def heal(self) -> None:
        """No more faults from now on; what is still under way arrives late or never, as decided."""
        self.healthy = True
        self._cut.clear()

    async def call(
        self,
        source: Endpoint,
        target: Endpoint,
        what: str,
        send: Callable[[], Coroutine[Any, Any, T]],
        *,
        silence: Callable[[], Exception],
        death: Callable[[], Exception],
        limit_s: float | None = None,
        forge: Callable[[T], object] | None = None,
        brief: bool = False,
    ) -> T:
        """Send a call and return its answer, or raise it.

        silence: the error after ``limit_s`` without an answer; without a limit the caller waits.
        death: the error if the target is known to be dead.
        forge: makes a wrong answer out of a right one.
        brief: the work never waits for anything; so it needs no task of its own.
        """
        loop, chance = self._loop, self.chance
        if not source.alive:
            return await loop.create_future()  # its process is gone: nothing goes on there
        if self.quiet and target.alive:
            return await send()
        fate = self._meet(source, target, what)
        delay = chance.long_delay() if fate is Fate.SLOW else chance.message_delay()
        if brief and fate is None and not delay and target.alive:
            return await send()  # there and back in one moment
        answer: asyncio.Future[T] = loop.create_future()
        message = _Message(source, target, what, send, death, answer, fate, forge, brief)
        if fate is Fate.TWICE:
            echo: asyncio.Future[T] = loop.create_future()
            echo.add_done_callback(_read)
            later = chance.long_delay() if chance.happens(0.5) else chance.delay()
            copy = _Message(source, target, what, send, death, echo, Fate.MUTE, None, brief)
            loop.call_later(later, self._deliver, copy)
        if fate is not Fate.LOST:
            if delay:
                loop.call_later(delay, self._deliver, message)
            else:
                self._deliver(message)
        timer = None if limit_s is None else loop.call_later(limit_s, _fail, source, answer, silence)
        target.waiting[answer] = death
        try:
            return await answer
        finally:
            target.waiting.pop(answer, None)
            if timer is not None:
                timer.cancel()

    def _meet(self, source: Endpoint, target: Endpoint, what: str) -> Fate | None:
        """Have the faults that are planned for this message happen; return its fate."""
        number = self._messages
        self._messages += 1
        fate = None
        if not self.healthy:
            for fault in self.chance.plan.get(number, ()):
                if isinstance(fault, Blow):
                    self._strike(fault, target)
                else:
                    fate = fault
                    self.fates.append(fate.value)
        if source.name in self._cut or target.name in self._cut:
            fate = Fate.LOST
        if self._note is not None:
            self._note(source.name, f"→ {target.name}: {what}" + (f" ({fate})" if fate else ""))
        return fate

    def _deliver(self, message: _Message) -> None:
        if not message.target.alive:
            self._loop.call_later(self.chance.delay(), _fail, message.source, message.answer, message.death)
            return
        work = self._carry_out(message)
        if message.brief:
            with suppress(StopIteration):
                work.send(None)
                raise AssertionError(f"{message.what} waits for something")
        else:
            self._loop.create_task(work)

    async def _carry_out(self, message: _Message) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = await message.send()
        except Exception as raised:
            error = raised
        source, target, fate = message.source, message.target, message.fate
        if fate is Fate.MUTE or not target.alive or target.name in self._cut or source.name in self._cut:
            return
        if fate is Fate.WRONG and error is None and message.forge is not None:
            result = message.forge(result)
            if isinstance(result, Exception):
                result, error = None, result
        if self._note is not None:
            self._note(target.name, f"⇠ {message.what}: {in_words(result if error is None else error)}")
        delay = self.chance.long_delay() if fate is Fate.LATE else self.chance.message_delay()
        if delay:
            self._loop.call_later(delay, _settle, source, message.answer, result, error)
        else:
            _settle(source, message.answer, result, error)


def in_words(answer: object) -> str:
    """Return an answer as the timeline shows it."""
    match answer:
        case None:
            return "done"
        case LifecycleResult():
            each = (
                f"{outcome.engine} is {outcome.state}"
                + ("" if outcome.confirmed else f", unconfirmed: {outcome.detail}")
                for outcome in answer.outcomes
            )
            return f"{answer.role}: {'; '.join(each) or 'no replica'}"
        case Exception():
            return f"{type(answer).__name__}: {answer!s:.300}"
        case str() | int():
            return str(answer)
        case _:
            return type(answer).__name__


class _Message:
    """One call on its way."""

    __slots__ = ("answer", "brief", "death", "fate", "forge", "send", "source", "target", "what")

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        what: str,
        send: Callable[[], Coroutine[Any, Any, Any]],
        death: Callable[[], Exception],
        answer: asyncio.Future[Any],
        fate: Fate | None,
        forge: Callable[[Any], object] | None,
        brief: bool,
    ) -> None:
        self.source = source
        self.target = target
        self.what = what
        self.send = send
        self.death = death
        self.answer = answer
        self.fate = fate
        self.forge = forge
        self.brief = brief


def _settle(source: Endpoint, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done() or not source.alive:
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def _fail(source: Endpoint, answer: asyncio.Future[Any], error: Callable[[], Exception]) -> None:
    if not answer.done() and source.alive:
        answer.set_exception(error())


def _read(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
