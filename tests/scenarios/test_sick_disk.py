"""A real gateway on a real disk that fills up, and on one that cannot be written.

The disk is a small tmpfs in a mount namespace of its own, which is gone with the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def can_mount() -> bool:
    """Return whether a process in a namespace of its own can have a home on a disk of its own.

    In the namespace of an ordinary user, the folders above the home belong to nobody. Talaria refuses that.
    """
    owns_root = [*NAMESPACE, "test", "-O", "/"]
    try:
        return subprocess.run(owns_root, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")

FULL = """
import json, os, signal, subprocess, sys, time, urllib.error, urllib.request
from pathlib import Path

home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(home)], check=True)
environ = {**os.environ, "TALARIA_HOME": str(home), "TALARIA_HTTP__PORT": "0", "TALARIA_LOG__LEVEL": "error"}
serve = [sys.executable, "-m", "talaria", "serve"]
gateway = subprocess.Popen(serve, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
url = gateway.stdout.readline().split()[2].partition("/#")[0]
token = (home / "http.token").read_text().strip()

def call(path, body=None):
    request = urllib.request.Request(url + path, body and json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

seen = {"before": [call("/api/sessions/one/messages", {"text": "/whoami"})[0], call("/readyz")[0]]}
ballast = home / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
accepted = [seen.pop("before")]
refused = None
for number in range(200):
    status, body = call("/api/sessions/one/messages", {"text": "x" * 1000})
    if status != 202:
        refused = [status, body["error"]["type"], body["error"]["message"], body["error"]["hint"]]
        break
full = {"refused": refused, "ready": call("/readyz")[0], "live": call("/healthz")[0]}
status = call("/api/status")
full["reads"] = status[0]
full["reasons"] = status[1]["reasons"]
owed = status[1]["owed"]["turns"]
ballast.unlink()
for _ in range(200):
    if call("/readyz")[0] == 200:
        break
    time.sleep(0.1)
well = {"ready": call("/readyz")[0], "accepted": call("/api/sessions/one/messages", {"text": "again"})[0]}
gateway.send_signal(signal.SIGKILL)
log = gateway.communicate()[1]
again = subprocess.Popen(serve, env=environ, stdout=subprocess.PIPE, text=True)
url = again.stdout.readline().split()[2].partition("/#")[0]
store = call("/api/status")[1]["store"]
again.send_signal(signal.SIGTERM)
again.wait()
print(json.dumps({"before": accepted[0], "full": full, "well": well, "store": store, "log": log}))
"""


def run(script: str, home: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("TALARIA_")}
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", script, str(home)],
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_refuses_and_is_over_when_there_is_room(tmp_path: Path) -> None:
    seen = json.loads(run(FULL, tmp_path))
    assert seen["before"] == [202, 200]
    status, kind, message, hint = seen["full"]["refused"]
    assert (status, kind) == (503, "store")
    assert "full" in message and "Make room" in hint
    assert (seen["full"]["ready"], seen["full"]["live"], seen["full"]["reads"]) == (503, 200, 200)
    assert "full" in seen["full"]["reasons"][0]
    assert seen["well"] == {"ready": 200, "accepted": 202}
    assert (seen["store"]["integrity"], seen["store"]["trouble"]) == ("whole", "")
    told = [line for line in seen["log"].splitlines() if "talaria.http" in line]
    assert len(told) == 1 and message in told[0] and hint in told[0], seen["log"]
    assert "Traceback" not in seen["log"]


FULL_START = """
import json, os, subprocess, sys
from pathlib import Path

home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(home)], check=True)
environ = {**os.environ, "TALARIA_HOME": str(home), "TALARIA_HTTP__PORT": "0", "TALARIA_LOG__LEVEL": "error"}

def talaria(*words):
    command = [sys.executable, "-m", "talaria", *words]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return [done.returncode, done.stdout, done.stderr]

