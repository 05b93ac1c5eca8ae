"""The file that llama.cpp maps: the model's tensors under a vocabulary of plain numbers.

llama.cpp's server groups generated tokens into whole UTF-8 characters and reports only the last
token of each group, so an emoji of three tokens comes back as one token id: the others and their
log-probabilities are lost (seen in xllamacpp 2026.10). With a vocabulary of ASCII numbers each
token is a group of its own and every id comes back. Text is made by ``tokenizer`` instead.

``derive`` copies a model's tensors as they are. It runs in a short-lived process of its own
(``python -m …serving_file``), so that what writing takes never stays in the server.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .gguf_file import GgufError, GgufFile

if TYPE_CHECKING:
    from gguf import GGUFWriter

FORMAT = 1
"""Part of the cache key; raise it when what ``derive`` writes changes."""

ARCHITECTURE = "llama"

_COPIED_NUMBERS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.dimension_count",
    "vocab_size",
)
_COPIED_FLOATS = ("rope.freq_base", "attention.layer_norm_rms_epsilon")


def cache_folder() -> Path:
    """Where serving files are kept: ``$ROLECALL_CACHE`` or the XDG cache, ``embedded-engine``."""
    configured = os.environ.get("ROLECALL_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(configured) if configured else Path(xdg or Path.home() / ".cache") / "rolecall"
    return root / "embedded-engine"


def model_file(path: Path) -> Path:
    """The GGUF file that ``path`` is, or the only one in the folder that it is.

    Raises:
        GgufError: there is none, or several.
    """
    if path.is_file():
        return path
    found = sorted(path.glob(f"*{GgufFile.EXTENSION}")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found) or "none"
    raise GgufError(f"{path}: one GGUF file is expected there; found: {names}")


def ensure_serving_file(model: Path) -> Path:
    """Return the model's serving file, made on first use and shared by all engines.

    A file lock makes concurrent starts wait for one writer; the file appears by rename, whole.

    Raises:
        GgufError: the model can't be read or converted, with the converter's own message.
    """
    status = model.stat()
    identity = f"{FORMAT}:{model.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{model.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.gguf"
    with (folder / f"{target.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{target.stem}-", delete=False) as part:
                temporary = Path(part.name)
            try:
                run_converter("derive", model, temporary)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
    return target


def run_converter(*arguments: str | Path, module: str = __name__, keep_fds: tuple[int, ...] = ()) -> None:
    """Run a conversion as a child in this process group; GgufError with its message if it fails."""
    command = [sys.executable, "-m", module, "--parent-pid", str(os.getpid()), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=keep_fds)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise GgufError(lines[-1])


def derive(source: GgufFile, out: Path) -> None:
    """Write the serving file of ``source``: same tensors, numbers for tokens."""
    from gguf import GGMLQuantizationType

    writer = open_writer(source, out)
    for tensor in source.tensors.values():
        rows = tensor.raw.reshape(*tensor.shape[:-1], -1)
        if tensor.quantisation.block == 1:
            dtype = {"F32": np.float32, "F16": np.float16}.get(tensor.quantisation.name)
            rows = rows if dtype is None else rows.view(dtype)
        writer.add_tensor(tensor.name, rows, raw_dtype=GGMLQuantizationType(tensor.type_number))
    close_writer(writer)


def open_writer(shape_of: GgufFile, out: Path) -> GGUFWriter:
    """A ``GGUFWriter`` that holds the model's numbers and the plain vocabulary, and no tensor yet."""
    from gguf import GGUFWriter

    architecture = shape_of.require("general.architecture")
    if architecture != ARCHITECTURE:
        raise GgufError(
            f"{shape_of.path}: architecture {architecture!r}; the embedded engine serves {ARCHITECTURE!r}"
        )
    scaling = shape_of.metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in shape_of.tensors:
        raise GgufError(f"{shape_of.path}: scaled rotary embeddings are not supported")
    writer = GGUFWriter(out, ARCHITECTURE)
    for name in _COPIED_NUMBERS:
        key = f"{ARCHITECTURE}.{name}"
        if key in shape_of.metadata:
            writer.add_uint32(key, shape_of.metadata[key])
    for name in _COPIED_FLOATS:
        writer.add_float32(f"{ARCHITECTURE}.{name}", shape_of.require(f"{ARCHITECTURE}.{name}"))
    size = vocabulary_size(shape_of)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"{number:x}" for number in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["0 1"])
    eos = shape_of.metadata.get("tokenizer.ggml.eos_token_id")
    if eos is not None:
        writer.add_eos_token_id(eos)
    return writer


def close_writer(writer: GGUFWriter) -> None:
    """Write everything out and close."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabulary_size(file: GgufFile) -> int:
    """Rows of the embedding: the token ids that exist."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise GgufError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def main() -> None:
    """Entry point of the converter process."""
    from rolecall.api import die_with_parent

    parser = argparse.ArgumentParser(description="Write a serving file.")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("action", choices=["derive"])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    die_with_parent(given.parent_pid)
    try:
        derive(GgufFile(given.source, with_arrays=False), given.out)
    except GgufError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
