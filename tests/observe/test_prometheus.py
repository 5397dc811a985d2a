"""`/metrics` as Prometheus reads it, with the program of Debian."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import aiohttp
import pytest

from support.gateway import TOKEN, in_process
from support.ports import port_of, reserve_port
from support.programs import find_program, needs
from talaria.testing.model_server import ModelServer

CONFIG = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}
scrape_configs:
  - job_name: talaria
    authorization: {{credentials: {token}}}
    static_configs: [{{targets: ["{gateway}"]}}]
"""


@needs("prometheus")
@pytest.mark.timeout(120)
async def test_prometheus_scrapes_a_gateway_and_has_no_complaint(tmp_path: Path) -> None:
    program, checker = find_program("prometheus"), find_program("promtool")
    assert program is not None
    assert checker is not None
    async with ModelServer() as model, in_process(tmp_path / "home", model) as api:
        await api.say("one", "hello")
        async with api.client.get(f"{api.url}/metrics") as response:
            metrics = await response.read()
        linted = subprocess.run(
            [checker, "check", "metrics"], input=metrics, capture_output=True, check=False
        )
        assert linted.returncode == 0, linted.stdout + linted.stderr
        gateway = api.url.removeprefix("http://")
        (tmp_path / "prometheus.yml").write_text(CONFIG.format(token=TOKEN, gateway=gateway))
        with reserve_port() as place:
            port = port_of(place)
            options = ("--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}")
            process = await asyncio.create_subprocess_exec(
                program, *options, "--storage.tsdb.path=data", cwd=tmp_path, stderr=subprocess.DEVNULL
            )
            try:
                while not (found := await _ask(port, 'talaria_turns_total{state="done"} > 0')):
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            finally:
                process.terminate()
                await process.wait()
    assert found[0]["value"][1] == "1"


async def _ask(port: int, query: str) -> list[dict[str, list[str]]]:
    url = f"http://127.0.0.1:{port}/api/v1/query"
    try:
        async with aiohttp.ClientSession() as client, client.get(url, params={"query": query}) as answer:
            told = json.loads(await answer.text())
    except (aiohttp.ClientError, ValueError):  # it has not started
        return []
    return list(told.get("data", {}).get("result", []))
