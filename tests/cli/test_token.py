"""`talaria token`, through the running gateway and without one."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cli.conftest import Serve, Talaria


def status_of(home: Path, token: str) -> int:
    """The answer of the running gateway to a call with this token."""
    address = json.loads((home / "gateway.json").read_text())["url"]
    request = urllib.request.Request(f"{address}/api/status", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("with_gateway", [True, False])
def test_add_list_and_revoke(with_gateway: bool, talaria: Talaria, serve: Serve, home: Path) -> None:
    if with_gateway:
        serve()
    added = talaria("token", "add", "monitor", "--role", "read", "--expires", "30d")
    assert added.returncode == 0
    secret = added.stdout.strip()
    assert secret.startswith("talaria_")
    assert "The token monitor has the role read, until 20" in added.stderr
    assert "not shown again" in added.stderr
    talaria("token", "add", "phone", "--role", "chat")
    listed = talaria("token", "list").stdout
    rows = [line.split() for line in listed.splitlines()]
    assert rows[0] == ["NAME", "ROLE", "CREATED", "LAST", "USED", "EXPIRES"]
    assert [row[:2] for row in rows[1:]] == [["monitor", "read"], ["phone", "chat"]]
    assert rows[2][-2:] == ["never", "never"]
    assert secret not in listed
    if not with_gateway:
        serve()
    assert status_of(home, secret) == 200
    assert "The token monitor is revoked" in talaria("token", "revoke", "monitor").stdout
    assert status_of(home, secret) == 401, "the running gateway refuses it at once"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("add", "phone"), 2, "--role"),
        (("add", "phone", "--role", "admin"), 2, "'read', 'chat', 'operate'"),
        (("add", "phone", "--role", "chat", "--expires", "soon"), 2, "a duration such as"),
        (("add", "phone", "--role", "chat", "--expires", "0s"), 1, "cannot expire"),
        (("add", "a phone", "--role", "chat"), 1, "no name for a token"),
        (("revoke", "nobody"), 1, "There is no token nobody"),
    ],
)
def test_mistakes_are_told(talaria: Talaria, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = talaria("token", *arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_tokens_the_list_says_how_to_make_one(talaria: Talaria) -> None:
    assert "`talaria token add NAME --role ROLE`" in talaria("token", "list").stdout
