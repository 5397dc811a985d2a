"""Planted faults of plug-ins: starts that fail, names that are taken, hooks that change or miss something."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_LOADING = "tests/plugins/test_loading.py"
_HOOKS = "tests/plugins/test_hooks.py"
_FAULTY = Tests(f"{_LOADING}::test_faulty_plugins_are_named_and_left_out_and_the_rest_is_loaded")

PLUGIN_FAULTS = (
    Mutant(
        "records written without a lock",
        "of two that add an entry at once, one loses it",
        (Edit("core/whole_files.py", "        fcntl.flock(lock, fcntl.LOCK_EX)\n", ""),),
        Tests(f"{_LOADING}::test_no_entry_of_the_quarantine_is_lost_if_several_write_at_once"),
    ),
    Mutant(
        "hook changes a request",
        "what stands around a model call adds a message to it",
        (
            Edit(
                "agent/hooked.py",
                "        await self.hooks.before_model(self.turn, self._name)\n",
                "        await self.hooks.before_model(self.turn, self._name)\n"
                '        self._view.transcript.append(UserMessage((Text("hooked"),)))\n',
            ),
            Edit(
                "agent/hooked.py",
                "import ToolCall, ToolOutcome, ToolResult\n",
                "import Text, ToolCall, ToolOutcome, ToolResult, UserMessage\n",
            ),
        ),
        Tests(f"{_HOOKS}::test_no_hook_changes_a_byte_of_a_request"),
    ),
    Mutant(
        "refusal of a hook ignored",
        "a tool call runs although a hook has refused it",
        (
            Edit(
                "agent/hooked.py",
                "            result = ToolResult(call.id, call.name, text, ToolOutcome.ERROR)\n",
                "            result = await self.tools.run(call, question) if text else result\n",
            ),
        ),
        Tests(_HOOKS),
    ),
    Mutant(
        "faulty plug-in stops the start",
        "a plug-in that raises keeps the gateway from starting",
        (
            Edit(
                "plugins/loading.py",
                "        if not each.result.problem:\n            _load(",
                "        if each.result.problem:\n"
                "            raise RuntimeError(each.result.problem)\n"
                "        else:\n            _load(",
            ),
        ),
        _FAULTY,
    ),
    Mutant(
        "taken name wins",
        "a later plug-in takes a tool of an earlier one",
        (
            Edit(
                "plugins/loading.py",
                "(owner := owners.get(thing)) is not None:",
                "(owner := owners.get(thing)) == name:",
            ),
        ),
        _FAULTY,
    ),
    Mutant(
        "built-in name wins not",
        "a plug-in may ask for /stop and read_file",
        (
            Edit(
                "plugins/checking.py",
                "        if name in taken or name.",
                "        if name.",
            ),
        ),
        _FAULTY,
    ),
    Mutant(
        "changed plug-in not checked",
        "a check that went well counts for other code and other settings",
        (Edit("plugins/loading.py", "kept.key == check_key(digest, table)", "kept.key"),),
        _FAULTY,
    ),
    Mutant(
        "quarantine forgotten",
        "a plug-in that held the event loop is loaded again",
        (
            Edit(
                "plugins/records.py",
                "        return found if found is not None and found.digest == digest else None\n",
                "        return found if found is not None and found.digest == name else None\n",
            ),
        ),
        Tests(f"{_LOADING}::test_the_plugin_that_held_the_loop_is_left_out_at_the_next_start"),
    ),
    Mutant(
        "open plug-in loaded",
        "a file that every user may write is run",
        (
            Edit(
                "config/plugin_sources.py",
                "    for reason in find_distrust(home, path)",
                "    for reason in ()",
            ),
        ),
        Tests(f"{_LOADING}::test_a_file_that_others_may_write_is_refused"),
    ),
)
