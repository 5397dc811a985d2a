"""Planted faults. Each breaks one guarantee in a copy of the source, and a run or a test must catch it.

An edit replaces an exact text. It is an error if the text is not found exactly once: the faults follow the
code.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from random import Random

import msgspec

from chaos.approval_faults import APPROVAL_FAULTS
from chaos.cluster_faults import CLUSTER_FAULTS
from chaos.cluster_mutants import strike
from chaos.context_faults import CONTEXT_FAULTS
from chaos.finding_faults import FINDING_FAULTS
from chaos.following_faults import FOLLOWING_FAULTS
from chaos.gateway_faults import GATEWAY_FAULTS
from chaos.hook_faults import HOOK_FAULTS
from chaos.key_faults import KEY_FAULTS
from chaos.kills import KillRun
from chaos.load_faults import LOAD_FAULTS
from chaos.mcp_faults import MCP_FAULTS
from chaos.memory_faults import MEMORY_FAULTS
from chaos.network_faults import NETWORK_FAULTS
from chaos.pauses import PauseRun
from chaos.place_faults import PLACE_FAULTS
from chaos.planted import Cluster, Commands, Edit, Kills, Mutant, Pauses, Retries, Tests
from chaos.plugin_faults import PLUGIN_FAULTS
from chaos.postgres_faults import POSTGRES_FAULTS
from chaos.recall_faults import RECALL_FAULTS
from chaos.retries import RetryRun
from chaos.role_faults import ROLE_FAULTS
from chaos.run_faults import RUN_FAULTS
from chaos.sandbox import SandboxRun, Setting
from chaos.sandbox_faults import SANDBOX_FAULTS
from chaos.skill_faults import SKILL_FAULTS
from chaos.slot_faults import SLOT_FAULTS
from chaos.tool_faults import TOOL_FAULTS
from chaos.trust_faults import TRUST_FAULTS
from chaos.turn_faults import TURN_FAULTS
from soak.report import Progress
from talaria.core.failpoints import Failpoint

ROOT = Path(__file__).parent.parent
_COPIED = ("src", "tests", "soak", "bench", "incidents", "chaos")
_KILLS = 8
_SEEDS = (1, 2, 3)
_TESTS_FAILED = 1
_FILES = "tests/turns/test_files_of_turns.py"
_COPIES = "tests/workspace/checkpoints"
_ESCAPES = "tests/workspace/sandbox/test_escapes.py::test_no_escape_works"


class Caught(msgspec.Struct, frozen=True):
    mutant: Mutant
    is_caught: bool
    how: str


_HANDLE = """\
        await self._handler.handle([update for raw in updates if (update := decode(raw)) is not None], bot)
        offset = max(_update_id(raw) for raw in updates) + 1
        if offset > self._offset:
            await self._cursors.set_cursor(_cursor_of(bot), str(offset))
            hit(Failpoint.ACKNOWLEDGED)
            self._offset = offset
"""
_HANDLE_LATE = """\
        offset = max(_update_id(raw) for raw in updates) + 1
        if offset > self._offset:
            await self._cursors.set_cursor(_cursor_of(bot), str(offset))
            hit(Failpoint.ACKNOWLEDGED)
            self._offset = offset
        await self._handler.handle([update for raw in updates if (update := decode(raw)) is not None], bot)
"""
_OFFSET_EARLY = """\
        offset = self._offset = max(_update_id(raw) for raw in updates) + 1
        await self._handler.handle([update for raw in updates if (update := decode(raw)) is not None], bot)
        await self._cursors.set_cursor(_cursor_of(bot), str(offset))
"""
_SUBMIT = """\
        hit(Failpoint.RECEIVED)
        await self._gateway.turns.submit(inbound)
"""
_DEDUPE_BESIDE = """\
        hit(Failpoint.RECEIVED)
        seen = self.__dict__.setdefault("_seen", set())
        if (inbound.chat_key, inbound.key) in seen:
            return
        seen.add((inbound.chat_key, inbound.key))
        await self._gateway.turns.submit(msgspec.structs.replace(inbound, key=None))
