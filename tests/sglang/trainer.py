"""A process with torch and transformers: writes checkpoints, recomputes answers, sends weights.

Run by the tests with the interpreter that has SGLang, so that the tests themselves may run elsewhere.
Reads one JSON command a line and answers each with one JSON line; ends with its input.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 320
TEXT = "what is two plus three? two plus three is five. what is the capital of france? it is paris."


def checkpoint(path: str, seed: int) -> dict:
    """Write a tiny Llama with random weights that differ by seed, and a tokenizer with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        dtype="float32",
        # Large enough that the next token is far from uniform.
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    fast.save_pretrained(path)
    return {}


def score(path: str, ids: list[int], top: int) -> dict:
    """Log-probabilities of each token after its prefix, and the ``top`` likeliest there."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    best = log_probs.topk(top)
    return {
        "tokens": [log_probs[i, ids[i + 1]].item() for i in range(len(ids) - 1)],
        "top_ids": best.indices.tolist(),
        "top_log_probs": best.values.tolist(),
        "all": log_probs.tolist(),
    }


def serialize(path: str) -> dict:
    """The checkpoint's tensors by value, as SGLang's unpickler takes them."""
    tensors = list(load_file(Path(path) / "model.safetensors").items())
    return {"serialized": base64.b64encode(pickle.dumps(tensors)).decode()}


def names(path: str) -> dict:
    tensors = load_file(Path(path) / "model.safetensors")
    return {
        "names": list(tensors),
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
    }


groups: dict = {}


def join(group: str, port: int, world_size: int, transport: str = "gloo", device: str = "cpu") -> dict:
    """Join as rank 0, as a trainer does: a group beside torch's default one."""
    from datetime import timedelta

    from torch.distributed import distributed_c10d as c10d

    timeout = timedelta(seconds=120)
    store, rank, size = next(c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, world_size, timeout=timeout))
    store = c10d.PrefixStore(group, store)
    made, _ = c10d._new_process_group_helper(
        size, rank, [], c10d.Backend(transport), store, group_name=group, timeout=timeout
    )
    c10d._world.pg_group_ranks[made] = {i: i for i in range(world_size)}
    groups[group] = (made, device)
    return {}


def broadcast(group: str, path: str) -> dict:
    made, device = groups[group]
    for tensor in load_file(Path(path) / "model.safetensors").values():
        torch.distributed.broadcast(tensor.to(device), src=0, group=made)
    if device != "cpu":
        torch.cuda.synchronize(device)
    return {}


COMMANDS = {each.__name__: each for each in (checkpoint, score, serialize, names, join, broadcast)}

if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = COMMANDS[command.pop("command")](**command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
