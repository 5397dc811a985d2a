"""Planted faults: the edits that describe them, and that each can be planted in the source as it is."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import pytest

from mutants.edits import Edit, NotFound, Tree
from mutants.planting import PlantedFault, plant, planted_faults
from trial.catching import attempt, find_failing, run_planted

SOURCE = """
DUE = f"WHERE owner = ? AND state IN ({STATES})"

class Desk:
    size: int = 3

    def take(self, order, *, now):
        if order.is_late(now) and not order.kept: self.log(order, level=2); return None
        self.store(order)
        self.send(order, {"id": order.id, "at": now}, untrusted=True)
        return self.done

    def log(self, order, level): ...
"""
LATE, STORE, SEND = SOURCE.splitlines()[7:10]
BOTH, SWAPPED = f"{STORE}\n{SEND}", f"{SEND}\n{STORE}"
CALL = 'f({"id": order.id, "at": now})'
TAKE = "desk.py:Desk.take"

# An edit, the text that it changes, and what that becomes.
EDITS = [
    (Edit(TAKE, drop="self.store(order)"), STORE, ""),
    (Edit(TAKE, drop="self.log(...)\nreturn None"), None, None),
    (Edit(TAKE, drop="self.log(..., level=2)\nreturn None"), "self.log(order, level=2); return None", "pass"),
    (Edit(TAKE, drop="if order.is_late(...) and not order.kept: ..."), LATE, ""),
    (Edit(TAKE, drop="untrusted=True"), ", untrusted=True", ""),
    (Edit(TAKE, drop="'id'"), '"id": order.id, ', ""),
    (Edit(TAKE, drop="not order.kept"), " and not order.kept", ""),
    (Edit(TAKE, never="order.is_late(now) and (not order.kept)"), LATE[11:48], "False"),
    (Edit(TAKE, always="order.is_late(...)"), "order.is_late(now)", "True"),
    (Edit(TAKE, find="level=2", become="level=3"), "level=2", "level=3"),
    (Edit(TAKE, find="self.send(order, ..., untrusted=True)", become="f(...)"), SEND[8:], CALL),
    (Edit(TAKE, find="if ...: ...", become="while ...: ..."), "if order", "while order"),
    (Edit(TAKE, find="self.store(order)", become="del order"), "self.store(order)", "del order"),
    (Edit(TAKE, find="return self.done", become="f()\nreturn self.done"), "return self", "f(); return self"),
    (Edit(TAKE, move="self.store(...)", after="self.send(order, ..., untrusted=...)"), BOTH, SWAPPED),
    (Edit("desk.py:DUE", text="owner = ?", become="owner <> ?"), "owner = ?", "owner <> ?"),
    (Edit("desk.py:Desk.size", find="3", become="4"), "3", "4"),
    (Edit("desk.py", drop="order"), None, None),
    (Edit(TAKE, drop="self.store(other)"), None, None),
    (Edit("desk.py:Desk.give", drop="self.store(order)"), None, None),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "old", "new"), EDITS, ids=[str(number) for number in range(len(EDITS))])
def test_an_edit_is_found_by_its_syntax_or_refused(
    edit: Edit, old: str | None, new: str | None, tmp_path: Path
) -> None:
    (tmp_path / "desk.py").write_text(SOURCE)
    tree = Tree(tmp_path)
    if old is None or new is None:
        with pytest.raises(NotFound):
            tree.apply(edit)
        return
    tree.apply(edit)
    (text,) = tree.texts().values()
    assert SOURCE.count(old) == 1
    assert text == f"{ast.unparse(ast.parse(SOURCE.replace(old, new)))}\n"


def test_a_function_that_moved_to_another_file_is_found_if_its_name_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(SOURCE)
    edit = Edit("old.py:Desk.take", drop="self.store(order)")
    tree = Tree(tmp_path)
    tree.apply(edit)
    assert tree.moved == ["old.py:Desk.take is in new.py now"]
    assert [path.name for path in tree.texts()] == ["new.py"]
    (tmp_path / "other.py").write_text(SOURCE)
    with pytest.raises(NotFound, match=r"its name is in new\.py, other\.py"):
        Tree(tmp_path).apply(edit)


def test_an_edit_whose_function_was_renamed_names_the_functions_that_have_its_syntax(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(SOURCE)
    with pytest.raises(NotFound, match=r"It is in: Desk, Desk\.take"):
        Tree(tmp_path).apply(Edit("desk.py:Desk.log", drop="self.store(order)"))


@pytest.mark.parametrize("fault", planted_faults(), ids=lambda fault: fault.name)
def test_every_fault_can_still_be_planted(fault: PlantedFault) -> None:
    assert all(edit.become != edit.find + edit.text for edit in fault.edits if edit.find or edit.text)
    for path, tree in plant(fault).changed().items():
        compile(tree, str(path), "exec")


def test_planted_faults_have_their_own_names_and_tests_that_exist() -> None:
    faults = planted_faults()
    assert len({fault.name for fault in faults}) == len(faults) > 250
    suites = "".join(path.read_text() for path in Path("tests/contracts").glob("*.py"))
    for fault in faults:
        if isinstance(fault.caught_by, str):
            file, *names = fault.caught_by.partition("[")[0].split("::")
            text = Path(file).read_text() + suites
            assert all(re.search(rf"(def|class) {name}\b", text) for name in names), fault.caught_by


def test_a_fault_is_caught_by_pauses() -> None:
    (fault,) = (fault for fault in planted_faults() if fault.name == "unfenced commit")
    caught = asyncio.run(attempt(fault))
    assert caught.is_caught, caught.how


def test_a_fault_is_caught_by_its_test_and_a_resumed_run_does_not_try_it_again(tmp_path: Path) -> None:
    told: list[str] = []
    record = tmp_path / "planted.jsonl"
    assert run_planted(["lanes in another"], told.append, record=record) == 0
    assert run_planted(["lanes in another"], told.append, record=record, is_resumed=True) == 0
    test = "test_queued_turns_keep_their_order_over_a_restart"
    assert told == [
        f"  lanes in another order: caught ({test})",
        "\n1 of 1 faults caught",
        "\n1 of 1 faults caught",
    ]


def test_a_test_that_fails_without_a_fault_is_found_and_catches_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_red.py").write_text("def test_green(): ...\ndef test_red(): assert False\n")
    (found,) = find_failing([str(tmp_path / "test_red.py")])
    assert Path(found).name == "test_red.py::test_red"  # its folder depends on where the clone is
    assert find_failing([]) == []
