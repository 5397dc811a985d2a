"""Planted holes of the sandboxes, and of the gateway's handling of what commands leave.

The proof of a sandbox would refuse most of them, so it is blinded too: the hostile commands alone must
notice.
"""

from __future__ import annotations

from chaos.planted import Commands, Edit, Mutant, Tests

_BLIND = Edit(
    "workspace/sandbox/proof.py",
    "return not self.why_not and not self.reached and bool(self.attempts)",
    "return not self.why_not",
)
_BUBBLEWRAP, _LAUNCHER = "workspace/sandbox/bubblewrap.py", "workspace/sandbox/launcher.py"
_MOUNTS = "workspace/sandbox/mounts.py"
_MOUNT_TESTS = "tests/workspace/sandbox/test_mounts.py"
_TREES = "tests/workspace/test_hostile_commands.py::test_a_tree_is_removed_however_deep_and_closed_it_is"
_STATES = (
    "tests/workspace/test_hostile_commands.py::test_a_trap_in_the_place_of_the_shells_state_does_nothing"
)


def _hole(name: str, why: str, caught_by: Commands, *edits: Edit) -> Mutant:
    return Mutant(name, why, (_BLIND, *edits), caught_by)


SANDBOX_FAULTS = (
    Mutant(
        "bubblewrap: mounts below a folder that commands can write",
        "a command plants a link, and the next sandbox is mounted over /usr/bin with a setpriv of its own",
        (
            Edit(_BUBBLEWRAP, "return str(_OTHER_TMP if is_taken else _TMP)", "return str(_TMP)"),
            Edit(_MOUNTS, "(plan[folder].is_writable or plan[folder].is_link)", "plan[folder].is_link"),
        ),
        Tests(f"{_MOUNT_TESTS}::test_a_folder_that_was_renamed_below_tmp_is_not_mounted_over_the_system"),
    ),
    Mutant(
        "bubblewrap: mounts over its own helpers",
        "a command plants a setpriv, which the next sandbox runs as root",
        (Edit(_MOUNTS, "if around is None or around.is_writable:", "if around is None:"),),
        Tests(
            f"{_MOUNT_TESTS}::test_programs_that_start_commands_are_never_in_a_folder_that_commands_can_write"
        ),
    ),
    Mutant(
        "bubblewrap: folders by their paths",
        "a command of another chat plants a link while the sandbox starts, and files outside are mounted",
        (Edit(_BUBBLEWRAP, "takes_descriptors(program), fds)", "False, fds)"),),
        Tests(f"{_MOUNT_TESTS}::test_a_link_planted_while_a_command_starts_leads_nowhere"),
    ),
    Mutant(
        "Landlock: folders by their paths",
        "a command of another chat plants a link while a command starts, and files outside can be written",
        (Edit(_LAUNCHER, 'if kind in ("writable", "readable") and', 'if kind == "" and'),),
        Tests(f"{_MOUNT_TESTS}::test_a_link_planted_while_a_command_starts_leads_nowhere"),
    ),
    Mutant(
        "bubblewrap: no guard",
        "a gateway that is killed while a command starts leaves it running, or a process that waits for ever",
        (Edit(_BUBBLEWRAP, ', (_SHELL, "-c", guard, "sh"))\n', ")\n"),),
        Tests("tests/chaos/test_start_kills.py::test_a_kill_while_a_sandbox_starts_leaves_no_process"),
    ),
    Mutant(
        "bubblewrap: its guard is not reaped",
        "a gateway that is the first process of a container keeps a zombie of each command",
        (
            Edit(
                "workspace/sandbox/process.py",
                "        if self._launch.guard:\n            await self._reap_group()\n",
                "",
            ),
        ),
        Tests("tests/chaos/test_start_kills.py::test_a_gateway_that_inherits_processes_reaps_them"),
    ),
    _hole(
        "bubblewrap: no namespace of the network",
        "a command reaches servers on this machine",
        Commands("bubblewrap", ("the network by TCP", "the network by UDP")),
        Edit(
            _BUBBLEWRAP,
            "        join = command.network.join if command.network is not None else ()\n",
            "        join: tuple[str, ...] = ()\n",
        ),
        Edit(_BUBBLEWRAP, '                arguments += ["--unshare-net"]\n', "                pass\n"),
    ),
    _hole(
        "bubblewrap: /proc of the machine",
        "a command reads the arguments of other processes and signals them",
        Commands("bubblewrap", ("/proc of others", "signals")),
        Edit(_BUBBLEWRAP, '"--unshare-pid", ', ""),
    ),
    _hole(
        "bubblewrap: the folder of the gateway's home",
        "a command reads and changes files of others",
        Commands("bubblewrap", ("files outside", "writes outside")),
        Edit(
            _BUBBLEWRAP,
            '            arguments += ["--chdir", str(command.cwd or command.folder)]\n',
            '            arguments += ["--chdir", str(command.cwd or command.folder)]\n'
            "            if len(command.folder.parents) > 4:\n"
            "                above = str(command.folder.parents[2])\n"
            '                arguments += ["--bind", above, above]\n',
        ),
    ),
    _hole(
        "bubblewrap: no filter",
        "a command uses namespaces, keys, io_uring and bpf",
        Commands("bubblewrap", ("calls of the kernel",)),
        Edit(
            _BUBBLEWRAP,
            '            arguments += ["--seccomp", str(fds[-1])]\n',
            "            os.close(fds.pop())\n",
        ),
    ),
    _hole(
        "bubblewrap: no limits",
        "a fork bomb takes all processes of the machine",
        Commands("bubblewrap", ("privileges and setuid programs",), 24),
        Edit(_BUBBLEWRAP, "ulimit -u {processes} 2>/dev/null || ulimit -p {processes} || exit 125\n", ""),
        Edit(_BUBBLEWRAP, " && ulimit -f {blocks} && ulimit -d {kilobytes} && ulimit -n {files}", ""),
    ),
    _hole(
        "bubblewrap: the gateway's variables",
        "a command reads the keys of providers",
        Commands("bubblewrap", ("variables and inherited descriptors",)),
        Edit("workspace/sandbox/process.py", "        env={},\n", "        env=None,\n"),
    ),
    Mutant(
        "Landlock: root's groups",
        "a command reads and writes what root's groups may",
        (Edit(_LAUNCHER, "    os.setgroups([])\n", ""),),
        Tests(
            "tests/workspace/sandbox/test_credentials.py"
            "::test_the_credentials_and_mounts_of_a_command_are_exactly_these"
        ),
    ),
    _hole(
        "Landlock: signals leave",
        "a command ends other processes of its user",
        Commands("landlock", ("signals",)),
        Edit(_LAUNCHER, "_SCOPES = 1 | 2  #", "_SCOPES = 1  #"),
    ),
    _hole(
        "Landlock: everything can be read",
        "a command reads the gateway's home",
        Commands("landlock", ("files outside", "the gateway's home and database")),
        Edit(_LAUNCHER, "        for path in order[kind]:\n", '        for path in [*order[kind], "/"]:\n'),
    ),
    _hole(
        "Landlock: sockets",
        "a command asks the daemons of this machine",
        Commands("landlock", ("Unix and abstract sockets", "the network by UDP")),
        Edit("workspace/sandbox/landlock.py", "has_namespaces=False", "has_namespaces=True"),
    ),
    _hole(
        "Landlock: an inherited descriptor",
        "a command tells its own exit code",
        Commands("landlock", ("variables and inherited descriptors",)),
        Edit(_LAUNCHER, "    os.set_inheritable(status_fd, False)\n", ""),
    ),
    _hole(
        "Landlock: what a command started lives on",
        "processes of ended commands fill the machine",
        Commands("landlock", ("processes that stay",)),
        Edit(_LAUNCHER, "            break\n    _end_all(main)\n", "            break\n"),
        Edit(_LAUNCHER, '        _prctl("die with the supervisor", _PDEATHSIG, signal.SIGKILL)\n', ""),
    ),
    _hole(
        "Landlock: limits and priorities of others",
        "a command in a project slows its person's programs down",
        Commands("landlock", ("ptrace and memory of others",), 26),
        Edit(
            "workspace/sandbox/seccomp.py",
            "            program += _on(machine.calls[name], _require(index, (0,)) + _PASS)\n",
            "            continue\n",
        ),
    ),
    _hole(
        "Landlock: attributes by path",
        "a command changes attributes of files outside",
        Commands("landlock", ("writes outside",), 80),
        Edit(
            "workspace/sandbox/seccomp.py",
            "(*_WITHOUT_NAMESPACES, *_BY_PATH)",
            "_WITHOUT_NAMESPACES",
        ),
    ),
    _hole(
        "links followed by the gateway",
        "a file tool reads what a link of the chat's folder points to",
        Commands("bubblewrap", ("links in the way of the gateway",)),
        Edit("workspace/openat2.py", "_NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)", "0)"),
        Edit(
            "workspace/folder.py",
            "_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
            "_READ = os.O_RDONLY | os.O_NONBLOCK",
        ),
    ),
    Mutant(
        "a folder in place of the shell's state",
        "each command keeps a descriptor of the gateway's open, until there are none",
        (
            Edit(
                "workspace/shell.py",
                "        if not stat.S_ISREG(os.fstat(fd).st_mode):\n            return None\n",
                "",
            ),
        ),
        Tests(_STATES),
    ),
    Mutant(
        "closed folders stay",
        "an ended session leaves files that no one removes",
        (
            Edit(
                "workspace/places.py",
                "                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)\n",
                "                os.rmdir(entry.name, dir_fd=folder)\n",
            ),
        ),
        Tests(_TREES),
    ),
)
