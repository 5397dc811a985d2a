"""Planted faults of MCP servers: approval of their tools, their bounds, their starts and their sandbox."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_PINS = "tests/tools/mcp/test_pins.py"
_CALLS = "tests/tools/mcp/test_calls.py"
_HOSTILE = "tests/tools/mcp/test_hostile_servers.py"
_ASKING = "tests/tools/mcp/test_asking_servers.py"

_ADDING = "tests/cli/test_mcp.py"

MCP_FAULTS = (
    Mutant(
        "secrets of the gateway in a pasted server",
        "a pasted URL gets the gateway's token during the connection test",
        (
            Edit("cli/mcp_add.py", "    _check_references(found, own_secrets(change.loaded.settings))\n", ""),
            Edit("tools/mcp/launch.py", "if self._is_own_secret(variable):", "if not variable:"),
        ),
        Tests(f"{_ADDING}::test_a_pasted_server_never_gets_a_secret_of_the_gateway"),
    ),
    Mutant(
        "secrets of the gateway in a configured server",
        "a server gets the gateway's token from the settings",
        (Edit("tools/mcp/launch.py", "if self._is_own_secret(variable):", "if not variable:"),),
        Tests("tests/tools/mcp/test_part.py"),
    ),
    Mutant(
        "variables sent without a question",
        "a pasted URL gets a key of the environment that nobody confirmed",
        (Edit("cli/mcp.py", "            confirm_sending(new, given)\n", ""),),
        Tests(f"{_ADDING}::test_variables_are_sent_to_a_pasted_server_after_a_yes_in_a_terminal"),
    ),
    Mutant(
        "changed tools offered",
        "a server changes the text of a tool after the operator has looked at it",
        (
            Edit(
                "tools/mcp/pins.py",
                "ServerPins(identity, marked, new)",
                "ServerPins(identity, {**marked, **new})",
            ),
        ),
        Tests(_PINS),
    ),
    Mutant(
        "unseen changes approved",
        "a server swaps its change while the operator reads it",
        (Edit("tools/mcp/pins.py", " if hashes.get(tool) == new.hash}", "}"),),
        Tests(_PINS),
    ),
    Mutant(
        "names of servers not compared",
        "two tools have one name in a request",
        (
            Edit(
                "tools/mcp/pins.py",
                'offered_name(server, tool or "resources", taken)',
                'offered_name(server, tool or "resources", ())',
            ),
        ),
        Tests(_PINS),
    ),
    Mutant(
        "hidden characters kept",
        "a model reads orders that a person does not see",
        (
            Edit(
                "tools/mcp/texts.py",
                'return _HIDDEN.sub("", _LINE_ENDS.sub("\\n", text))',
                'return _LINE_ENDS.sub("\\n", text)',
            ),
        ),
        Tests(_PINS),
    ),
    Mutant(
        "results trusted",
        "what a server returns does not taint the conversation",
        (Edit("tools/mcp/tool.py", "        untrusted=True,\n", ""),),
        Tests(f"{_ASKING}::test_hints_and_settings_decide_about_approvals"),
    ),
    Mutant(
        "long lines held",
        "an answer of a gigabyte is in memory before it is refused",
        (
            Edit(
                "tools/mcp/intake.py",
                "if dropped or len(line) + len(part) > max_bytes:",
                "if dropped and len(line) + len(part) > max_bytes:",
            ),
        ),
        Tests(f"{_HOSTILE}::test_a_large_answer_is_not_held_and_costs_its_own_call"),
    ),
    Mutant(
        "deaths forgiven",
        "a server that dies at every call is started again at once, for ever",
        (
            Edit(
                "tools/mcp/supervisor.py",
                "        self._breaker.failed(ticket)\n",
                "        self._breaker.answered(ticket)\n",
            ),
        ),
        Tests(f"{_HOSTILE}::test_a_call_of_a_dead_server_fails_at_once_and_starts_nothing"),
    ),
    Mutant(
        "all servers started anew",
        "a change of one server ends the calls of all",
        (
            Edit(
                "tools/mcp/source.py",
                "if old.get(name) != server or name not in self._tasks:",
                "if True:",
            ),
        ),
        Tests(f"{_HOSTILE}::test_changed_settings_start_that_server_anew_and_no_other"),
    ),
    Mutant(
        "a server runs beside the one that ends",
        "two reloads in a row run two processes in one folder",
        (
            Edit(
                "tools/mcp/source.py",
                "for task in self._leaving.get(name, ()) if not task.done()",
                "for task in self._leaving.get(name, ())[:1] if not task.done()",
            ),
        ),
        Tests(f"{_HOSTILE}::test_two_reloads_in_a_row_run_no_server_beside_the_one_that_ends"),
    ),
    Mutant(
        "the gateway's variables handed over",
        "a server reads the keys of the models",
        (
            Edit(
                "tools/mcp/launch.py",
                "                **variables(server.env, self.environ),\n",
                "                **self.environ,\n",
            ),
        ),
        Tests(f"{_CALLS}::test_a_server_sees_its_own_folder_its_named_variables_and_no_network"),
    ),
    Mutant(
        "any path writable",
        "a server writes the gateway's home because the settings name a folder around it",
        (Edit("tools/mcp/launch.py", "    if not _is_apart(path, home):\n", "    if not home:\n"),),
        Tests(f"{_CALLS}::test_a_server_writes_where_the_settings_let_it_and_never_at_the_gateways_home"),
    ),
    Mutant(
        "any call asked for",
        "a server spends the money of one session on a call of another",
        (
            Edit(
                "tools/mcp/connection.py",
                "if len(self._calls) == 1 and not self._has_abandoned else None",
                "if self._calls else None",
            ),
        ),
        Tests(f"{_ASKING}::test_a_server_gets_a_model_call_on_behalf_of_one_call_only"),
    ),
    Mutant(
        "pasted keys under names that exist",
        "a pasted server replaces the key of another one, or gets a variable of the gateway",
        (Edit("cli/mcp_keys.py", " or known.get(name, value) != value:", ":"),),
        Tests("tests/cli/test_mcp.py::test_a_pasted_key_does_not_take_the_name_of_a_key_that_exists"),
    ),
)
