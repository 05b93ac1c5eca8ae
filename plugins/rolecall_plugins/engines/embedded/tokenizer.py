"""The model's tokenizer and chat template, rebuilt from the GGUF file's metadata.

llama.cpp is given a vocabulary of plain numbers (``serving_file``), so every conversion between
text and token ids happens here, and ids in a request are used as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from .gguf_file import GgufError, GgufFile

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF token types that are matched as a whole in text."""

_END_OF_TEXT_NAMES = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>", "<|end|>")
"""Tokens that end a turn in the chat formats of small models, besides the declared ones."""


def _byte_level(digits: bool) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if not digits:
        return byte_level
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


class ModelTokenizer:
    """Text to ids and back, special tokens included."""

    def __init__(self, file: GgufFile) -> None:
        """Build from a GGUF file that was read with its arrays.

        Raises:
            GgufError: the tokenizer's kind is not one that can be rebuilt exactly.
        """
        kind = file.require("tokenizer.ggml.model")
        split = file.metadata.get("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or split not in _SPLITS:
            allowed = ", ".join(sorted(_SPLITS))
            raise GgufError(
                f"{file.path}: tokenizer {kind!r} with pre-tokenizer {split!r} is not supported; "
                f"the embedded engine rebuilds 'gpt2' with one of: {allowed}"
            )
        tokens: list[str] = file.require("tokenizer.ggml.tokens")
        types: list[int] = file.require("tokenizer.ggml.token_type")
        merges: list[str] = file.require("tokenizer.ggml.merges")
        vocabulary = {token: number for number, token in enumerate(tokens)}
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        try:
            self._tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=pairs))
        except Exception as error:  # the library raises bare ``Exception``
            raise GgufError(f"{file.path}: vocabulary and merges do not fit: {error}") from error
        self._tokenizer.pre_tokenizer = _byte_level(digits=_SPLITS[split])
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(
            [
                AddedToken(token, special=True, normalized=False)
                for token, token_type in zip(tokens, types, strict=True)
                if token_type in (_CONTROL, _USER_DEFINED)
            ]
        )
        self.vocabulary_size = len(tokens)
        self.chat_template: str | None = file.metadata.get("tokenizer.chat_template")
        self._bos: int | None = file.metadata.get("tokenizer.ggml.bos_token_id")
        eos: int | None = file.metadata.get("tokenizer.ggml.eos_token_id")
        special = {"bos_token": self._bos, "eos_token": eos}
        self.special_tokens: Mapping[str, str] = {
            name: tokens[number] for name, number in special.items() if number is not None
        }
        """``bos_token`` and ``eos_token`` as chat templates expect them."""
        self._add_bos = bool(file.metadata.get("tokenizer.ggml.add_bos_token", False))
        ends = {vocabulary[name] for name in _END_OF_TEXT_NAMES if name in vocabulary}
        declared = (eos, file.metadata.get("tokenizer.ggml.eot_token_id"))
        self.end_ids: frozenset[int] = frozenset(ends | {end for end in declared if end is not None})

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; text that spells a special token becomes that token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._bos, *ids] if self._add_bos and self._bos is not None else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ``ids``; bytes that are no whole character yet become U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


_SPLITS: Mapping[str, bool] = {"smollm": True, "gpt-2": False, "default": False}
"""Pre-tokenizer name → whether digits are split one by one before the byte-level pattern."""
