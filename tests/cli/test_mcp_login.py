"""`talaria mcp login`: a login in a browser, kept and used by the running gateway."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from cli.conftest import DEADLINE, Caller, Serve, Talaria
from support.oauth_server import oauth_server

BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


async def test_a_login_in_a_browser_is_kept_and_used_by_the_gateway(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path
) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)
    env = {"BROWSER": f"{sys.executable} {browser} %s"}
    async with oauth_server() as service:
        await asyncio.to_thread(serve)
        added = await asyncio.to_thread(talaria, "mcp", "add", "one", f"{service.url}/mcp", "--no-test")
        assert added.returncode == 0, added.stderr
        done = await asyncio.to_thread(talaria, "mcp", "login", "one", env=env)
        assert done.returncode == 0, done.stderr
        assert f"Logged in at {service.url}/mcp." in done.stdout
        assert "mcp_one_plain" in done.stdout
        assert 'auth = "oauth"' in (home / "config.toml").read_text()
        async with asyncio.timeout(DEADLINE):
            while await asyncio.to_thread(_state, home) != "ready":
                await asyncio.sleep(0.1)
        for word in ("access-", "refresh-"):
            assert word not in (tmp_path / "serve.log").read_text()
        tested = await asyncio.to_thread(talaria, "mcp", "test", "one")
        assert "only the running gateway has that" in tested.stderr
        removed = await asyncio.to_thread(talaria, "mcp", "remove", "one")
        assert removed.returncode == 0, removed.stderr
        assert await asyncio.to_thread(_grants, home) == 0


def _grants(home: Path) -> int:
    with closing(sqlite3.connect(f"file:{home}/talaria.db?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM oauth_grants").fetchone()[0])


def _state(home: Path) -> str:
    return str(Caller(home).call("/api/status")["mcp_servers"].get("one", {}).get("state"))


def test_a_server_with_a_command_has_nowhere_to_log_in(talaria: Talaria) -> None:
    assert talaria("mcp", "add", "two", "--no-test", "--", "true").returncode == 0
    refused = talaria("mcp", "login", "two")
    assert (refused.returncode, "two has no url" in refused.stderr) == (1, True)
