"""`[cluster]`: several gateways on one PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated

import msgspec

from talaria.core.setting_marks import Check, Mark, Unset, variable_name, web_address


def _member_address(url: str) -> str | None:
    return None if not url else web_address(url) and 'an address such as "http://10.0.0.5:8765"'


_SHORTEST_LEASE = timedelta(seconds=1)
_LONGEST_LEASE = timedelta(minutes=10)


class ClusterSettings(msgspec.Struct, frozen=True):
    """Other gateways reach this one at `advertise_url`, with the token in the variable `token_env`. Others
    go on with the chats of a gateway that was not heard of for the time of `lease`. The chats of a place
    without a gateway are taken over after `takeover_after`; commands and files there are lost."""

    advertise_url: Annotated[str, Check(_member_address), Unset("http.host and http.port")] = ""
    token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = "TALARIA_CLUSTER_TOKEN"  # noqa: S105
    lease: timedelta = timedelta(seconds=10)
    takeover_after: timedelta = timedelta(minutes=10)

    def problems(self) -> Iterator[tuple[str, str]]:
        if not _SHORTEST_LEASE <= self.lease <= _LONGEST_LEASE:
            yield "lease", "is out of range: expected a duration from 1s to 10m."
        if self.takeover_after < self.lease:
            yield "takeover_after", "is shorter than cluster.lease: expected a longer duration."

    def find_token(self, environ: Mapping[str, str]) -> str:
        """Return the token with which gateways prove themselves to each other; empty if there is none."""
        return environ.get(self.token_env, "").strip()
