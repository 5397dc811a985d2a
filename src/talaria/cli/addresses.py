"""Addresses of model servers as people type them, and names for those that have none."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from talaria.core.schema import web_address
from talaria.models.settings import PRESETS


def is_like_address(text: str) -> bool:
    return text == "localhost" or bool(re.search(r"[:/.]", text))


def read_address(text: str) -> str:
    """With a scheme, if there is none: http for this machine and private networks, else https. Empty for
    what is no address."""
    address = text.strip().rstrip("/")
    try:
        if "://" not in address:
            near = _is_near(urlsplit(f"//{address}").hostname or "")
            address = f"{'http' if near else 'https'}://{address}"
        return "" if web_address(address) else address
    except ValueError:
        return ""


def name_for(address: str) -> str:
    """`local-9999`, `192-168-0-7-8000`, `example`; never that of a known provider, which is elsewhere."""
    parts = urlsplit(address)
    host, port = parts.hostname or "", f"-{parts.port}" if parts.port else ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return f"local{port or '-server'}"
    whole = re.sub(r"[^a-z0-9]+", "-", host).strip("-") + port
    short = whole if _is_near(host) or host[-1:].isdigit() else host.split(".")[-2]
    return whole if short in PRESETS else short


def _is_near(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan"))
