"""One generation: where it stops, what text may be shown meanwhile, what the answer says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rolecall_plugins.engines.embedded.answers import generate_answer
from rolecall_plugins.engines.embedded.forward import Scores
from rolecall_plugins.engines.embedded.generation import Generation, Stage
from rolecall_plugins.engines.embedded.llama_runtime import Token
from rolecall_plugins.engines.embedded.requests import GenerateRequest
from rolecall_plugins.engines.embedded.sampling import SamplingParams

END = 0


class Bytes:
    """A tokenizer with one token a byte; token 0 is special and ends a text."""

    end_ids = frozenset({END})

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        shown = [number for number in ids if number != END]
        text = bytes(shown).decode(errors="replace")
        return text if skip_special_tokens or END not in ids else text + "<end>"


def make(*, request: dict[str, Any] | None = None, **sampling: Any) -> Generation:
    wanted = GenerateRequest(
        rid=None,
        prompt=(1, 2, 3),
        sampling=SamplingParams(**{"max_new_tokens": 100, **sampling}),
        **(request or {}),
    )
    return Generation(wanted, "rid", Bytes(), "4")  # pyright: ignore[reportArgumentType]


def feed(generation: Generation, content: bytes) -> list[str]:
    """Feed byte by byte until it ends; return the text shown after each."""
    shown: list[str] = []
    for number in content:
        generation.accept(Token(id=number, logprob=-1.0, top=((number, -1.0), (7, -2.0))))
        shown.append(generation.text)
        if generation.finish is not None:
            break
    return shown


def finish(generation: Generation) -> Any:
    generation.settle()
    return generate_answer(generation)["meta_info"]["finish_reason"]


def test_half_a_character_is_held_back() -> None:
    generation = make()
    assert feed(generation, "aé🎉".encode()) == ["a", "a", "aé", "aé", "aé", "aé", "aé🎉"]
    assert generation.ids == list("aé🎉".encode())


def test_half_a_stop_string_is_held_back() -> None:
    generation = make(stop=("\n\nUser", "zz"))
    assert feed(generation, b"a\n\nb z") == ["a", "a", "a", "a\n\nb", "a\n\nb ", "a\n\nb "]


def test_the_earliest_stop_string_ends_it_and_is_trimmed() -> None:
    generation = make(stop=("cd", "bc"))
    feed(generation, b"abcdef")
    assert generation.text == "a"
    assert generation.ids == list(b"abc"), "the ids are all that was generated"
    assert finish(generation) == {"type": "stop", "matched": "bc"}
    kept = make(stop=("bc",), no_stop_trim=True)
    feed(kept, b"abcdef")
    assert kept.text == "abc"


def test_end_tokens_end_it_unless_ignored() -> None:
    generation = make()
    feed(generation, b"ab\x00cd")
    assert (generation.text, generation.ids) == ("ab", [97, 98, END])
    assert finish(generation) == {"type": "stop", "matched": END}
    ignoring = make(ignore_eos=True, skip_special_tokens=False, stop_token_ids=frozenset({99}))
    feed(ignoring, b"ab\x00cd")
    assert finish(ignoring) == {"type": "stop", "matched": 99}


def test_length_ends_it_with_everything_shown() -> None:
    generation = make(max_new_tokens=3, stop=("bcd",))
    assert feed(generation, b"abcdef")[-1] == "abc"
    assert finish(generation) == {"type": "length", "length": 3}


def test_tokens_after_the_end_are_dropped() -> None:
    generation = make(max_new_tokens=2)
    feed(generation, b"ab")
    generation.accept(Token(id=99, logprob=-1.0, top=()))
    assert generation.ids == [97, 98]
    assert generation.stop


def test_an_abort_keeps_what_was_generated_and_wins_once() -> None:
    generation = make()
    feed(generation, b"ab")
    generation.abort("because")
    generation.abort("again")
    generation.fail(RuntimeError("late"))
    assert generation.fault is None
    assert finish(generation) == {"type": "abort", "message": "because"}
    assert generation.text == "ab"
    assert generation.changed.is_set()


def test_a_stage_that_is_not_in_the_table_raises() -> None:
    generation = make()
    with pytest.raises(RuntimeError, match="door → decoding"):
        generation.enter(Stage.DECODING)


def test_the_answer_reports_what_was_asked_for() -> None:
    plain = make()
    feed(plain, b"a")
    info = generate_answer(plain)["meta_info"]
    assert info == {
        "id": "rid",
        "finish_reason": None,
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "weight_version": "4",
    }

    asked = make(
        request={
            "return_logprob": True,
            "logprob_start": 1,
            "top_logprobs": 2,
            "logprobs_of": (9, 8),
            "text_in_logprobs": True,
        }
    )
    asked.prompt_scores = Scores(
        logprobs=np.array([-0.5], dtype=np.float32),
        top_ids=np.array([[5, 6]]),
        top_logprobs=np.array([[-0.25, -4]], dtype=np.float32),
        of_logprobs=np.array([[-9, -8]], dtype=np.float32),
    )
    feed(asked, b"a")
    info = generate_answer(asked)["meta_info"]
    assert info["input_token_logprobs"] == [[None, 2, "\x02"], [-0.5, 3, "\x03"]]
    assert info["input_top_logprobs"] == [None, [[-0.25, 5, "\x05"], [-4, 6, "\x06"]]]
    assert info["input_token_ids_logprobs"] == [None, [[-9, 9, "\t"], [-8, 8, "\x08"]]]
    assert info["output_token_logprobs"] == [[-1.0, 97, "a"]]
    assert info["output_top_logprobs"] == [[[-1.0, 97, "a"], [-2.0, 7, "\x07"]]]
    assert info["output_token_ids_logprobs"] == []


def test_an_abort_before_scoring_still_gives_a_well_formed_answer() -> None:
    generation = make(request={"return_logprob": True, "logprob_start": 0, "top_logprobs": 1})
    generation.abort("early")
    info = generate_answer(generation)["meta_info"]
    assert info["input_token_logprobs"] == [[None, 1, None]]
    assert info["input_top_logprobs"] == [None]
