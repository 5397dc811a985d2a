"""Looks at a gateway from outside: `python -m trial.loads.disk_probe URL TOKEN`.

It runs in a process of its own, so that the load does not count as the gateway's. Each line says when a
call began (CLOCK_MONOTONIC), how many seconds it took, its path, and what came: the HTTP status, and the
reasons of `/api/status` why the gateway is not ready.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from urllib.parse import urlsplit

_EVERY = {"/healthz": 0.02, "/readyz": 0.05, "/api/status": 0.1}
_TIMEOUT = 10.0


def look(url: str, token: str, path: str) -> None:
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=_TIMEOUT)
    headers = {"Authorization": f"Bearer {token}"}
    while True:
        began = time.monotonic()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body, told = answer.read(), str(answer.status)
            if path == "/api/status" and answer.status == 200:
                told += f" {json.dumps(json.loads(body)['reasons'])}"
        except (OSError, http.client.HTTPException) as error:
            told = type(error).__name__
            connection.close()
        seconds = time.monotonic() - began
        sys.stdout.write(f"{began:.6f} {seconds:.6f} {path} {told}\n")
        sys.stdout.flush()
        time.sleep(max(0.0, _EVERY[path] - seconds))


def main(url: str, token: str) -> None:
    for path in _EVERY:
        threading.Thread(target=look, args=(url, token, path), daemon=True).start()
    sys.stdin.read()  # until its starter closes it


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
