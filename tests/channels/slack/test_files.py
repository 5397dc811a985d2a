"""Files both ways: events with files, and the upload in three calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.slack.line import ADA, slack, way_back
from talaria.channels.platform_api import PlatformUnreachable
from talaria.channels.slack.slack_api import SlackApi
from talaria.core.delivery import DeliveryDelayed, OutgoingFile, OutgoingMessage
from talaria.core.messages import Text
from talaria.testing.slack_server import BOT_TOKEN, SlackFault, SlackFaultKind, SlackServer

FILE = OutgoingFile("report.txt", b"all is well")


def texts(parts: object) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))  # type: ignore[attr-defined]


async def test_a_file_of_a_person_is_in_the_chats_folder(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        line.ada.sends("notes.txt", b"buy milk", "please read")
        await line.answers(1)
        read = texts(line.inbounds[0].parts)
    assert "please read" in read
    [stored] = [path for path in tmp_path.rglob("notes.txt") if path.is_file()]
    assert stored.read_bytes() == b"buy milk"


@pytest.mark.parametrize("trouble", ["scope", "elsewhere", "too large"])
async def test_a_file_that_cannot_be_had_is_named_to_the_model(
    tmp_path: Path, server: SlackServer, trouble: str
) -> None:
    async with slack(tmp_path, server) as line:
        if trouble == "scope":  # Slack shows its page to log in, with status 200
            server.platform.scopes = server.platform.scopes.replace("files:read,", "")
        file = server.platform.keep("notes.txt", b"buy milk", ADA)
        if trouble == "elsewhere":
            file |= {"url_private": "http://192.0.2.1/x", "url_private_download": "http://192.0.2.1/x"}
        if trouble == "too large":
            file |= {"size": 1 << 40}
        line.ada.says("please read", subtype="file_share", files=[file])
        await line.answers(1)
        assert "[The file notes.txt is not here:" in texts(line.inbounds[0].parts)
    assert not [path for path in tmp_path.rglob("notes.txt") if path.is_file()]


@pytest.mark.parametrize("url", ["http://files.slack.com/x", "https://files.slack.com.example.org/x"])
async def test_the_token_goes_to_slack_only_and_encrypted(server: SlackServer, url: str) -> None:
    async with SlackApi(server.api_url, BOT_TOKEN) as api:
        with pytest.raises(PlatformUnreachable, match="outside Slack"):
            await api.download(url, 100)


async def test_a_file_is_sent_into_its_thread_with_its_caption(server: SlackServer) -> None:
    async with way_back(server) as outlet:
        dm = server.person(ADA).dm
        root = server.person(ADA).says("send it")
        post = OutgoingMessage(f"{dm.id}:{root['ts']}", "The **report**", "n", file=FILE)
        await outlet.deliver(post)
        [shown] = [each for each in dm.messages.values() if each.by_bot]
    assert (shown.file_name, shown.file, shown.thread_ts) == ("report.txt", b"all is well", root["ts"])
    assert shown.text == "The *report*"
    assert server.platform.pending == {}


@pytest.mark.parametrize("method", ["files.getUploadURLExternal", "files.completeUploadExternal"])
async def test_a_file_that_slack_refuses_for_now_is_not_sent(server: SlackServer, method: str) -> None:
    async with way_back(server) as outlet:
        server.fail(method, SlackFault(SlackFaultKind.RATE_LIMIT, retry_after=7))
        with pytest.raises(DeliveryDelayed) as delay:
            await outlet.deliver(OutgoingMessage("D7ADA:", "", "n", file=FILE))
    assert delay.value.retry_after == 7
    assert server.person(ADA).dm.replies == []


async def test_an_upload_whose_answer_is_lost_is_made_again_unmarked(server: SlackServer) -> None:
    """Until the last call nobody sees the file."""
    async with way_back(server) as outlet:
        server.fail("files.getUploadURLExternal", SlackFault(SlackFaultKind.STATUS))
        with pytest.raises(DeliveryDelayed):
            await outlet.deliver(OutgoingMessage("D7ADA:", "", "n", file=FILE))


async def test_in_place_of_an_empty_file_comes_a_note(server: SlackServer) -> None:
    async with way_back(server) as outlet:
        await outlet.deliver(OutgoingMessage("D7ADA:", "Here:", "n", file=OutgoingFile("x", b"")))
    assert server.person(ADA).dm.replies == ["Here:\n\n[The file x is empty. It is in the chat's folder.]"]


async def test_a_model_cannot_make_slack_fetch_an_address(server: SlackServer) -> None:
    async with way_back(server) as outlet:
        await outlet.deliver(OutgoingMessage("D7ADA:", "https://ex.org/?secret", "n"))
    sent = next(call for call in server.calls if call.method == "chat.postMessage")
    assert (sent.given["unfurl_links"], sent.given["unfurl_media"]) == ("false", "false")
