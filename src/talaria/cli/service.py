"""`talaria service`: a systemd user unit, or a launchd agent, that starts the gateway."""

from __future__ import annotations

import getpass
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from talaria.cli.options import Invocation, group
from talaria.config.edit import write_secret
from talaria.config.home import DEFAULT_HOME, Home
from talaria.config.load import load, named_variables
from talaria.config.settings import Settings
from talaria.core.errors import ConfigError
from talaria.core.problems import end_command, shell, type_key
from talaria.models.catalog import providers_in_use
from talaria.models.providers import Providers
from talaria.parts import PARTS

ENVIRONMENT = "service.env"
_WAIT_SECONDS = 15
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]*")


@group("service", "talaria service install", "talaria service status", "talaria logs -f")
def command() -> None:
    """Let the system start the gateway and keep it running."""


@command.verb("install", "talaria service install", "talaria service install --no-start")
@click.option(
    "--no-start", is_flag=True, help="Write the file, and print the commands instead of running them."
)
@click.option("--env", "variables", metavar="NAME", multiple=True, help="Give the gateway this variable too.")
def _install(invocation: Invocation, no_start: bool, variables: tuple[str, ...]) -> int:
    """Write a service for this home, and start it.

    Keys that the configuration names by their variables go to service.env in the home, readable for you only:
    a service does not see what your shell exports.
    """
    home, service = invocation.home(), find_service(invocation)
    if not service.is_usable and not no_start:
        raise ConfigError(
            f"Nothing was installed: {service.manager} does not run here, so no service can start.",
            _other_ways(invocation),
        )
    is_started = not no_start
    is_renewed = service.file.exists()
    if is_started and not is_renewed and home.is_locked():
        raise _held(home, invocation)
    names = write_environment(home, variables, os.environ)
    service.file.parent.mkdir(parents=True, exist_ok=True)
    service.file.write_text(service.text, encoding="utf-8")
    click.echo(f"Written: {service.file}")
    if names:
        click.echo(f"Written: {home.path / ENVIRONMENT} (mode 0600), with {', '.join(names)}")
    for text in _missing_keys(home, names, invocation):
        click.echo(text, err=True)
    if not is_started:
        if home.is_locked() and not is_renewed:
            held = _held(home, invocation)
            click.echo(f"{held.user_text}\n  {held.hint}", err=True)
        click.echo(_to_start(service, invocation))
        return 0
    if is_renewed:  # launchd starts no service that it knows already
        for line in service.stop:
            run_command(line, quiet_failure=True)
        if not wait_for(lambda: not home.is_locked()):
            raise _held(home, invocation)
    if not all(map(run_command, service.start)):
        return 1
    if not wait_for(lambda: home.is_locked() and home.read_gateway() is not None):
        click.echo(f"talaria: It was started, but is not ready after {_WAIT_SECONDS} s.", err=True)
        click.echo(f"  To see why: {invocation.command_line('doctor')}", err=True)
        return 1
    click.echo(
        invocation.spoken("It runs, and starts with your login. `talaria logs -f` shows what it says.")
    )
    if service.manager == "systemd" and (note := linger_note(getpass.getuser())):
        click.echo(note)
    return 0


def _to_start(service: Service, invocation: Invocation) -> str:
    if service.is_usable:
        return "\n  ".join(["To start it:", *map(" ".join, service.start)])
    text = f"{service.manager} does not run here, so the file has no effect until it does."
    return f"{text}\n{_other_ways(invocation)}"


def _other_ways(invocation: Invocation) -> str:
    serve = shell(*_words(), "serve", "--home", invocation.home().path)
    at_start = f"@reboot {serve} >/dev/null 2>&1".replace("%", "\\%")  # cron ends a command at a bare %
    return f"""\
Keep the gateway running in another way:
  in a container       use the container's restart policy, with this command: {serve}
  at each boot (cron)  (crontab -l 2>/dev/null; echo {shlex.quote(at_start)}) | crontab -
  at each login        add this line to ~/.profile: {serve} >/dev/null 2>&1 &
  now, in tmux         tmux new-session -d {shlex.quote(serve)}
  now, in background   nohup {serve} >/dev/null 2>&1 &"""


