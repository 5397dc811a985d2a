"""Planted faults of keys in secrets.env, of login links, and of the gateway as an MCP server."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_GATE = "tests/cli/test_mcp_gate.py"
_FILE = "tests/config/test_secrets_file.py"

KEY_FAULTS = (
    Mutant(
        "login code on a command line",
        "another user of the machine reads the code that `talaria open` passes to the browser",
        (
            Edit(
                "cli/open.py",
                "webbrowser.open(_write_page(home, login_link).as_uri())",
                "webbrowser.open(login_link)",
            ),
        ),
        Tests("tests/cli/test_serve.py::test_other_users_see_no_login_code_while_a_browser_starts"),
    ),
    Mutant(
        "login page open to others",
        "another user of the machine reads the page that has the login code",
        (
            Edit("cli/open.py", "mkdir(mode=0o700, exist_ok=True)", "mkdir(mode=0o755, exist_ok=True)"),
            Edit("cli/open.py", "Open Talaria</a>\\n'.encode())", "Open Talaria</a>\\n'.encode(), 0o644)"),
        ),
        Tests("tests/cli/test_serve.py::test_open_starts_a_browser_where_there_is_one"),
    ),
    Mutant(
        "MCP server without a gate",
        "whoever reaches the port asks agents and reads conversations",
        (
            Edit(
                "cli/mcp_server.py",
                "if (refusal := await self._refuse(token)) is not None:",
                "if (refusal := await self._refuse(token)) is not None and not scope:",
            ),
        ),
        Tests(f"{_GATE}::test_nobody_passes_whose_token_no_gateway_has_accepted"),
    ),
    Mutant(
        "commands of programs",
        "the model behind an MCP client approves the calls of its own agent",
        (Edit("cli/gateway_tools.py", "if _COMMAND.match(words):", "if not words:"),),
        Tests(f"{_GATE}::test_a_program_sends_no_commands"),
    ),
    Mutant(
        "keys known by their forms only",
        "a pasted password stays in config.toml",
        (Edit("cli/mcp_keys.py", "or (is_named and len(bare) >= 6)", "or (is_named and len(bare) < 6)"),),
        Tests("tests/cli/test_mcp_paste.py::test_keys_leave_variables_headers_and_arguments"),
    ),
    Mutant(
        "open file of secrets",
        "other users of the machine read the keys of MCP servers",
        (
            Edit(
                "config/secrets_file.py",
                'replace_file(path, "".join(kept).encode())',
                'replace_file(path, "".join(kept).encode(), 0o644)',
            ),
        ),
        Tests(f"{_FILE}::test_values_are_written_for_their_owner_only_and_other_lines_stay"),
    ),
    Mutant(
        "moved keys in logs",
        "a key of secrets.env is in logs, replies and results",
        (Edit("config/load.py", "| keys | stored", "| keys"),),
        Tests(f"{_FILE}::test_all_values_are_redacted_also_those_that_come_later"),
    ),
)
