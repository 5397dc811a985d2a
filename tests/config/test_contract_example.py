"""The example of the outer contract must load in every version: an unknown key is only a warning."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from talaria.channels.http.part import HTTP
from talaria.channels.telegram.part import TELEGRAM
from talaria.config.load import load
from talaria.mcp.part import MCP
from talaria.models.settings import FallbackSettings
from talaria.parts import PARTS
from talaria.tools.part import ToolPart

EXAMPLE = """\
[agent]
name = "main"
prompt = "You are a helpful assistant."     # extra text for the frozen system prompt
max_steps = 60
timezone = "Europe/Berlin"                  # daily resets, jobs, budget days; default: the machine's

[model]
provider = "openrouter"                     # a table under [providers]; "local" is built in
name = "anthropic/claude-sonnet-4"
reasoning = "medium"                        # none | low | medium | high; per turn, never part of the prefix
fallback = [{ provider = "backup", name = "gpt-5" }]

[aliases]
fast = "groq/llama-4-scout"                 # /model fast

[providers.openrouter]
api = "openai-chat"                         # openai-chat | openai-responses | anthropic-messages
base_url = "https://openrouter.ai/api/v1"
api_key_env = "OPENROUTER_API_KEY"          # or api_key = "…"
timeout = "120s"
max_retries = 3

[pool]
max_agents = 128
idle_ttl = "1h"
max_bytes = "256MiB"

[sessions]
reset = "none"                              # none | idle | daily | both
idle_after = "24h"
daily_at = "04:00"
busy = "queue"                              # queue | steer | interrupt

[tools]
enabled = ["files", "terminal", "web", "memory", "recall", "delegate", "jobs"]
sandbox = "auto"                            # auto | bubblewrap | landlock | container | ssh | none
approvals = "risky"                         # risky | always | never

[http]
host = "127.0.0.1"
port = 8765                                 # 0 picks a free one
token_env = "TALARIA_HTTP_TOKEN"            # else http.token in the home

[store]
url = ""                                    # default: talaria.db in the home; or postgresql://…

[budgets]                                   # 0: no cap
per_day_usd = 0
per_session_usd = 0
per_user_daily_usd = 0
per_job_run_usd = 0.5

[retention]
ephemeral = "24h"
ledger = "30d"
ended_sessions = "forever"

[shutdown]
deadline = "10s"

[channels.telegram]
token_env = "TELEGRAM_BOT_TOKEN"
allowed = [123456789]                       # immutable ids; others get a pairing code
api_url = "https://api.telegram.org"        # every channel can be pointed at another server
progress = "brief"                          # off | brief | full

[mcp.servers.files]
command = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "."]
"""


def test_the_contracts_example_loads_and_says_what_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(EXAMPLE)

    loaded = load(tmp_path, {"OPENROUTER_API_KEY": "sk-or-123456"}, PARTS)

    known = [part.name for part in PARTS if isinstance(part, ToolPart) and part.is_builtin]
    assert loaded.warnings == (
        'config.toml line 11: model.fallback names "backup", which is not a provider, and skips it. '
        "Add [providers.backup].",
        *(
            f'config.toml line 35: tools.enabled names "{family}", which is not known, and skips it. '
            f"Known are: {', '.join(known)}."
            for family in ("web", "memory", "recall", "delegate", "jobs")
            if family not in known
        ),
        "config.toml line 62: channels.telegram.token_env names TELEGRAM_BOT_TOKEN, which is not set.",
    )
    settings = loaded.settings
    assert settings.agent.timezone == "Europe/Berlin"
    assert settings.model.reasoning == "medium"
    assert settings.model.fallback == (FallbackSettings("backup", "gpt-5"),)
    assert settings.providers["openrouter"].max_retries == 3
    assert settings.aliases == {"fast": "groq/llama-4-scout"}
    assert settings.providers["openrouter"].timeout == timedelta(minutes=2)
    assert settings.pool.max_bytes == 256 << 20
    assert settings.tools.enabled[:3] == ("files", "terminal", "web")
    assert settings.of(MCP).servers["files"].command[0] == "npx"
    assert settings.of(HTTP).port == 8765
    assert settings.of(TELEGRAM).allowed == (123456789,)
    assert loaded.secrets == {("OPENROUTER_API_KEY", "sk-or-123456")}
    assert loaded.path == tmp_path / "config.toml"
