"""schemathesis against a real gateway: requests drawn from /openapi.json, and answers compared with it."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from importlib.util import find_spec

from talaria.testing.gateway_process import running_gateway
from trial.report import Figure

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_CASES = re.compile(r"(\d+) generated(?:, (\d+) found)?")
_OPTIONS = (
    "--checks", CHECKS, "--request-timeout", "20", "--generation-deterministic", "--no-color",
    "--exclude-path", "/api/events",  # has no end
    "--exclude-path-regex", "/fetch$",  # would download a model
)  # fmt: skip


def why_not() -> str:
    """Return why it cannot run here, or an empty text."""
    if find_spec("schemathesis") is None:
        return "schemathesis is not installed: pip install -e '.[fuzz]'"
    return ""


class SchemaRun:
    """`examples` requests at most for each call and phase."""

    def __init__(self, examples: int, phases: str = "examples,coverage,fuzzing,stateful") -> None:
        self._more = ("--max-examples", str(examples), "--phases", phases)

    async def run(self) -> list[Figure]:
        async with running_gateway({"LOG__LEVEL": "warning"}) as (gateway, _):
            token = (gateway.home / "http.token").read_text().strip()
            with tempfile.TemporaryDirectory(prefix="talaria-schema-") as folder:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json",
                    "--header", f"Authorization: Bearer {token}", *_OPTIONS, *self._more,
                    cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
                try:
                    output, _ = await process.communicate()
                except BaseException:
                    process.kill()
                    await process.wait()
                    raise
            log = gateway.log.read_text(errors="replace")
        text = output.decode(errors="replace")
        cases, found = (int(number or 0) for number in re.findall(_CASES, text)[-1])
        failed = found or int(process.returncode != 0)
        return [
            Figure(
                "schemathesis: requests whose answer is not as described, or a 5xx",
                failed,
                "",
                0,
                found=(text,),
            ),
            Figure("… requests", cases),
            Figure("… tracebacks in the log", log.count("Traceback"), "", 0),
        ]
