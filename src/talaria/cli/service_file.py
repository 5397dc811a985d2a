"""What the files of a service say. Pure, but for the file of its variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from talaria.config.edit import write_secret
from talaria.config.home import DEFAULT_HOME, Home
from talaria.config.load import load
from talaria.core.errors import ConfigError

ENVIRONMENT = "service.env"
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]*")


class Service(msgspec.Struct, frozen=True):
    """`start`, `stop` and `status` are commands of the system's `manager`, which may not run here."""

    manager: str
    file: Path
    text: str
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    status: tuple[str, ...]
    is_usable: bool
    notes: tuple[str, ...] = ()


def systemd_unit(words: Sequence[str], home: Path, config: Path, *, is_usable: bool) -> Service:
    unit = f"{_name(home)}.service"
    order = " ".join(map(_systemd, [*words, "serve", "--home", str(home)]))
    text = f"""\
# Made by `talaria service install`, which writes it anew.
[Unit]
Description=Talaria gateway ({_systemd_text(home)})
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={order}
ExecReload=/bin/kill -HUP $MAINPID
EnvironmentFile=-{_systemd_text(home / ENVIRONMENT)}
Restart=on-failure
RestartSec=2
# Running turns may finish; whatever does not is taken up by the next start.
TimeoutStopSec=60
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""
    control = ("systemctl", "--user")
    return Service(
        "systemd",
        config / "systemd" / "user" / unit,
        text,
        ((*control, "daemon-reload"), (*control, "enable", unit), (*control, "restart", unit)),
        ((*control, "disable", "--now", unit),),
        (*control, "--no-pager", "--lines=0", "status", unit),
        is_usable,
        ("To keep it running while you are logged out: loginctl enable-linger",),
    )


def launchd_agent(words: Sequence[str], home: Path, user: Path, *, is_usable: bool) -> Service:
    label = f"org.talaria.{_name(home)}"
    file = user / "Library" / "LaunchAgents" / f"{label}.plist"
    variables = home / ENVIRONMENT
    # launchd reads no file of variables, so a shell does.
    script = '[ ! -f "$0" ] || { set -a; . "$0"; set +a; }; exec "$@"'
    order = ["/bin/sh", "-c", script, str(variables), *words, "serve", "--home", str(home)]
    items = "\n".join(f"    <string>{escape(word)}</string>" for word in order)
    text = f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{escape(label)}</string>
  <key>ProgramArguments</key>
  <array>
{items}
  </array>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ExitTimeOut</key>
  <integer>60</integer>
</dict>
</plist>
"""
    domain = f"gui/{os.getuid()}"
    return Service(
        "launchd",
        file,
        text,
        (("launchctl", "bootstrap", domain, str(file)),),
        (("launchctl", "bootout", f"{domain}/{label}"),),
        ("launchctl", "print", f"{domain}/{label}"),
        is_usable,
    )


def write_environment(home: Home, wanted: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """The variables that the configuration names and this shell has, for a service, which has no shell.
    Answers with their names. Raises `ConfigError` for a wanted one that is not set."""
    settings = load(home.path, environ).settings
    named = [provider.api_key_env for provider in settings.providers.values()]
    preset = _preset_variable(settings.model.provider)
    named += [preset, settings.channels.telegram.token_env]
    for name in wanted:
        if name not in environ:
            raise ConfigError(f"{name} is not set in this shell.", f"Set it first: export {name}=…")
    names = [name for name in dict.fromkeys([*named, *wanted]) if name and environ.get(name)]
    home.prepare()
    path = home.path / ENVIRONMENT
    if names:
        write_secret(path, "".join(f"{name}={_quoted(name, environ[name])}\n" for name in names))
    return names


def _preset_variable(provider: str) -> str:
    from talaria.models.presets import PRESETS

    return PRESETS[provider].api_key_env if provider in PRESETS else ""


def _name(home: Path) -> str:
    """One service for each home; the usual one has the plain name."""
    if home == Path(DEFAULT_HOME).expanduser():
        return "talaria"
    return "talaria-" + re.sub(r"[^A-Za-z0-9]+", "-", str(home)).strip("-")


def _quoted(name: str, value: str) -> str:
    """Read by systemd and by a shell alike."""
    if "'" in value or not _PLAIN.fullmatch(value):
        raise ConfigError(
            f"{name} has characters that a service cannot be given.", "Put it into config.toml."
        )
    return f"'{value}'"


def _systemd(word: str) -> str:
    text = _systemd_text(word)
    return text if re.fullmatch(r"[\w./:=@+,-]+", text) else '"' + text.replace('"', '\\"') + '"'


def _systemd_text(word: str | Path) -> str:
    r"""In units, % and $ and \ mean something."""
    return str(word).replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
