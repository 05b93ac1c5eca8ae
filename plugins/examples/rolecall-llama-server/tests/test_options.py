from __future__ import annotations

import pytest
from rolecall_llama_server import LlamaServerBackend, LlamaServerOptions

from rolecall.api import Capability, MemoryTag


def test_arguments_need_a_binary() -> None:
    with pytest.raises(ValueError, match="binary is not set"):
        LlamaServerOptions(arguments=("--n-gpu-layers", "99"))
    assert LlamaServerOptions(binary="llama-server", arguments=("--n-gpu-layers", "99")).arguments


@pytest.mark.parametrize("wrong", [{"context_tokens": 100}, {"parallel_requests": 0}, {"threads": 0}])
def test_sizes_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LlamaServerOptions(**wrong)  # type: ignore[arg-type]


def test_it_promises_what_it_can_do() -> None:
    options = LlamaServerOptions()
    static = LlamaServerBackend().features(options, static=True)
    versioned = LlamaServerBackend().features(options, static=False)
    assert static.capabilities == {Capability.SLEEP}
    assert versioned.capabilities == {Capability.SLEEP, Capability.UPDATE_FROM_DISK}
    assert static.memory_tags == versioned.memory_tags == {MemoryTag.WEIGHTS}
