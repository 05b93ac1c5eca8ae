"""Run a llama.cpp server that ends with its parent.

usage: python -m rolecall_llama_server.program PARENT_PID [BINARY] --OPTION …

BINARY takes the place of this process. Without one it is the server in the package xllamacpp, which
understands those options of ``llama-server`` that an adapter gives.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from rolecall.api import die_with_parent


def main() -> None:
    """Entry point."""
    die_with_parent(int(sys.argv[1]))
    command = sys.argv[2:]
    if not command[0].startswith("-"):
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.exit(f"cannot run {command[0]}: {error}")
    _serve(_parser().parse_args(command))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--ctx-size", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", action="store_true")
    parser.add_argument("--slot-save-path", required=True)
    return parser


def _serve(given: argparse.Namespace) -> None:
    import xllamacpp

    native: Any = xllamacpp  # a compiled module without type information
    params = native.CommonParams()
    params.model.path = given.model
    params.hostnames = [given.host]
    params.n_ctx = given.ctx_size
    params.n_parallel = given.parallel
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = given.threads
        cpu.poll = 0  # a spinning idle thread would starve other engines of the machine
    params.endpoint_slots = given.slots
    params.slot_save_path = given.slot_save_path
    params.fit_params = False
    params.cache_ram_mib = 0  # no copies of old prompts beside the KV cache
    params.warmup = False
    params.verbosity = 2
    ended = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)  # else its threads would take them
    try:
        server = native.Server(params)
    except RuntimeError as error:
        sys.exit(f"llama.cpp can't serve {given.model}: {error}")
    signal.sigwait(ended)
    del server


if __name__ == "__main__":
    main()