"""
_CLAIM = """\
            claimed = await self._store.outbox.claim(row, until)
            if claimed is None:
                return
            hit(Failpoint.CLAIMED)
            mark = await self._attempt(outlet, claimed, was_tried=row.state is OutboxState.SENDING)
            hit(Failpoint.DELIVERED)
"""
_CLAIM_LATE = """\
            mark = await self._attempt(outlet, row, was_tried=row.state is OutboxState.SENDING)
            hit(Failpoint.DELIVERED)
            claimed = await self._store.outbox.claim(row, until)
            if claimed is None:
                return
            mark = DeliveryResult(
                row.id, claimed.attempts, mark.state, mark.due_at, mark.platform_id, mark.error
            )
"""

_MONEY = "tests/turns/test_money_chaos.py::test_no_way_of_ending_calls_passes_a_cap"

MUTANTS = (
    Mutant(
        "acknowledge before commit",
        "the cursor is stored before the messages that it confirms",
        (Edit("channels/telegram/channel.py", _HANDLE, _HANDLE_LATE),),
        Kills((Failpoint.RECEIVED,)),
    ),
    Mutant(
        "offset advanced early",
        "the next poll confirms what could not be accepted",
        (Edit("channels/telegram/channel.py", _HANDLE, _OFFSET_EARLY),),
        Tests("tests/channels/telegram/test_channel.py::test_what_the_store_did_not_take_comes_again"),
    ),
    Mutant(
        "reply before outbox",
        "the live message is the reply already, before its row is there",
        (Edit("channels/telegram/outlet.py", "if part.strip()) + CURSOR", "if part.strip())"),),
        Kills((Failpoint.SHOWN,)),
    ),
    Mutant(
        "rerun of a started tool",
        "a call whose outcome is unknown is run again",
        (
            Edit(
                "agent/loop.py",
                "if step.state is StepState.STARTED and not (spec and spec.idempotent):",
                "if step.state is StepState.ENDED:",
            ),
        ),
        Kills((Failpoint.RAN,)),
    ),
    Mutant(
        "unfenced commit",
        "a process that lost its lease may still write",
        (Edit("store/sql/orders.py", "    if fence != order.fence or not expires:", "    if fence < 0:"),),
        Pauses(),
    ),
    Mutant(
        "dedupe outside the transaction",
        "known messages are remembered in memory",
        (Edit("channels/telegram/updates.py", _SUBMIT, _DEDUPE_BESIDE),),
        Kills((Failpoint.ACCEPTED,)),
    ),
    Mutant(
        "`sending` marked after the send",
        "a kill in between leaves a row that looks untried",
        (Edit("turns/delivery.py", _CLAIM, _CLAIM_LATE),),
        Kills((Failpoint.DELIVERED,)),
    ),
    Mutant(
        "resend without a mark",
        "a second copy looks like another answer",
        (Edit("turns/delivery.py", "is_repeat=was_tried and not outlet.takes_nonce", "is_repeat=False"),),
        Kills((Failpoint.DELIVERED,)),
    ),
    Mutant(
        "`sending` taken for sent",
        "a reply that was being sent when the process died is never sent again",
        (Edit("store/sql/rows.py", "pending' OR state = 'sending')\"", "pending')\""),),
        Kills((Failpoint.CLAIMED,)),
    ),
    Mutant(
        "steer lost at the finish",
        "a message that came with the last answer ends unread",
        (
            Edit(
                "store/sql/orders.py",
                "            raise rules.steer_waiting(turn_id)\n",
                "            _end_turn(tx, position, end)\n",
            ),
        ),
        Tests("tests/turns/test_busy.py::test_steer_that_comes_with_the_last_answer_becomes_another_step"),
    ),
    Mutant(
        "poison tried for ever",
        "a message that kills the process is never given up",
        (Edit("turns/runner.py", "if began.crashes >= MAX_CRASHES or ", "if "),),
        Tests(
            "tests/turns/test_stopping.py::test_a_turn_that_took_the_process_down_three_times_is_failed_and_told"
        ),
    ),
    Mutant(
        "lanes in another order",
        "waiting turns resume in reverse order after a restart",
        (
            Edit(
                "store/sql/leases.py",
                'WHERE state IN ({UNSETTLED}) ORDER BY position"',
                'WHERE state IN ({UNSETTLED}) ORDER BY position DESC"',
            ),
        ),
        Tests("tests/turns/test_stopping.py::test_queued_turns_keep_their_order_over_a_restart"),
    ),
    Mutant(
        "agent kept while a turn waits",
        "a parked turn keeps its agent busy",
        (
            Edit(
                "turns/runner.py",
                "        async with agents.pool.lease(wanted) as agent:\n",
                "        if agent := await agents.pool.lease(wanted).__aenter__():\n",
            ),
        ),
        Tests("tests/turns/test_parking.py::test_a_parked_turn_waits_in_the_store_and_holds_only_its_lane"),
    ),
    Mutant(
        "drain waits for a person",
        "a shutdown waits for a turn that waits for a decision",
        (
            Edit(
                "turns/lanes.py",
                "            if live.state is LiveState.PARKED:\n                self.live.let_go(live)\n",
                "            live.resume_if_decided()\n",
            ),
        ),
        Tests("tests/turns/test_parking.py::test_a_drain_lets_a_parked_turn_go_at_once"),
    ),
    Mutant(
        "leases renewed on the loop",
        "a turn that holds the event loop lets the leases of all turns expire",
        (
            Edit(
                "turns/lease_watch.py",
                "renewing = partial(keeper.run_beside, store.from_thread, lambda: not watch.is_wedged)",
                "renewing = keeper.run",
            ),
        ),
        Tests("tests/cluster/test_held_loop.py::test_leases_are_renewed_while_the_loop_is_held"),
    ),
    Mutant(
        "all pay for a held loop",
        "turns that ran beside the one that held the event loop are taken for the cause",
        (Edit("store/sql/leases.py", "    tx.execute(FORGIVE_OTHERS, (owner, turn_id))\n", ""),),
        Tests(
            "tests/cluster/test_held_loop.py::test_a_wedged_process_leaves_and_only_the_turn_that_held_it_pays"
        ),
    ),
    Mutant(
        "waiting counted as an attempt",
        "a turn that asks three times is taken for one that kills the process",
        (Edit("store/sql/orders.py", "    if state == TurnState.WAITING.value:\n", "    if not state:\n"),),
        Tests("tests/turns/test_parking.py::test_neither_waiting_nor_restarts_meanwhile_are_attempts"),
    ),
    Mutant(
        "broken connections forgotten",
        "a client that does not number its retries runs the tools again",
        (
            Edit(
                "turns/retries.py",
                "return not self.is_answered and (self.has_left is None or self.has_left())",
                "return False",
            ),
        ),
        Retries(),
    ),
    Mutant(
        "retries known in memory only",
        "a retry after a crash is a second turn beside the resumed one",
        (Edit("turns/turns.py", "        await self.requests.load()\n", ""),),
        Retries(),
    ),
    Mutant(
        "requests compared by their session",
        "another message is taken for a retry of the one before, and lost",
        (
            Edit(
                "channels/http/retries.py",
                "hashlib.sha256(scope + request.body_hash)",
                "hashlib.sha256(scope)",
            ),
        ),
        Tests("tests/channels/http/test_retries.py::test_a_retry_of_another_request_is_a_turn_of_its_own"),
    ),
    Mutant(
        "cancelled calls are free",
        "a cap is passed by cancelling",
        (
            Edit(
                "agent/calling.py",
                "        if cut is not None and (cut.output_bytes or not is_refused):\n",
                "        if cut is not None and isinstance(error, ModelError) and not is_refused:\n",
            ),
        ),
        Tests(_MONEY),
    ),
    Mutant(
        "killed calls are free",
        "a cap is passed by a gateway that crashes",
        (
            Edit(
                "store/sql/spending.py",
                "    _charge(tx, tx.execute(TAKE_OF_OTHERS, (owner,)).fetchall())\n",
                "    tx.execute(TAKE_OF_OTHERS, (owner,)).fetchall()\n",
            ),
        ),
        Tests(
            "tests/turns/test_money.py"
            "::test_a_resumed_turn_tells_what_all_its_attempts_used_and_nothing_twice"
        ),
    ),
    Mutant(
        "one reservation for all attempts",
        "a try that was cut vanishes behind the next one",
        (
            Edit(
                "store/sql/spending.py",
                "amount = reservations.amount + excluded.amount",
                "amount = excluded.amount",
            ),
            Edit(
                "store/sql/spending.py",
                "        whose = (order.turn_id, order.n, order.attempt, ",
                "        whose = (order.turn_id, order.n, 1, ",
            ),
        ),
        Tests("tests/store/test_contract.py::TestSpendContract::test_every_attempt_at_a_step_is_reserved"),
    ),
    Mutant(
        "the cookie alone",
        "a server on another port that got the cookie reads every chat",
        (
            Edit(
                "access/logins.py",
                "compare_digest(_sign(self._page_key, claim).encode(), secret.encode())",
                "compare_digest(claim.encode(), claim.encode())",
            ),
        ),
        Tests(
            "tests/channels/http/test_login.py::test_the_cookie_alone_and_the_pages_secret_alone_open_nothing"
        ),
    ),
    Mutant(
        "every role may do everything",
        "a token that may only chat copies the database",
        (Edit("access/authorizer.py", "        if role not in needed:\n", "        if not needed:\n"),),
        Tests("tests/channels/http/test_roles.py::test_every_route_by_every_credential"),
    ),
    Mutant(
        "other people's chats by their ids",
        "a token that may only chat reads the chats of others",
        (
            Edit(
                "channels/http/callers.py",
                "        return self.role is not Role.CHAT or self.owns(key)\n",
                "        return bool(key)\n",
            ),
        ),
        Tests("tests/channels/http/test_roles.py::test_a_caller_that_chats_sees_its_own_chats_only"),
    ),
    Mutant(
        "a stream that holds nothing back",
        "a secret that a command prints in two pieces is shown",
        (Edit("core/redaction.py", "cut = redactor._unfinished(joined)", "cut = len(joined)"),),
        Tests("tests/tools/test_leaks.py::test_a_secret_in_several_pieces_of_output_is_not_shown"),
    ),
    Mutant(
        "results as the tools gave them",
        "the model and the log get the secrets that a command printed",
        (Edit("tools/execution.py", "return encodable(redact(text))", "return encodable(text)"),),
        Tests("tests/tools/test_leaks.py::test_no_secret_is_left_in_results_their_files_parts_and_errors"),
    ),
    Mutant(
        "long output as the command printed it",
        "the file of a long output has the secrets that were printed",
        (
            Edit(
                "tools/command_output.py",
                "self._take(self._redact.feed(self._plain.feed(piece)))",
                "self._take(self._plain.feed(piece))",
            ),
        ),
        Tests("tests/tools/test_leaks.py::test_no_secret_is_left_in_the_file_of_a_long_output"),
    ),
    Mutant(
        "pages unpacked without a limit",
        "a small page becomes gigabytes",
        (
            Edit("net/fetcher.py", "            if room <= 0:\n                return False\n", ""),
            Edit("net/fetcher.py", "decompress(chunk, min(room, _MAX_STEP))", "decompress(chunk)"),
        ),
        Tests("tests/net/test_fetcher.py::test_a_page_costs_no_more_than_its_limit"),
    ),
    Mutant(
        "messages as people wrote them",
        "a secret that somebody pasted goes to the log and to the model",
        (
            Edit(
                "turns/intake.py",
                "inbound, parts=said[0].parts)\n        extra",
                "inbound)\n        extra",
            ),
        ),
        Tests("tests/turns/test_pasted_secrets.py::test_a_pasted_secret_reaches_neither_log_nor_model"),
    ),
    Mutant(
        "commands with the gateway's variables",
        "a command sees every key that the gateway was started with",
        (Edit("tools/environment.py", "    found = {}\n", "    found = dict(environ)\n"),),
        Tests("tests/tools/test_environment.py::test_commands_get_the_named_variables_and_no_other"),
    ),
    Mutant(
        "no filter of calls in bubblewrap",
        "a command makes namespaces, traces processes and uses io_uring",
        (
            Edit(
                "workspace/sandbox/bubblewrap.py",
                '            arguments += ["--seccomp", str(fds[-1])]\n',
                "            os.close(fds.pop())\n",
            ),
        ),
        Tests(f"{_ESCAPES}[bubblewrap]"),
    ),
    Mutant(
        "the network of the machine in bubblewrap",
        "a command reaches servers on this machine and beyond",
        (Edit("workspace/sandbox/bubblewrap.py", 'arguments += ["--unshare-net"]', "pass"),),
        Tests(f"{_ESCAPES}[bubblewrap]"),
    ),
    Mutant(
        "the machine's /tmp in bubblewrap",
        "commands read and write the files of other chats and programs",
        (
            Edit(
                "workspace/sandbox/bubblewrap.py",
                "((command.tmp, tmp),",
                "((_TMP, tmp),",
            ),
        ),
        Tests(
            "tests/workspace/sandbox/test_mounts.py"
            "::test_the_temporary_folder_is_tmp_if_no_other_folder_is_below_it"
        ),
    ),
    Mutant(
        "sockets under Landlock",
        "a command asks the daemons of this machine, which Landlock does not prevent",
        (Edit("workspace/sandbox/landlock.py", "has_namespaces=False", "has_namespaces=True"),),
        Tests(f"{_ESCAPES}[landlock]"),
    ),
    Mutant(
        "undo over a person's work",
        "a file is put back although it is not what the turn left",
        (
            Edit(
                "workspace/checkpoints/restoring.py",
                "        is_left = is_same(state, change.after) or _is_under_way(state, change)\n",
                "        is_left = True\n",
            ),
        ),
        Tests(f"{_FILES}::test_a_file_that_was_changed_since_stays_and_is_named"),
    ),
    Mutant(
        "undo through a link",
        "a link that was swapped in leads the undo out of the folder",
        (
            Edit(
                "workspace/checkpoints/reading.py",
                "        return open_below(root, path)\n",
                "        return os.open(path, _ROOT, dir_fd=root)\n",
            ),
        ),
        Tests(f"{_COPIES}/test_shadow.py::test_a_parent_that_became_a_link_meanwhile_is_not_followed"),
    ),
    Mutant(
        "half an undo",
        "a kill in the middle of an undo leaves a path that no repetition knows",
        (
            Edit(
                "workspace/checkpoints/restoring.py",
                "    if state is None:\n        return after is not None\n",
                "    if state is None:\n        return False\n",
            ),
        ),
        Tests(
            f"{_COPIES}/test_undo.py::test_a_kill_at_every_point_of_an_undo_leaves_one_that_can_be_repeated"
        ),
    ),
    Mutant(
        "killed call forgotten",
        "what a killed call left is mixed up with what a person did afterwards",
        (Edit("agent/loop.py", "            await tools.record_write()\n", ""),),
        Tests(f"{_FILES}::test_what_a_killed_call_left_is_recorded_when_its_turn_goes_on"),
    ),
    Mutant(
        "repository covered",
        "an undo rewrites the history of a repository",
        (Edit("workspace/checkpoints/reading.py", '    (".git", ".hg",', '    (".hg",'),),
        Tests(f"{_COPIES}/test_shadow.py::test_a_repository_s_history_is_never_touched"),
    ),
    *CONTEXT_FAULTS,
    *FINDING_FAULTS,
    *HOOK_FAULTS,
    *SKILL_FAULTS,
    *PLUGIN_FAULTS,
    *SLOT_FAULTS,
    *POSTGRES_FAULTS,
    *CLUSTER_FAULTS,
    *GATEWAY_FAULTS,
    *ROLE_FAULTS,
    *PLACE_FAULTS,
    *FOLLOWING_FAULTS,
    *LOAD_FAULTS,
    *MCP_FAULTS,
    *RUN_FAULTS,
    *MEMORY_FAULTS,
    *RECALL_FAULTS,
    *TOOL_FAULTS,
    *TRUST_FAULTS,
    *TURN_FAULTS,
    *KEY_FAULTS,
    *NETWORK_FAULTS,
    *SANDBOX_FAULTS,
    *APPROVAL_FAULTS,
)


class EditNotFound(Exception):
    """The text of a planted fault is not in the source exactly once."""


def plant(mutant: Mutant, source: Path) -> None:
    """Plant the fault in a copy of the source. Raises `EditNotFound` and `SyntaxError`."""
    for edit in mutant.edits:
        path = source / "talaria" / edit.path
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise EditNotFound(f"{mutant.name}: {edit.path} has {text.count(edit.old)} times: {edit.old!r}")
        broken = text.replace(edit.old, edit.new)
        compile(broken, str(path), "exec")
        path.write_text(broken)


async def attempt(mutant: Mutant) -> Caught:
    with tempfile.TemporaryDirectory(prefix="talaria-mutant-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            shutil.copytree(ROOT / name, copy / name)  # with the bytecode: only what is edited is compiled
        shutil.copy(ROOT / "pyproject.toml", copy)
        plant(mutant, copy / "src")
        match mutant.caught_by:
            case Kills(points=points):
                return await _killed(mutant, points, copy / "src")
            case Pauses(count=count):
                overlaps, broken, *_ = await PauseRun(
                    count, Progress(is_quiet=True), source=copy / "src"
                ).run()
                found = int(overlaps.value + broken.value)
                return Caught(mutant, found > 0, f"{count} pauses: {found} forbidden commits")
            case Retries(count=count):
                run = RetryRun(count, Progress(is_quiet=True), source=copy / "src")
                results = await run.run()
                how = f"{len(results.repeated)} effects repeated, {results.doubled} turns too many"
                return Caught(mutant, not results.is_good, how)
            case Cluster():
                how = await strike(mutant.caught_by, copy / "src")
                return Caught(mutant, bool(how), f"faults of a cluster: {how or 'nothing'}")
            case Commands():
                return await _commanded(mutant, mutant.caught_by, copy / "src")
            case Tests(node=node):
                return await _tested(mutant, node, copy)


async def _killed(mutant: Mutant, points: Sequence[Failpoint], source: Path) -> Caught:
    def only(random: Random) -> Iterator[Failpoint | None]:
        return cycle(points)

    for seed in _SEEDS:
        run = KillRun(
            _KILLS, Progress(is_quiet=True), workers=1, seed=seed, points=only, source=source, patience=8.0
        )
        results = await run.run()
        if not results.is_good:
            report = results.report
            how = {"lost": len(report.lost), "duplicated": len(report.duplicated)}
            how |= {"effects repeated": len(results.repeated), "out of order": len(report.out_of_order)}
            found = ", ".join(f"{count} {what}" for what, count in how.items() if count)
            return Caught(
                mutant, True, f"{results.total} kills at {', '.join(points)}: {found or 'still owed'}"
            )
    return Caught(mutant, False, f"{_KILLS * len(_SEEDS)} kills found nothing")


async def _commanded(mutant: Mutant, commands: Commands, source: Path) -> Caught:
    source.parent.chmod(0o755)  # an ordinary user runs it too
    setting = Setting(commands.backend, is_root=os.geteuid() == 0)
    run = SandboxRun(
        commands.count,
        Progress(is_quiet=True),
        settings=(setting,),
        families=commands.families,
        source=source,
    )
    figures = await run.run()
    missed = [figure.name for figure in figures if not figure.is_reached]
    how = f"{len(run.outcomes[0].found)} escapes of {run.outcomes[0].ran} hostile commands"
    return Caught(mutant, bool(missed) and bool(run.outcomes[0].found), how)


async def _tested(mutant: Mutant, node: str, copy: Path) -> Caught:
    environ = {**os.environ, "PYTHONPATH": str(copy / "src")}  # also for processes that the test starts
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", "--timeout", "20", node,
        cwd=copy, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    if process.returncode not in (0, _TESTS_FAILED):
        raise RuntimeError(f"{node} did not run:\n{said.decode()[-2000:]}")
    return Caught(mutant, process.returncode == _TESTS_FAILED, node.rpartition("::")[2])


async def try_all(tell: Callable[[str], None], mutants: Sequence[Mutant] = MUTANTS) -> list[Caught]:
    caught = []
    for mutant in mutants:
        caught.append(await attempt(mutant))
        tell(f"  {mutant.name}: {'caught' if caught[-1].is_caught else 'MISSED'} ({caught[-1].how})")
    return caught


def render(caught: Sequence[Caught]) -> str:
    rows = [("fault", "why it matters", "", "how")]
    rows += [
        (one.mutant.name, one.mutant.why, "caught" if one.is_caught else "MISSED", one.how) for one in caught
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join((*map(str.ljust, row[:3], widths), row[3])).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])
