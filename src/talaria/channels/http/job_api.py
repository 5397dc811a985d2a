"""`/api/jobs`: making, listing, changing and running jobs, and their runs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from talaria.channels.http.callers import RouteAccess
from talaria.channels.http.description import Call, Field, Link
from talaria.channels.http.request import Request
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.routing import ApiRoute
from talaria.channels.http.session_api import read_page
from talaria.core.errors import BadRequest, NotFound
from talaria.core.ids import ChatKey, is_session_name
from talaria.core.jobs import ASKING_CHAT, NOWHERE, Job
from talaria.gateway import Gateway
from talaria.jobs.fields import JobFields
from talaria.jobs.views import JobList, JobView, ProposalView, RunList, RunView

if TYPE_CHECKING:
    from talaria.jobs.desk import JobAsker, JobDesk
    from talaria.jobs.requests import JobRequest

DEFAULT_CHAT: Final = "terminal"  # the chat of jobs that are made without a chat
_MAX_BODY: Final = 128 << 10
_ASKED_WITHIN: Final = 3600.0  # seconds in which what was shown can be confirmed


class _ShownJob(JobFields, frozen=True):
    """Words such as "in ten minutes" count from `asked_at`."""

    asked_at: float | UnsetType = UNSET


class JobBody(_ShownJob, frozen=True):
    """A new job. With `confirm` false nothing is saved, and the answer is what would be. `chat` is the
    caller's chat that gets the results, unless `to` names another."""

    confirm: bool = True
    chat: str = DEFAULT_CHAT


class JobChange(_ShownJob, frozen=True):
    """A change of a job. `state` pauses it or lets it run again."""

    state: Literal["active", "paused"] | UnsetType = UNSET


class JobApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._made: JobDesk | None = None

    @property
    def _desk(self) -> JobDesk:
        if self._made is None:
            self._made = self._gateway.job_desk()
        return self._made

    async def list(self, request: Request) -> Response:
        """The jobs that the caller may see, oldest first; or those that are done, the newest first."""
        is_unfinished = "unfinished" in request.query()
        asker, wanted = self._asker(request), read_page(request)
        if "finished" in request.query():
            found = await self._desk.finished(asker, wanted.limit)
            return json_response(JobList(tuple(map(self._view, found)), None))
        page = await self._desk.listing(asker, wanted, is_unfinished=is_unfinished)
        return json_response(JobList(tuple(map(self._view, page.items)), page.next))

    async def add(self, request: Request) -> Response:
        """Check a job and save it, unless the caller only wants to see what would be saved."""
        body = await request.json(JobBody, _MAX_BODY)
        asker, asked_at = self._asker(request, body.chat), self._asked_at(body)
        proposal = self._desk.propose(asker, await self._request(body, asker), asked_at)
        if not body.confirm:
            return json_response(ProposalView.of(proposal, asked_at))
        job = await self._desk.add(asker, proposal)
        request.about = job.id
        return json_response(self._view(job), 201)

    async def show(self, request: Request) -> Response:
        return json_response(self._view(await self._find(request)))

    async def edit(self, request: Request) -> Response:
        """Change a job, pause it, or let it run again."""
        body, job = await request.json(JobChange, _MAX_BODY), await self._find(request)
        asker, asked_at = self._asker(request), self._asked_at(body)
        wanted = await self._request(body, asker)
        if wanted.is_any:
            proposal = self._desk.propose_edit(asker, job, wanted, asked_at)
            job = await self._desk.edit(asker, job, proposal)
        if body.state is not UNSET:
            change = self._desk.pause if body.state == "paused" else self._desk.resume
            job = await change(asker, job.id)
        return json_response(self._view(job))

    async def remove(self, request: Request) -> Response:
        job = await self._find(request)
        return json_response(self._view(await self._desk.remove(self._asker(request), job.id)))

    async def run(self, request: Request) -> Response:
        """Run a job now, beside its schedule. The answer is the run."""
        job = await self._find(request)
        _, slot = await self._desk.run(self._asker(request), job.id)
        return json_response(RunView.of(slot), 202)

    async def runs(self, request: Request) -> Response:
        """The runs of a job, the latest first."""
        job = await self._find(request)
        page = await self._desk.history(self._asker(request), job.id, read_page(request))
        return json_response(RunList(tuple(map(RunView.of, page.items)), page.next))

    async def _find(self, request: Request) -> Job:
        request.about = name = request.params["id"]
        return await self._desk.find(self._asker(request), name)

    def _asker(self, request: Request, chat: str = DEFAULT_CHAT) -> JobAsker:
        from talaria.jobs.desk import JobAsker  # noqa: PLC0415 - with the first job

        if not is_session_name(chat):
            raise BadRequest(f"{chat!r} is no name of a chat.", "Give a name such as terminal.")
        caller = request.caller
        chat_key = caller.chat_key(self._gateway.settings.agent.name, chat)
        return JobAsker(caller.sender, chat_key, in_chat=False)

    def _asked_at(self, body: _ShownJob) -> float:
        """Return the time from which words count: when they were shown, or now."""
        now = self._gateway.clock.now()
        if body.asked_at is UNSET:
            return now
        if not now - _ASKED_WITHIN <= body.asked_at <= now + 1:
            raise BadRequest("What was shown is out of date.", "Look at the next times again, then confirm.")
        return body.asked_at

    async def _request(self, body: JobFields, asker: JobAsker) -> JobRequest:
        from talaria.jobs.requests import JobRequest  # noqa: PLC0415

        fields = {name: getattr(body, name) for name in JobFields.__struct_fields__}
        if body.to is not UNSET and body.to not in (ASKING_CHAT, NOWHERE):
            fields["to"] = await self._find_chat(body.to, asker)
        return JobRequest(**fields)

    async def _find_chat(self, name: str, asker: JobAsker) -> ChatKey:
        """Return the chat. Raises the same `NotFound` if there is none and if the asker may not see it."""
        with suppress(NotFound):
            if self._desk.reaches(asker, key := await self._gateway.sender.find_chat(name)):
                return key
        raise NotFound(f"There is no chat {name} among your chats.", "Results go to your own chats only.")

    def _view(self, job: Job) -> JobView:
        return JobView.of(job, self._desk)


