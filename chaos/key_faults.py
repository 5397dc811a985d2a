"""Planted faults of keys that are moved to secrets.env, and of the gateway as an MCP server."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_GATE = "tests/cli/test_mcp_gate.py"
_FILE = "tests/config/test_secrets_file.py"

KEY_FAULTS = (
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
