"""Planted faults around the files and processes of chats in a cluster."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_HOMES = "store/sql/homes.py"
_SUITE = "tests/store/test_contract.py::TestClusterContract::test"
_LEASH = "tests/workspace/sandbox/test_leash.py::test"

PLACE_FAULTS = (
    Mutant(
        "loss not kept",
        "a chat is taken over from a place that is gone, and the model never hears of it",
        (
            Edit(
                "store/sql/cluster.py",
                "loss = None if first.place == place else homes.describe_loss(first.place, tx.now)",
                "loss = None",
            ),
        ),
        Tests(f"{_SUITE}_the_loss_of_a_place_is_kept_until_it_is_told"),
    ),
    Mutant(
        "loss told again and again",
        "every turn of a chat that was taken over is told what was lost",
        (Edit("store/sql/cluster.py", "WHERE chat_key = ? AND lost = ?", "WHERE chat_key = ? AND lost > ?"),),
        Tests(f"{_SUITE}_the_loss_of_a_place_is_kept_until_it_is_told"),
    ),
    Mutant(
        "file that ties nothing",
        "the turn of a message with a file runs where the file is not",
        (Edit(_HOMES, "return is_tied and any(", "return not is_tied and any("),),
        Tests(f"{_SUITE}_a_message_with_a_file_ties_its_chat_to_the_place_and_with_shared_files_it_does_not"),
    ),
    Mutant(
        "job without its files",
        "a job runs at a gateway that does not have the files of the chat that asked for it",
        (Edit(_HOMES, "files = home if asking == chat_key else", "files = home if chat_key else"),),
        Tests(f"{_SUITE}_a_run_of_a_job_is_for_the_place_of_the_chat_that_asked"),
    ),
    Mutant(
        "process that outlives its leash",
        "a background process runs on although another gateway has taken its chat over",
        (
            Edit(
                "workspace/shim.py",
                "if self._leash and left_on_leash(self._leash, PROCESSES_AT) <= 0:",
                "if self._leash and left_on_leash(self._leash, PROCESSES_AT) <= -600:",
            ),
        ),
        Tests(f"{_LEASH}_a_process_ends_with_the_leash_while_no_gateway_looks"),
    ),
    Mutant(
        "command that outlives its leash",
        "a command of a gateway that is cut off runs on beside the turn of another gateway",
        (Edit("workspace/guardian.py", "if seconds <= 0:", "if seconds <= -600:"),),
        Tests(f"{_LEASH}_a_command_ends_with_the_leash_and_a_renewal_lets_it_go_on"),
    ),
    Mutant(
        "folder that is not mounted",
        "a gateway keeps files in the empty folder below a mount that is missing",
        (
            Edit(
                "config/shared_files.py",
                '    if known.startswith(f"{shared} "):\n        raise',
                '    if known == f"{shared} ":\n        raise',
            ),
        ),
        Tests("tests/config/test_shared_files.py::test_a_folder_that_is_not_mounted_is_refused"),
    ),
)