_UNKNOWN = ("not_found",)
_REFUSED = ("not_found", "unclear_schedule", "limit", "no_model")


def job_routes(jobs: JobApi) -> dict[str, dict[str, ApiRoute]]:
    page = (
        Field("limit", "How many of them, 50 if it is not given.", Annotated[int, Meta(ge=1, le=500)]),
        Field("after", "The `next` of the page before.", Annotated[str, Meta(max_length=200)]),
    )
    unfinished = Field("unfinished", "If it is given: only jobs that are not done.", str)
    text = "The jobs that the caller may see, oldest first."
    finished = Field("finished", "If it is given: only jobs that are done, the last to finish first.", str)
    listing = Call(text, JobList, fields=(*page, unfinished, finished))
    add = Call(
        "A new job. One of `when` (plain words), `every`, `cron` and `at` says when, or the text does.",
        JobView,
        201,
        also={200: ProposalView},
        body=JobBody,
        errors=_REFUSED,
        example='{"text": "what is new?", "when": "every weekday at 9"}',
        links=(Link(201, "$response.body#/id", "id", ("GET /api/jobs/{id}", "DELETE /api/jobs/{id}")),),
    )
    show = Call("A job, by its id or its name.", JobView, errors=_UNKNOWN)
    edit = Call(
        "Change a job, pause it, or let it run again.",
        JobView,
        body=JobChange,
        errors=(*_REFUSED, "head_moved"),
        example='{"state": "paused"}',
    )
    remove = Call("Remove a job with its history. A run that goes on ends.", JobView, errors=_UNKNOWN)
    run = Call("Run a job now, beside its schedule.", RunView, 202, errors=_UNKNOWN)
    runs = Call("The runs of a job, the latest first.", RunList, fields=page, errors=_UNKNOWN)
    everyone, chat = RouteAccess.ALL, RouteAccess.CHAT
    return {
        "/api/jobs": {
            "GET": ApiRoute(jobs.list, everyone, listing),
            "POST": ApiRoute(jobs.add, chat, add, "job.add"),
        },
        "/api/jobs/{id}": {
            "GET": ApiRoute(jobs.show, everyone, show),
            "PATCH": ApiRoute(jobs.edit, chat, edit, "job.edit"),
            "DELETE": ApiRoute(jobs.remove, chat, remove, "job.remove"),
        },
        "/api/jobs/{id}/run": {"POST": ApiRoute(jobs.run, chat, run, "job.run")},
        "/api/jobs/{id}/runs": {"GET": ApiRoute(jobs.runs, everyone, runs)},
    }
