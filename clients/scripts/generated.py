"""The client that openapi-python-client makes of /openapi.json, in the folder of the last argument."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

URL, TOKEN, FOLDER = sys.argv[1:]
sys.path.insert(0, str(Path(FOLDER).parent))

from generated import AuthenticatedClient, models
from generated.api.approvals import get_api_approvals, post_api_approvals_id
from generated.api.jobs import get_api_jobs, post_api_jobs
from generated.api.search import get_api_search
from generated.api.sessions import (
    get_api_sessions_x,
    get_api_sessions_x_entries,
    post_api_sessions_x_messages,
)
from generated.api.turns import get_api_turns_id

client = AuthenticatedClient(base_url=URL, token=TOKEN, raise_on_unexpected_status=True)


def say(text: str, **more: Any) -> Any:
    return post_api_sessions_x_messages.sync(
        "made", client=client, body=models.MessageBody(text=text), **more
    )


turn = say("hello", wait=30.0)
assert isinstance(turn, models.TurnView), turn
assert turn.reply == "You said: hello"
session = get_api_sessions_x.sync("made", client=client)
assert session.id, session
assert len(get_api_sessions_x_entries.sync("made", client=client).entries) >= 3
assert get_api_turns_id.sync(turn.id, client=client).reply == turn.reply
assert get_api_search.sync(client=client, q="hello").items
body = models.JobBody(text="what is new?", every="1h", confirm=True)
job = post_api_jobs.sync(client=client, body=body)
assert isinstance(job, models.JobView), job
assert job.id in {each.id for each in get_api_jobs.sync(client=client).items}
waiting = say('[[call ask_user {"question": "Which colour?"}]]')
assert isinstance(waiting, models.AcceptedTurn), waiting
while not (asked := get_api_approvals.sync(client=client).items):
    pass
post_api_approvals_id.sync(asked[0].id, client=client, body=models.DecisionBody(answer="blue"))
while (turn := get_api_turns_id.sync(waiting.turn_id, client=client)).state != "done":
    pass
assert "blue" in turn.reply
missing = get_api_turns_id.sync("turn_00000000000000000000000000", client=client)
assert isinstance(missing, models.ErrorAnswer), missing
print("good")
