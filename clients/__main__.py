"""`./dev clients`: run real clients of `/v1` against a gateway and print what each of them can do."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path

from clients import installation
from clients.record import record
from clients.servers import run_servers
from clients.table import CLIENTS, FEATURES, Report, check, markdown
from talaria.core.program import this_version

DOCS = Path(__file__).parent.parent / "docs" / "clients.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only clients whose name contains it")
    parser.add_argument("--install", action="store_true", help="install the versions of pins.toml")
    parser.add_argument("--docs", action="store_true", help="write a good table into docs/clients.md")
    parser.add_argument("--record", action="store_true", help="record what clients send, for tests")
    given = parser.parse_args()
    if given.record:
        with run_servers() as servers:
            record(servers)
        return 0
    if given.install:
        return installation.install(given.names)
    wanted = [c for c in CLIENTS if not given.names or any(name in c.name for name in given.names)]
    commands = {client: client.command() for client in wanted}
    for client, command in commands.items():
        if command is None:
            why = installation.missing(client.environment)
            print(f"{client.name}: {why}: ./dev clients --install {client.environment}", file=sys.stderr)
    reports = []
    with run_servers() as servers:
        for client, command in commands.items():
            if command is not None:
                reports.append(check(client, command, servers))
                _show(reports[-1])
    good = sum(report.is_good for report in reports)
    print(f"{good} of {len(wanted)} clients are good")
    if good < len(wanted):
        return 1
    if given.docs and not given.names:
        _write(reports)
    return 0


def _show(report: Report) -> None:
    cells = " ".join(f"{feature} {report.cells[feature]}" for feature in FEATURES)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    print(f"{report.client.name} ({versions})\n  {cells}", flush=True)
    for feature, note in report.notes.items():
        if report.cells[feature] == "✗":
            print(f"  ✗ {feature}: {note[:500]}", flush=True)


def _write(reports: list[Report]) -> None:
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=DOCS.parent, capture_output=True, text=True, check=False).stdout.strip()
    version = this_version().partition(".dev")[0]
    made_by = f"Talaria {version} at commit {commit} and Python {platform.python_version()}"
    before, _, rest = DOCS.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCS.write_text(before + BEGIN + "\n" + markdown(reports, made_by) + "\n" + END + after)


if __name__ == "__main__":
    sys.exit(main())