def _held(home: Home, invocation: Invocation) -> ConfigError:
    info = home.read_gateway()
    stop = (end_command(info.pid) if info else "") or "Ctrl-C where it runs"
    return ConfigError(
        f"A gateway runs on {home.path} already, and two cannot.",
        f"Stop it ({stop}), then: {invocation.command_line('service install')}",
    )


def _missing_keys(home: Home, names: Iterable[str], invocation: Invocation) -> Iterator[str]:
    """Yield a text for each key that the configuration needs and that the service will not have."""
    given = dict.fromkeys(names, "given")
    loaded = load(home.path, given, PARTS)
    missing = _missing(loaded.settings, given)
    for issue in loaded.issues:
        for part in PARTS:
            if issue.unset and issue.path[:-1] == part.table:
                missing[part.name] = issue.unset
    for name, variable in missing.items():
        again = f"{type_key(variable)} && {invocation.command_line('service install')}"
        yield f"The service has no key for {name}: {variable} is not set here.\n  To give it one: {again}"


def _missing(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    return Providers(settings.providers, environ).missing_keys(
        providers_in_use(settings.model, settings.aliases)
    )


def linger_note(user: str, loginctl: str = "loginctl") -> str:
    """Return what to do if the services of the user end with the last login; empty if they do not."""
    try:
        done = subprocess.run(  # noqa: S603
            [loginctl, "show-user", user, "--property=Linger", "--value"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return ""
    if done.stdout.strip() == "yes":
        return ""
    return f"To keep it running while you are logged out: loginctl enable-linger {user}"


@command.verb("status", "talaria service status")
def _status(invocation: Invocation) -> int:
    """Say whether the service is installed, and whether a gateway runs on this home. Exits with 1 if not."""
    home, service = invocation.home(), find_service(invocation)
    if not service.file.exists():
        click.echo(f"Not installed: {service.file} is not there.")
    elif service.file.read_text(encoding="utf-8") != service.text:
        click.echo(
            invocation.spoken(
                f"{service.file} is of another version or place; `talaria service install` renews it."
            )
        )
    else:
        click.echo(f"Installed: {service.file}")
    if service.file.exists() and service.is_usable:
        run_command(service.status, quiet_failure=True)
    info = home.read_gateway() if home.is_locked() else None
    click.echo(
        f"A gateway runs at {info.url} (pid {info.pid})." if info else f"No gateway runs on {home.path}."
    )
    return 0 if info and service.file.exists() else 1


@command.verb("remove", "talaria service remove")
def _remove(invocation: Invocation) -> None:
    """Stop the service and remove its file. The home stays as it is."""
    service = find_service(invocation)
    if not service.file.exists():
        click.echo(f"Not installed: {service.file} is not there.")
        return
    if service.is_usable:
        for line in service.stop:
            run_command(line, quiet_failure=True)
    service.file.unlink()
    (invocation.home().path / ENVIRONMENT).unlink(missing_ok=True)
    click.echo(f"Removed: {service.file}")


def find_service(invocation: Invocation) -> Service:
    words, home = _words(), invocation.home().path
    if sys.platform == "darwin":
        return launchd_agent(words, home, Path.home(), is_usable=shutil.which("launchctl") is not None)
    if sys.platform == "linux":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        is_usable = shutil.which("systemctl") is not None and Path("/run/systemd/system").is_dir()
        return systemd_unit(words, home, folder, is_usable=is_usable)
    raise ConfigError("Services are made for Linux and macOS.", "`talaria serve` runs the gateway anywhere.")


def _words() -> list[str]:
    """Return this program by its whole path."""
    program = Path(sys.executable).with_name("talaria")
    return [str(program)] if program.exists() else [sys.executable, "-m", "talaria"]


def wait_for(condition: Callable[[], bool], seconds: float = _WAIT_SECONDS) -> bool:
    """Wait until the condition holds, and return whether it does in time. A service manager reports a
    program as started before it has read its configuration, and as stopped before it has ended."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def run_command(words: tuple[str, ...], *, quiet_failure: bool = False) -> bool:
    # `su` and `sudo -i` leave it unset, and systemctl does not look for it.
    environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)  # noqa: S603
    if done.stdout.strip():
        click.echo(done.stdout.rstrip())
    if done.returncode and not quiet_failure:
        click.echo(f"talaria: `{' '.join(words)}` failed: {done.stderr.strip() or done.returncode}", err=True)
    return done.returncode == 0


# -- the files of the service


class Service(msgspec.Struct, frozen=True):
    """`start`, `stop` and `status` are commands of the system's `manager`, which may not run here."""

    manager: str
    file: Path
    text: str
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    status: tuple[str, ...]
    is_usable: bool


def systemd_unit(words: Sequence[str], home: Path, config: Path, *, is_usable: bool) -> Service:
    unit = f"{_name(home)}.service"
    order = " ".join(map(_systemd, [*words, "serve", "--home", str(home)]))
    variables = re.sub(r"[\\*?[]", r"\\\g<0>", str(home / ENVIRONMENT))  # systemd takes it for a pattern
    text = f"""\
# Made by `talaria service install`, which writes it anew.
[Unit]
Description=Talaria gateway ({_systemd_text(home)})

[Service]
Type=exec
ExecStart={order}
ExecReload=/bin/kill -HUP $MAINPID
EnvironmentFile=-{_systemd_text(variables)}
Restart=on-failure
RestartSec=2
# Running turns may finish; whatever does not is taken up by the next start.
TimeoutStopSec=60
# Background processes of sessions go on, and the next start finds them again.
KillMode=process
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
    )


def launchd_agent(words: Sequence[str], home: Path, user: Path, *, is_usable: bool) -> Service:
    label = f"org.talaria.{_name(home)}"
    file = user / "Library" / "LaunchAgents" / f"{label}.plist"
    variables = home / ENVIRONMENT
    # launchd reads no file of variables, so a shell does.
    script = '[ ! -f "$0" ] || { set -a; . "$0"; set +a; }; exec "$@"'
    order = ["/bin/sh", "-c", script, str(variables), *words, "serve", "--home", str(home)]
    agent = {
        "Label": label,
        "ProgramArguments": order,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": 60,
    }
    domain = f"gui/{os.getuid()}"
    return Service(
        "launchd",
        file,
        plistlib.dumps(agent, sort_keys=False).decode(),
        (("launchctl", "bootstrap", domain, str(file)),),
        (("launchctl", "bootout", f"{domain}/{label}"),),
        ("launchctl", "print", f"{domain}/{label}"),
        is_usable,
    )


def write_environment(home: Home, wanted: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Write the variables that the configuration names, and those `wanted`, to a file for the service. Return
    their names. A variable that this shell does not have keeps the value of the last time. Raises
    `ConfigError` for a wanted variable that is not set."""
    settings = load(home.path, environ, PARTS).settings
    named = [*named_variables(settings), *_missing(settings, {}).values()]
    for name in wanted:
        if name not in environ:
            raise ConfigError(f"{name} is not set in this shell.", f"Set it first: export {name}=…")
    path = home.path / ENVIRONMENT
    lines = _given_before(path)
    lines = {name: line for name, line in lines.items() if name in named}
    for name in dict.fromkeys([*named, *wanted]):
        if name and environ.get(name):
            lines[name] = f"{name}={_quoted(name, environ[name])}\n"
    home.prepare()
    if lines:
        write_secret(path, "".join(lines.values()))
    return [*lines]


def _given_before(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError:
        return {}
    return {line.partition("=")[0]: line for line in lines if "=" in line}


def _name(home: Path) -> str:
    """Return the name of the service of this home; the default home has the plain name."""
    if home == Path(DEFAULT_HOME).expanduser():
        return "talaria"
    return "talaria-" + re.sub(r"[^A-Za-z0-9]+", "-", str(home)).strip("-")


def _quoted(name: str, value: str) -> str:
    """Quote a value in a way that systemd and a shell both read. Raises `ConfigError`."""
    if "'" in value or not _PLAIN.fullmatch(value):
        raise ConfigError(
            f"{name} has characters that a service cannot be given.", "Put it into config.toml."
        )
    return f"'{value}'"


def _systemd(word: str) -> str:
    r"""A word of a command, where $ and \ mean something too."""
    text = _systemd_text(word).replace("\\", "\\\\").replace("$", "$$")
    return text if re.fullmatch(r"[\w./:=@+,-]+", text) else '"' + text.replace('"', '\\"') + '"'


def _systemd_text(word: str | Path) -> str:
    return str(word).replace("%", "%%")
