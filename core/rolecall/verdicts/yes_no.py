"""A verdict that is how likely a judge holds yes, read from the log-probabilities of its first token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from attrs import Attribute, field, frozen, validators

from rolecall.verdicts.words import shown

_ALMOST_NOTHING = 1e-6
"""A log-probability may be so much above 0: engines round."""


def _are_words(instance: Any, attribute: Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if not value or not all(word.strip() for word in value):
        raise ValueError(f"{attribute.name} must have a word, and none that is empty, found {shown(value)}")
    if attribute.name == "no" and (both := _folded(instance.yes) & _folded(value)):
        raise ValueError(f"{', '.join(sorted(both))} can't mean both yes and no")


@frozen(kw_only=True)
class YesNoVerdict:
    """Reads P(yes) / (P(yes) + P(no)) from an answer of ``/generate``.

    The answer has to be asked for with :meth:`fields`. Tokens count by their text: case and blanks around it
    don't, so `` Yes`` and ``yes`` are one.

    yes, no: the tokens that say it.
    least_mass: P(yes) + P(no), of the tokens reported; with less, the judge was about to say something else,
        and that is no verdict.
    top: how many of the likeliest tokens are asked for.
    """

    yes: tuple[str, ...] = field(default=("yes",), validator=_are_words)
    no: tuple[str, ...] = field(default=("no",), validator=_are_words)
    least_mass: float = field(default=0.5, validator=[validators.gt(0), validators.le(1)])
    top: int = field(default=20, validator=validators.ge(2))

    def fields(self) -> dict[str, Any]:
        """Return what a ``/generate`` payload needs beside its prompt; one token is enough."""
        return {"return_logprob": True, "top_logprobs_num": self.top, "return_text_in_logprobs": True}

    def read(self, answer: Mapping[str, Any]) -> float:
        """Return how likely yes is, from 0 to 1, given that it is yes or no.

        Raises:
            ValueError: the answer has no log-probabilities of tokens with their texts, one of them can't be,
                or yes and no together are too unlikely.
        """
        yes, no, seen = 0.0, 0.0, list[str]()
        for text, probability in _first_token(answer):
            seen.append(text)
            said = text.strip().casefold()
            yes += probability if said in _folded(self.yes) else 0.0
            no += probability if said in _folded(self.no) else 0.0
        mass = yes + no
        if not mass >= self.least_mass:
            words = " or ".join((*self.yes, *self.no))
            raise ValueError(
                f"the verdict is {words} with a probability of {mass:.3g}, at least {self.least_mass:g} is "
                f"allowed; the likeliest tokens are {shown(seen)}"
            )
        return min(yes / mass, 1.0)


def _folded(words: Iterable[str]) -> set[str]:
    return {word.strip().casefold() for word in words}


def _first_token(answer: object) -> list[tuple[str, float]]:
    """Return text and probability of the tokens that the first one could have been."""
    meta = cast("Mapping[str, Any]", answer).get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping) or not isinstance(meta.get("output_top_logprobs"), list):
        raise ValueError(
            "the answer has no meta_info.output_top_logprobs, which top_logprobs_num asks for: "
            f"{shown(answer)}"
        )
    positions = cast("list[Any]", meta["output_top_logprobs"])
    first: Any = positions[0] if positions else None
    if not isinstance(first, list) or not first:
        raise ValueError(f"meta_info.output_top_logprobs has no first token: {shown(positions)}")
    tokens: dict[int, tuple[str, float]] = {}
    for entry in cast("list[Any]", first):
        match entry:
            case [float() | int() as log_prob, int() as token, str() as text]:
                tokens[token] = (text, _probability(log_prob, entry))
            case [_, int(), None]:
                raise ValueError(f"{shown(entry)} has no text, which return_text_in_logprobs asks for")
            case _:
                raise ValueError(f"{shown(entry)} is not [log-probability, token, text]")
    total = math.fsum(probability for _, probability in tokens.values())
    if total > 1 + 1e-3:
        raise ValueError(f"the probabilities of the first token sum up to {total:.4g}: {shown(first)}")
    return list(tokens.values())


def _probability(log_prob: float, entry: object) -> float:
    if isinstance(log_prob, bool) or not -math.inf <= log_prob <= _ALMOST_NOTHING:
        raise ValueError(f"{shown(entry)} has no log-probability, which is 0 at the most")
    return math.exp(min(log_prob, 0.0))
