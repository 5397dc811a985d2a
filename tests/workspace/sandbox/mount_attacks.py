"""Generated layouts of folders, attacked by real commands in bubblewrap: the evidence for G29.

    python mount_attacks.py SEED COUNT

Each layout has a chat folder, a home, a temporary folder and more readable and writable folders, at random
places that often lie in each other. A first command replaces what it can by links and plants programs. A
second command starts over the result, and what it and the host see is compared with the layout. Prints the
number of attacked and refused layouts and the escapes as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.command import ProcessLimits, SandboxCommand, SandboxError, hand_over, shell
from talaria.workspace.sandbox.process import run

BASES = ("/tmp", "/tmp", "/var/tmp", "/dev/shm")  # /tmp is the dangerous one
NAMES = "abcdefghijkl"
PLANTED = ("setpriv", "setsid", "sh", "dash", "bash", "env", "cat", "id")
LIMITS = ProcessLimits(seconds=100)
SANDBOX = BubblewrapSandbox()

# Everything is attempted; most of it must fail. A mount cannot be renamed, but a folder above one can. So the
# attack moves the folder at the top away, creates the other mount points again and plants the link.
ATTACK = """\
top=$1 replaced=$2 target=$3 others=$4; shift 4
mv "$top" "$top.moved"; mv "$replaced" "$replaced.moved" || rmdir "$replaced" || rm -rf "$replaced"
for other in $others; do mkdir -p "$other"; done
mkdir -p "${replaced%/*}"
rmdir "$replaced"; ln -sfn "$target" "$replaced"
echo 0 >/proc/self/oom_score_adj
for folder in "$@"; do
    cp /usr/bin/dash /usr/bin/id "$folder/"; cp /usr/bin/dash "$folder/sh"
    for name in NAMES; do
        [ "$name" = id ] || [ "$name" = dash ] || [ "$name" = sh ] ||
            printf '#!/bin/sh\\necho PLANTED; id -u\\n' >"$folder/$name"
        chmod 755 "$folder/$name"
    done
