"""`talaria service`: lets the system start the gateway: a systemd user unit, or a launchd agent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from talaria.cli.lazy import PlainGroup
from talaria.cli.options import Invocation, common, spoken

if TYPE_CHECKING:
    from talaria.cli.service_file import Service


@click.group(
    "service",
    cls=PlainGroup,
    no_args_is_help=True,
    epilog="\b\nExamples:\n  talaria service install\n  talaria service status\n  talaria logs -f",
)
@common
def command() -> None:
    """Let the system start the gateway and keep it running."""


@command.command(
    "install", epilog="\b\nExamples:\n  talaria service install\n  talaria service install --no-start"
)
@common
@click.option(
    "--no-start", is_flag=True, help="Write the file, and print the commands instead of running them."
)
@click.option("--env", "variables", metavar="NAME", multiple=True, help="Give the gateway this variable too.")
@click.pass_obj
def install(invocation: Invocation, no_start: bool, variables: tuple[str, ...]) -> int:
    """Write a service for this home, and start it.

    Keys that the configuration names by their variables go to service.env in the home, readable for you only:
    a service does not see what your shell exports.
    """
    from talaria.cli.service_file import write_environment

    service = _service(invocation)
    if not no_start and service.is_usable and not service.file.exists():
        _refuse_beside_another(invocation)
    names = write_environment(invocation.home(), variables, os.environ)
    service.file.parent.mkdir(parents=True, exist_ok=True)
    service.file.write_text(service.text, encoding="utf-8")
    click.echo(f"Written: {service.file}")
    if names:
        click.echo(f"Written: {invocation.home().path / 'service.env'} (mode 0600), with {', '.join(names)}")
    if no_start or not service.is_usable:
        if not service.is_usable:
            click.echo(spoken(f"{service.manager} does not run here, so the service is not started."))
        click.echo("To start it:")
        for line in service.start:
            click.echo(f"  {' '.join(line)}")
        return 0
    for line in service.start:
        if not _run(line):
            return 1
    click.echo(spoken("It runs, and starts with your login. `talaria logs -f` shows what it says."))
    for note in service.notes:
        click.echo(note)
    return 0


@command.command("status", epilog="\b\nExample:\n  talaria service status")
@common
@click.pass_obj
def status(invocation: Invocation) -> int:
    """Say whether the service is installed, and whether a gateway runs on this home. Exits with 1 if not."""
    from talaria.cli.connect import is_locked

    home, service = invocation.home(), _service(invocation)
    if not service.file.exists():
        click.echo(f"Not installed: {service.file} is not there.")
    elif service.file.read_text(encoding="utf-8") != service.text:
        click.echo(
            spoken(f"{service.file} is of another version or place; `talaria service install` renews it.")
        )
    else:
        click.echo(f"Installed: {service.file}")
    if service.file.exists() and service.is_usable:
        _run(service.status, quiet_failure=True)
    info = home.read_gateway() if is_locked(home) else None
    click.echo(
        f"A gateway runs at {info.url} (pid {info.pid})." if info else f"No gateway runs on {home.path}."
    )
    return 0 if info and service.file.exists() else 1


@command.command("remove", epilog="\b\nExample:\n  talaria service remove")
@common
@click.pass_obj
def remove(invocation: Invocation) -> None:
    """Stop the service and remove its file. The home stays as it is."""
    service = _service(invocation)
    if not service.file.exists():
        click.echo(f"Not installed: {service.file} is not there.")
        return
    if service.is_usable:
        for line in service.stop:
            _run(line, quiet_failure=True)
    service.file.unlink()
    (invocation.home().path / "service.env").unlink(missing_ok=True)
    click.echo(f"Removed: {service.file}")


def _refuse_beside_another(invocation: Invocation) -> None:
    from talaria.cli.connect import is_locked
    from talaria.core.errors import ConfigError

    home = invocation.home()
    info = home.read_gateway()
    if is_locked(home):
        stop = f"kill {info.pid}" if info else "Ctrl-C where it runs"
        raise ConfigError(
            f"A gateway runs on {home.path} already, and two cannot.",
            f"Stop it ({stop}), then run `talaria service install` again.",
        )


def _service(invocation: Invocation) -> Service:
    from talaria.cli.service_file import launchd_agent, systemd_unit
    from talaria.core.errors import ConfigError

    program = Path(sys.executable).with_name("talaria")
    words = [str(program)] if program.exists() else [sys.executable, "-m", "talaria"]
    home = invocation.home().path
    if sys.platform == "darwin":
        return launchd_agent(words, home, Path.home(), is_usable=shutil.which("launchctl") is not None)
    if sys.platform == "linux":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        is_usable = shutil.which("systemctl") is not None and Path("/run/systemd/system").is_dir()
        return systemd_unit(words, home, folder, is_usable=is_usable)
    raise ConfigError("Services are made for Linux and macOS.", "`talaria serve` runs the gateway anywhere.")


def _run(words: tuple[str, ...], *, quiet_failure: bool = False) -> bool:
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    if done.stdout.strip():
        click.echo(done.stdout.rstrip())
    if done.returncode and not quiet_failure:
        click.echo(f"talaria: `{' '.join(words)}` failed: {done.stderr.strip() or done.returncode}", err=True)
    return done.returncode == 0
