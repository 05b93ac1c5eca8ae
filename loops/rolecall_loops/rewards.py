"""A reward of a job, for a loop that has prompts and answers of its own.

The job file says which adapter it is, with its options, time and tries; which loop asks makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from attrs import evolve, frozen

from rolecall.api import AskedJob, NamedReward, Prompt, ScoringError, ask_job, score_with_policy, text_sample

MAX_CONCURRENCY = 64
"""Answers of one call that are scored at once."""


@frozen(kw_only=True)
class JobReward:
    """One reward of a job. Use it in any event loop; connections belong to the loop that asks."""

    asked: AskedJob
    named: NamedReward

    async def score(self, prompt: Prompt, response: str) -> float:
        """Return the reward of an answer: a finite number.

        Raises:
            ScoringError: there is none, after the tries that the job file allows; the adapter's own error is
                the cause.
            JobError: the reward asks a role, and it is not known where the job's gateways are.
        """
        role = self.named.adapter.role
        client = None if role is None else await self.asked.client(role)
        value = await score_with_policy(text_sample(prompt, response), self.named, client)
        assert value is not None, "no policy here drops a sample"
        return value

    def reads(self, attribute: str) -> bool:
        """Return whether the reward looks at an attribute of a sample, such as ``prompt.text``."""
        return attribute in self.named.adapter.reads


@cache
def job_reward(job: str | None, url: str | None, reward: str | None) -> JobReward:
    """Return a job's reward, found once a process.

    job: the job's file, or its name if it runs on this machine; None for the only one that runs here.
    url: where its gateways are, ``http://host:port``; by default where the job that runs here has them.
    reward: its name; None if the job has only one.

    Raises:
        JobError: no such job, or no such reward.
        ConfigError: the job file is wrong.
        PluginError: a plugin that it selects is not installed here, or broken.
    """
    asked = ask_job(job, url)
    named = asked.reward(reward)
    # A loop can't leave a sample out: what would be dropped is an error.
    kept = named if named.on_error == "retry" else evolve(named, on_error="fail_batch")
    return JobReward(asked=asked, named=kept)


def text_of(said: object) -> str:
    """Return a prompt or an answer as text: what it is, or what its messages say.

    One message gives its content, several a paragraph each, with the role before it.

    Raises:
        ScoringError: it is neither text nor messages of text.
    """
    if isinstance(said, str):
        return said
    messages = cast("Sequence[Any]", said) if isinstance(said, list | tuple) else ()
    contents = [_content(message) for message in messages]
    if not contents:
        raise ScoringError(f"a prompt or an answer must be text or messages, found {said!r:.80}")
    if len(contents) == 1:
        return contents[0]
    return "\n\n".join(
        f"{message['role']}: {content}" for message, content in zip(messages, contents, strict=True)
    )


def _content(message: Any) -> str:
    content: Any = cast("Mapping[str, Any]", message).get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, str):
        raise ScoringError(f"a message's content must be text, found {message!r:.80}")
    return content


def answer_of(given: object) -> str | None:
    """Return a reference answer as rewards know it: text, or None if there is none. A number is written out.

    Raises:
        ScoringError: it is something else.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, bool | int | float):
        return str(given)
    raise ScoringError(f"a reference answer must be text or a number, found {given!r:.80}")
