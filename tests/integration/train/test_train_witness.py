"""An engine that does not answer with the weights it was given ends the run."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.transferqueue
torch = pytest.importorskip("torch", reason="comes with rolecall[transferqueue]")

import publish  # noqa: E402
from checkpoints import GgufCheckpoint  # noqa: E402
from publish import Answer, Witness, WrongWeights, own_log_probs  # noqa: E402

IDS = torch.tensor([5, 250, 17, 17, 3, 99, 120, 4, 288, 0, 61, 75])
PROMPT = 8


class Engine:
    """Stands for the gateway: answers with the log-probabilities of whatever model it was told."""

    gateway_url = "http://gateway"

    def __init__(self) -> None:
        self.model = None
        self.version = "0"
        self.error = 0.0

    async def ask(self, url: str, text: str) -> Answer:
        assert (url, text) == ("http://gateway/rollout", "text")
        log_probs = own_log_probs(self.model, IDS) + self.error
        return Answer(ids=IDS, log_probs=log_probs, prompt=PROMPT, version=self.version)


@pytest.fixture
def checkpoint(small_gguf) -> GgufCheckpoint:
    return GgufCheckpoint(small_gguf)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, checkpoint: GgufCheckpoint) -> Engine:
    engine = Engine()
    engine.model = checkpoint.load()
    monkeypatch.setattr(publish, "ask_gateway", engine.ask)
    return engine


@pytest.fixture
def witness(engine: Engine, checkpoint: GgufCheckpoint) -> Witness:
    return Witness(engine, checkpoint, "text")


def stepped(checkpoint: GgufCheckpoint, size: float = 0.01):
    model = checkpoint.load()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + size)
    return model


async def test_an_engine_with_the_new_weights_passes_and_what_moved_is_told(
    engine, witness, checkpoint
) -> None:
    first = await witness.check(engine.model, "0")
    assert (first.off, first.moved) == (0.0, None)
    engine.model, engine.version, engine.error = stepped(checkpoint), "step-1", 1e-3
    checked = await witness.check(engine.model, "step-1")
    assert checked.off == pytest.approx(1e-3, rel=0.1)
    assert checked.moved > 1e-3
    assert checked.gateway == pytest.approx(checked.computed + (PROMPT - 1) * 1e-3, abs=1e-4)
    assert checked.computed != pytest.approx(first.computed, abs=1e-3)


async def test_another_version_is_told_whatever_the_figures_say(engine, witness, checkpoint) -> None:
    await witness.check(engine.model, "0")
    engine.model = stepped(checkpoint)
    with pytest.raises(WrongWeights, match="answers with weights '0'; published are 'step-1'"):
        await witness.check(engine.model, "step-1")


async def test_log_probs_beyond_the_tolerance_are_told(engine, witness) -> None:
    engine.error = 0.2
    with pytest.raises(WrongWeights, match=r"up to 0\.2 away from the optimiser's -.* 0\.0\d+ is allowed"):
        await witness.check(engine.model, "0")


async def test_an_engine_that_only_says_that_it_has_new_weights_is_told(engine, witness, checkpoint) -> None:
    await witness.check(engine.model, "0")
    engine.version = "step-1"
    with pytest.raises(WrongWeights, match="at step-1 are those of 0"):
        await witness.check(stepped(checkpoint, 0.001), "step-1")


async def test_figures_that_fit_the_version_before_are_told(engine, witness, checkpoint) -> None:
    old = engine.model
    await witness.check(old, "0")
    engine.version, engine.error = "step-1", 1e-5
    with pytest.raises(WrongWeights, match="away from the optimiser's, but only"):
        await witness.check(stepped(checkpoint, 0.001), "step-1")
