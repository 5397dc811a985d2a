"""Planted faults of what members of a cluster pass on to each other."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_FOLLOWED = "turns/followed.py"
_FOLLOWING = "cluster/following.py"
_TESTS = "tests/cluster/test_following.py::test"
_PAIR = "tests/cluster/test_turns_elsewhere.py::test"

FOLLOWING_FAULTS = (
    Mutant(
        "two halves of an answer",
        "after another gateway took a turn over, its text is put behind the text of before",
        (
            Edit(
                _FOLLOWED,
                "            live.is_resumed = True\n            live.emit(Reset())\n",
                "            pass\n",
            ),
        ),
        Tests(f"{_TESTS}_after_another_process_took_over_the_text_begins_anew"),
    ),
    Mutant(
        "a new beginning for nothing",
        "a connection that broke makes the text begin anew",
        (Edit(_FOLLOWED, "        if stream != self.stream:\n", "        if stream:\n"),),
        Tests(f"{_TESTS}_a_broken_connection_goes_on_where_it_was"),
    ),
    Mutant(
        "silence is waited for",
        "a gateway that was stopped holds up those who follow its turns",
        (Edit(_FOLLOWING, "sock_read=timing.silence_seconds", "sock_read=None"),),
        Tests(f"{_TESTS}_a_member_that_is_silent_is_left"),
    ),
    Mutant(
        "numbers of another gateway",
        "a client that goes on at another gateway misses text, because that one counts differently",
        (
            Edit(
                "channels/http/turn_api.py",
                "if base and after and after // _LAST_EVENT != base // _LAST_EVENT:",
                "if not base:",
            ),
        ),
        Tests(f"{_PAIR}_a_client_goes_on_at_another_gateway_and_has_each_text_once"),
    ),
    Mutant(
        "an answer said twice",
        "a completion whose turn is begun anew repeats its text",
        (Edit("channels/http/call_answers.py", "if isinstance(event, Reset):\n", "if event is None:\n"),),
        Tests(
            "tests/channels/http/test_openai_streaming.py::"
            "test_a_turn_that_is_begun_anew_in_mid_stream_says_nothing_twice"
        ),
    ),
    Mutant(
        "any token opens the cluster",
        "whoever has some token may call as another gateway",
        (
            Edit(
                "cluster/signing.py",
                "        if not hmac.compare_digest(self._key.mac_of_call(call), bytes.fromhex(found[4])):\n",
                "        if not found[4]:\n",
            ),
        ),
        Tests(f"{_TESTS}_only_the_cluster_token_opens_the_cluster"),
    ),
    Mutant(
        "calls may be sent again",
        "whoever has seen a call can repeat it",
        (Edit("cluster/signing.py", "        if call.nonce in self._nonces:", "        if False:"),),
        Tests(f"{_TESTS}_a_call_that_is_sent_again_is_refused"),
    ),
    Mutant(
        "answers of strangers",
        "an address in the members table answers as a gateway",
        (Edit(_FOLLOWING, "                if not answer.is_signed:", "                if False:"),),
        Tests(f"{_TESTS}_an_answer_is_the_one_that_the_member_signed"),
    ),
    Mutant(
        "token for strangers",
        "the cluster token follows a redirect",
        (Edit(_FOLLOWING, "allow_redirects=False", "allow_redirects=True"),),
        Tests(f"{_TESTS}_the_token_follows_no_redirect_and_is_in_no_log"),
    ),
    Mutant(
        "files where the message came",
        "a file is put at the gateway that got the message, and not where the chat is",
        (
            Edit(
                "workspace/member_uploads.py",
                "        return None if member is None or member.owner == self._here.owner else member\n",
                "        return None\n",
            ),
        ),
        Tests(f"{_PAIR}_files_are_where_the_chat_is_whichever_gateway_gets_or_gives_them"),
    ),
    Mutant(
        "an id that leads elsewhere",
        "a message names a file of another chat as its upload, and another gateway gives it",
        (
            Edit(
                "workspace/member_uploads.py",
                "            if not is_upload_id(upload_id):",
                "            if not upload_id:",
            ),
        ),
        Tests(f"{_PAIR}_files_are_where_the_chat_is_whichever_gateway_gets_or_gives_them"),
    ),
)
