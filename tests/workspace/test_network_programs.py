"""Programs that people use, through the proxy: git, pip and npm against servers on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from talaria.core.ids import ChatKey, SessionId
from talaria.net.host_rules import NetworkSettings
from talaria.workspace.network import SessionNetworks
from talaria.workspace.places import SessionPlaces, session_places
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import ProcessLimits, SandboxCommand, shell
from talaria.workspace.sandbox.process import Completed, run

SANDBOX = BubblewrapSandbox()
PREFIX = Path(os.path.realpath(sys.base_prefix))


class Registry:
    """A server with a repository of git, a wheel for pip and a package for npm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.app = web.Application()
        self.app.router.add_static("/git/", self._repository())
        self.app.router.add_get("/simple/hello/", self._index)
        self.app.router.add_get("/hello-1.0-py3-none-any.whl", self._wheel)
        self.app.router.add_get("/tiny-thing", self._package)
        self.app.router.add_get("/tiny-thing-1.0.0.tgz", self._send_tarball)

    def _repository(self) -> Path:
        """Make a repository that git fetches over plain HTTP."""
        work, bare = self.folder / "work", self.folder / "git" / "repo.git"
        bare.parent.mkdir()
        quiet = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"}
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
        work.mkdir()
        (work / "README").write_text("cloned\n")
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
            subprocess.run(("git", *who, *words), cwd=work, env=quiet, check=True)
        subprocess.run(("git", "clone", "-q", "--bare", work, bare), env=quiet, check=True)
        subprocess.run(("git", "update-server-info"), cwd=bare, env=quiet, check=True)
        return bare.parent

    async def _send_tarball(self, request: web.Request) -> web.Response:
        return web.Response(body=self._tarball())

    async def _index(self, request: web.Request) -> web.Response:
        link = '<a href="/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>'
        return web.Response(text=f"<!DOCTYPE html><html><body>{link}</body></html>", content_type="text/html")

    async def _wheel(self, request: web.Request) -> web.Response:
        made = io.BytesIO()
        about = "hello-1.0.dist-info"
        with zipfile.ZipFile(made, "w") as wheel:
            wheel.writestr("hello.py", "print('installed')\n")
            wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
        return web.Response(body=made.getvalue())

    def _tarball(self) -> bytes:
        made = io.BytesIO()
        files = {
            "package.json": '{"name":"tiny-thing","version":"1.0.0"}',
            "index.js": "module.exports = 7\n",
        }
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, text in files.items():
                info = tarfile.TarInfo(f"package/{name}")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
        return made.getvalue()

    async def _package(self, request: web.Request) -> web.Response:
        content = self._tarball()
        dist = {
            "tarball": f"http://127.0.0.1:{self.port}/tiny-thing-1.0.0.tgz",
            "shasum": hashlib.sha1(content).hexdigest(),
        }
        version = {"name": "tiny-thing", "version": "1.0.0", "dist": dist}
        told = {"name": "tiny-thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return web.Response(text=json.dumps(told), content_type="application/json")


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    folder = tmp_path / "registry"
    folder.mkdir()
    made = Registry(folder)
    runner = web.AppRunner(made.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


class Session:
    def __init__(self, networks: SessionNetworks, places: SessionPlaces) -> None:
        self._networks = networks
        self._places = places

    async def run(self, text: str) -> Completed:
        access = await self._networks.access(self._places, SANDBOX)
        assert access is not None, self._networks.reading()
        # The servers are on loopback, which programs do not ask a proxy about.
        environ = {**access.environ, "NO_PROXY": "", "no_proxy": ""}
        access = type(access)(access.namespaces, access.users, environ)
        places = self._places
        command = SandboxCommand(
            shell(text),
            places.folder,
            places.home,
            places.tmp,
            readable=(PREFIX,),
            limits=ProcessLimits(memory=8 << 30, seconds=100),
            network=access,
        )
        return await run(SANDBOX, command)


@pytest.fixture
async def session(tmp_path: Path, registry: Registry) -> AsyncIterator[Session]:
    if reason := (await asyncio.to_thread(lambda: asyncio.run(prove(SANDBOX, Path("/nowhere"))))).why_not:
        pytest.skip(reason)
    home = tmp_path / "home"
    home.mkdir()
    settings = NetworkSettings(allow_private=(f"127.0.0.1:{registry.port}",))
    networks = SessionNetworks(home, lambda: settings)
    places = session_places(home, SessionId("ses_1"), ChatKey("api:x"), home / "files" / "x")
    places.make()
    yield Session(networks, places)
    await networks.close()


async def test_git_clones(session: Session, registry: Registry) -> None:
    done = await session.run(f"git clone -q http://127.0.0.1:{registry.port}/git/repo.git r && cat r/README")
    assert done.out == b"cloned\n", done.err
    refused = await session.run("git clone -q https://unlisted.example/other.git")
    assert b"403" in refused.err


@pytest.mark.long
async def test_pip_installs_and_prints_why_a_host_is_refused(session: Session, registry: Registry) -> None:
    python = os.path.realpath(sys.executable)
    if subprocess.run((python, "-m", "pip", "--version"), capture_output=True, check=False).returncode:
        pytest.skip("no pip")
    pip = f"{python} -m pip install --disable-pip-version-check --no-cache-dir --retries 1 --target t"
    done = await session.run(
        f"{pip} -q --index-url http://127.0.0.1:{registry.port}/simple/ hello && {python} t/hello.py"
    )
    assert done.out == b"installed\n", done.err
    refused = await session.run(f"{pip} --index-url https://unlisted.example/simple/ hello")
    assert b"Refused by Talaria: unlisted.example:443 was not reached." in refused.err + refused.out


@pytest.mark.long
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
async def test_npm_installs(session: Session, registry: Registry) -> None:
    done = await session.run(
        f"npm install --silent --no-audit --no-fund --registry http://127.0.0.1:{registry.port}/ tiny-thing "
        "&& node -p 'require(\"tiny-thing\")'"
    )
    assert done.out == b"7\n", done.err


async def test_certificates_can_be_read(session: Session) -> None:
    done = await session.run(
        "ls /etc/ssl/certs >/dev/null && cat /etc/ssl/openssl.cnf >/dev/null && echo yes"
    )
    if not Path("/etc/ssl/openssl.cnf").exists():
        pytest.skip("this system keeps them elsewhere")
    assert done.out.endswith(b"yes\n"), done.err
