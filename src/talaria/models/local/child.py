"""The process that runs the model: `python -m talaria.models.local.child`. It alone imports the runtime.

It reads one line of JSON (`Orders`) from its input and answers with one line, `{"url": …}` or `{"error": …}`.
Its input then is its lifeline: when it ends, however the gateway ended, so does this process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, NoReturn

_CONTEXT = 4096
_CACHE_MIB = 64
_BATCH_THREADS = 2


def main() -> None:
    lifeline, answer = _take_pipes()
    orders = json.loads(lifeline.readline())
    threading.Thread(target=_follow, args=(lifeline,), daemon=True).start()
    try:
        server = _serve(orders)
    except BaseException as error:  # whatever it is, the gateway has to hear of it
        _say(answer, {"error": f"{type(error).__name__}: {error}"})
        raise
    _say(answer, {"url": f"{server.listening_address}/v1"})
    while True:
        time.sleep(3600)


def _take_pipes() -> tuple[Any, int]:
    """The runtime may write to standard output; what it says goes with the rest to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(os.dup(0), "rb", buffering=0), answer


def _say(answer: int, what: dict[str, str]) -> None:
    os.write(answer, json.dumps(what).encode() + b"\n")


def _follow(lifeline: Any) -> NoReturn:
    while lifeline.read(1):
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
    params.n_ctx = _CONTEXT
    params.n_parallel = 1
    params.cache_ram_mib = _CACHE_MIB
    params.n_gpu_layers = 0
    params.verbosity = 2
    # Threads that wait for each other by spinning starve on a busy machine: they sleep instead.
    for cpu, threads in ((params.cpuparams, orders["threads"]), (params.cpuparams_batch, _BATCH_THREADS)):
        cpu.n_threads = max(threads, orders["threads"])
        cpu.poll = 0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