def fill():
    with (home / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

fill()
seen = {"empty": talaria("serve"), "left": sorted(os.listdir(home))}
(home / "ballast").unlink()
assert talaria("pair", "invite", "telegram")[0] == 0
fill()
for verb in ("serve", "doctor"):
    seen[verb] = talaria(verb)
print(json.dumps(seen))
"""


def test_commands_on_a_full_disk_say_so_and_doctor_goes_on(tmp_path: Path) -> None:
    seen = json.loads(run(FULL_START, tmp_path))
    for verb in ("empty", "serve"):
        code, _, told = seen[verb]
        assert code == 1
        assert "No space left on device.\n" in told and "Make room on " in told, told
        assert "bug" not in told and "Traceback" not in told
    assert not [name for name in seen["left"] if name.startswith(".")]
    code, told, complaint = seen["doctor"]
    assert (code, complaint) == (1, "")
    assert "problem  store     The disk of the home" in told
    assert "Make room on that disk" in told and "ok       port" in told


WAITING_START = """
import json, os, signal, socket, subprocess, sys, time, urllib.error, urllib.request
from pathlib import Path

home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(home)], check=True)
place = socket.socket()  # keeps the port: see tests/support/ports.py
place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
place.bind(("127.0.0.1", 0))
port = place.getsockname()[1]
environ = {**os.environ, "TALARIA_HOME": str(home), "TALARIA_HTTP__PORT": str(port)}

def start():
    command = [sys.executable, "-m", "talaria", "serve"]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

def call(path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body and json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + (home / "http.token").read_text().strip())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return [answer.status, json.load(answer)]
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)]
    except OSError as error:
        return [0, str(error)]

def until(path, status, gateway):
    for _ in range(300):
        if (seen := call(path))[0] == status or gateway.poll() is not None:
            return seen
        time.sleep(0.1)

def fill():
    with (home / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

def end(gateway):
    gateway.send_signal(signal.SIGTERM)
    log = gateway.communicate()[1]
    return [gateway.returncode, log]

first = start()
first.stdout.readline()
until("/readyz", 200, first)
end(first)
fill()
second = start()
seen = {"live": until("/healthz", 200, second), "ready": call("/readyz"), "other": call("/api/status")}
doctor = [sys.executable, "-m", "talaria", "doctor"]
seen["doctor"] = subprocess.run(doctor, env=environ, capture_output=True, text=True).stdout
(home / "ballast").unlink()
seen["well"] = until("/readyz", 200, second)
seen["accepted"] = call("/api/sessions/one/messages", {"text": "/whoami"})[0]
seen["second"] = end(second)
fill()
third = start()
until("/healthz", 200, third)
seen["stopped"] = end(third)
print(json.dumps(seen))
"""


def test_a_start_on_a_full_disk_waits_and_continues_when_there_is_room(tmp_path: Path) -> None:
    seen = json.loads(run(WAITING_START, tmp_path))
    assert seen["live"][0] == 200, seen
    assert seen["ready"][0] == 503
    assert seen["ready"][1]["troubles"] == ["store"]
    status, body = seen["other"]
    assert status == 503
    assert "full" in body["error"]["message"] and "Make room" in body["error"]["hint"]
    told = " ".join(seen["doctor"].split())
    assert "in use by another Talaria" in told
    assert "leave it running: it waits for room on the disk" in told
    assert "unset TALARIA_HTTP__PORT" not in told, "the port of a gateway that waits needs no change"
    assert (seen["well"][0], seen["accepted"]) == (200, 202)
    code, log = seen["second"]
    assert code == 0
    assert "waits for room" in log and "Traceback" not in log, log
    assert seen["stopped"][0] == 0, "a gateway that waits can be stopped"


READ_ONLY = """
import os, subprocess, sys
home = sys.argv[1]
serve = [sys.executable, "-m", "talaria"]
subprocess.run([*serve, "pair", "invite", "telegram", "--home", home], capture_output=True, check=True)
subprocess.run(["mount", "--bind", home, home], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", home], check=True)
done = subprocess.run([*serve, "serve", "--port", "0", "--home", home], capture_output=True, text=True)
print(done.returncode)
print(done.stderr)
done = subprocess.run([*serve, "doctor", "--home", home], capture_output=True, text=True)
print(done.stdout, done.stderr)
"""


def test_a_start_on_a_read_only_disk_says_what_to_do(tmp_path: Path) -> None:
    told = run(READ_ONLY, tmp_path)
    assert told.startswith("1\n")
    assert "Read-only file system" in told
    assert "--home" in told and "Traceback" not in told
    assert "problem  store " in told and "mount -o remount,rw" in told
    assert "damaged" not in told and "Without a backup" not in told
