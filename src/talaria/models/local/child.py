"""The process that runs the model: `python -m talaria.models.local.child`. Only it imports the runtime.

It reads one line of JSON from its input (`weights`, `name`, `key`, `threads`) and writes one line, `{"url":
…}` or `{"error": …}`. It ends when its input ends: with the gateway, even if that is killed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, NoReturn

_CONTEXT = 4096
_SLOTS = 2  # one keeps the prompt of the router, the other the conversation
_CACHE_MIB = 64
_BATCH_THREADS = 2


def main() -> None:
    orders_in, reply_out = _take_pipes()
    orders = json.loads(orders_in.readline())
    threading.Thread(target=_exit_with, args=(orders_in,), daemon=True).start()
    try:
        server = _serve(orders)
    except BaseException as error:  # the gateway must learn of any failure
        _reply(reply_out, {"error": f"{type(error).__name__}: {error}"})
        raise
    _reply(reply_out, {"url": f"{server.listening_address}/v1"})
    while True:
        time.sleep(3600)


def _take_pipes() -> tuple[Any, int]:
    """Return the input and the output. What the runtime prints goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(os.dup(0), "rb", buffering=0), output


def _reply(output: int, what: dict[str, str]) -> None:
    os.write(output, json.dumps(what).encode() + b"\n")


def _exit_with(stream: Any) -> NoReturn:
    while stream.read(1):
        pass
    os._exit(0)


def _serve(orders: dict[str, Any]) -> Any:
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path = orders["weights"]
    params.model_alias = {orders["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [orders["key"]]
    params.ui = False
    params.endpoint_slots = False
    params.n_ctx = _SLOTS * _CONTEXT
    params.n_parallel = _SLOTS
    params.cache_ram_mib = _CACHE_MIB
    params.n_gpu_layers = 0
    params.verbosity = 2
    # Threads that spin while they wait for each other starve on a busy machine, so they sleep.
    for cpu, threads in ((params.cpuparams, orders["threads"]), (params.cpuparams_batch, _BATCH_THREADS)):
        cpu.n_threads = max(threads, orders["threads"])
        cpu.poll = 0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