done 2>/dev/null
true
""".replace("NAMES", " ".join(PLANTED))
OBSERVE = "/usr/bin/id -u; echo --; cat /proc/self/oom_score_adj; echo --; cat /proc/self/mountinfo"


@dataclass(frozen=True)
class Layout:
    """Folders of one command on the host, below `roots`. `outside` belongs to nobody inside."""

    command: SandboxCommand
    roots: tuple[Path, ...]
    outside: Path

    @property
    def points(self) -> dict[Path, str]:
        """The folders, each with the path that it must have inside the sandbox."""
        return {path: str(path) for path in (*self.command.readable, *self.command.writable)} | {
            self.command.tmp: SANDBOX.temporary(self.command)
        }

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """Return what is on the host beside the contents of writable folders."""
        return {
            str(path): (found.st_mode, found.st_uid, found.st_ino, _content(path, found.st_mode))
            for root in self.roots
            for path, found in _walk(root, {*self.command.writable})
        }


def _walk(path: Path, leaves: set[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    found = path.lstat()
    yield path, found
    if stat.S_ISDIR(found.st_mode) and path not in leaves:
        for each in path.iterdir():
            yield from _walk(each, leaves)


def _content(path: Path, mode: int) -> object:
    return path.read_bytes() if stat.S_ISREG(mode) else path.readlink() if stat.S_ISLNK(mode) else None


def new_root(base: str) -> Path:
    """Create a folder below `base` that all users may enter."""
    root = Path(os.path.realpath(tempfile.mkdtemp(prefix="talaria-mount-", dir=base)))
    root.chmod(0o755)
    return root


def make_layout(random: Random, stack: ExitStack) -> Layout:
    """Create a layout on the host; `stack` removes it."""
    roots = []
    for base in dict.fromkeys(BASES):
        if os.access(base, os.W_OK):
            roots.append(new_root(base))
            stack.callback(shutil.rmtree, roots[-1], ignore_errors=True)
    outside = roots[0] / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "victim").write_text("untouched")
    (outside / "victim").chmod(0o666)

    def place(*around: Path) -> Path:
        if around and random.random() < 0.08:
            path = random.choice(around) / random.choice(NAMES)
        else:
            path = random.choice((roots[0], *roots)) / "/".join(random.choices(NAMES, k=random.randint(1, 3)))
        if random.random() < 0.02 and not path.parent.exists():
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.symlink_to(outside)
        path.mkdir(parents=True, exist_ok=True)
        return path

    folder = place()
    home = place(folder)
    own_tmp = place(folder, home) / "tmp"
    own_tmp.mkdir()
    readable = tuple(place(folder, home, own_tmp) for _ in range(random.choice((0, 0, 1, 2))))
    writable = tuple(place(folder, home, *readable) for _ in range(random.choice((0, 0, 1, 2))))
    hand_over(tuple(dict.fromkeys((folder, home, own_tmp, *writable))))
    command = SandboxCommand((), folder, home, own_tmp, readable=readable, more_writable=writable)
    return Layout(replace(command, limits=LIMITS, tty=random.random() < 0.1), tuple(roots), outside)


def make_attack(random: Random, layout: Layout) -> SandboxCommand:
    """Return a command that replaces a path of the layout, or one around it, and plants programs."""
    command = layout.command
    folders = (*command.writable, *command.readable)
    folder = random.choice((command.folder, *folders))
    replaced = random.choice((folder, folder, *folder.parents[: len(folder.parts) - 2]))
    ups = "../" * (len(replaced.parts) - 2)
    target = random.choice((
        f"{ups}usr/bin", f"{ups}usr/bin", f"{ups}usr", f"{ups}etc", f"{ups}lib", f"{ups}bin",
        "/newroot/usr/bin", "/usr/bin",
        f"/oldroot{layout.outside}", f"/oldroot{layout.outside}/made", f"{ups}oldroot{layout.outside}/made",
        str(layout.outside), f"{ups}../oldroot{layout.outside}",
    ))  # fmt: skip
    top = next(root for root in layout.roots if folder.is_relative_to(root))
    others = " ".join(str(path) for path in folders if path != folder)
    writable = [layout.points[path] for path in command.writable]
    words = (str(top), str(replaced), target, others, *writable)
    return replace(command, argv=(*shell(ATTACK), "sh", *words), tty=False)


def judge(layout: Layout, output: str, uid: int) -> Iterator[str]:
    """Yield the escapes that the second command saw."""
    if "PLANTED" in output:
        yield "a planted program ran in place of the system's"
    ran_as, _, rest = output.replace("\r", "").partition("--\n")
    score, _, table = rest.partition("--\n")
    if ran_as.strip() != str(uid):
        yield f"it ran as {ran_as.strip()!r}"
    if score.strip() != "1000":
        yield f"its oom_score_adj is {score.strip()!r}"
    mounts = [(words[3], words[4], words[5].split(",")[0]) for words in map(str.split, table.splitlines())]
    expected = {*layout.points.values()}
    if missing := expected - {point for _, point, _ in mounts}:
        yield f"not mounted: {missing}"
    is_writable = {point: mode == "rw" for _, point, mode in mounts}
    for root, point, _ in mounts:
        if any(part.startswith("talaria-mount-") for part in Path(root).parts) and point not in expected:
            yield f"{root} is mounted over {point}"
        for above in map(str, Path(point).parents):
            if is_writable.get(above):
                yield f"{point} is mounted in {above}, which the command can write"


async def attack(random: Random) -> tuple[str, list[str]]:
    """Create a layout, attack it and return what became of it: attacked or refused, and the escapes."""
    with ExitStack() as stack:
        layout = make_layout(random, stack)
        before = layout.snapshot()
        try:
            await run(SANDBOX, make_attack(random, layout))
        except SandboxError:
            return "refused", ["a refused command changed the host"] * (layout.snapshot() != before)
        escapes = ["the first command changed the host"] * (layout.snapshot() != before)
        uid = layout.command.folder.stat().st_uid
        try:
            seen = (await run(SANDBOX, replace(layout.command, argv=shell(OBSERVE)))).out.decode()
            escapes += judge(layout, seen, uid)
        except SandboxError as error:
            escapes.append(f"the second command did not start: {error}")
        after = layout.snapshot()
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        return "attacked", [*escapes, *(f"changed on the host: {path}" for path in sorted(changed))]


async def attack_many(seed: int, count: int) -> dict[str, dict[str, Any]]:
    outcomes: Counter[str] = Counter()
    found = {}
    for number in range(count):
        outcome, escapes = await attack(Random(f"{seed}-{number}"))
        outcomes[outcome] += 1
        if escapes:
            found[f"{seed}-{number}"] = escapes
    return {"outcomes": dict(outcomes), "escapes": found}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack_many(int(sys.argv[1]), int(sys.argv[2])))))
