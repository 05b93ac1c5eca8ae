"""``math_verify``: 1 if the response's answer equals the reference as mathematics, else 0."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar, Literal

from attrs import field, frozen, validators

from rolecall.api import ROLECALL_API, RewardAdapter, Sample, ScoringClient, ScoringError, hookimpl

from .workers import Workers

Form = Literal["latex", "expression", "letter"]

_MIB = 1024**2
_MOST_CHARACTERS = 200_000


@frozen(kw_only=True)
class MathVerifyOptions:
    """``[rewards.<name>.options]`` of ``math_verify``.

    forms: in which forms answers are looked for: ``latex`` (between dollars, or boxed), ``expression``
        (``1/2``), ``letter`` (of a multiple choice, A to D).
    decimals: to how many decimals numbers are compared.
    strict: whether names of variables matter, and whether a set differs from a tuple.
    compare_s: seconds for one comparison; then its process is killed, and that is an error.
    processes: comparisons at once; each process is kept, with about 100 MB.
    memory_bytes: address space of a process.
    """

    forms: tuple[Form, ...] = field(
        default=("latex", "expression"),
        validator=[
            validators.min_len(1),
            validators.deep_iterable(validators.in_(("latex", "expression", "letter"))),
        ],
    )
    decimals: int = field(default=6, validator=validators.ge(0))
    strict: bool = True
    compare_s: float = field(default=10.0, validator=validators.gt(0))
    processes: int = field(default=2, validator=validators.gt(0))
    memory_bytes: int = field(default=2048 * _MIB, validator=validators.ge(512 * _MIB))

    def __attrs_post_init__(self) -> None:
        if find_spec("math_verify") is None:
            raise ValueError('math-verify is not installed here; pip install "rolecall[math-verify]"')


class MathVerify:
    """Compares with ``prompt.answer``. Starts no process before its first score."""

    name: ClassVar[str] = "math_verify"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[MathVerifyOptions]] = MathVerifyOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.answer"})

    def __init__(self, options: MathVerifyOptions) -> None:
        self._options = options
        self._workers = Workers(options.processes, options.memory_bytes)

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return 1.0 or 0.0; a response in which nothing can be read gives no answer, which is 0.

        Raises:
            ValueError: the prompt has no reference answer, or one that can't be read.
            ScoringError: the comparison took too long, raised, or could not be made.
        """
        del client
        options, answer = self._options, sample.prompt.answer
        if answer is None or not answer.strip():
            raise ValueError(f'prompt "{sample.prompt.prompt_id}" has no reference answer')
        told = await self._workers.ask(
            {
                "reference": _delimited(answer) if "latex" in options.forms else answer,
                # An answer stands at the end.
                "response": sample.response[-_MOST_CHARACTERS:],
                "forms": list(options.forms),
                "decimals": options.decimals,
                "strict": options.strict,
            },
            options.compare_s,
        )
        if fault := told.get("fault"):
            raise ValueError(
                f'prompt "{sample.prompt.prompt_id}" has the reference answer {answer!r:.80}: {fault}'
            )
        if error := told.get("error"):
            raise ScoringError(f"comparing with {answer!r:.80} raised {error}")
        return float(told["equal"] is True)


def _delimited(answer: str) -> str:
    """Return a reference that is LaTeX between dollars, where math-verify looks for it."""
    return f"${answer}$" if "\\" in answer and "$" not in answer and "\\boxed" not in answer else answer


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return MathVerify
