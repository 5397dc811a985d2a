"""The list of parts: one line for each. Nothing else in the program names a part."""

from __future__ import annotations

from typing import Any

from talaria.channels.http.part import HTTP
from talaria.channels.telegram.part import TELEGRAM
from talaria.gateway import Part

PARTS: tuple[Part[Any], ...] = (TELEGRAM, HTTP)
