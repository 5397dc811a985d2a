"""Archives: what goes in comes out, and what no backup has is refused before anything is replaced."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from contracts.store_orders import accepting, answered, record_of
from support.trees import nested
from talaria.cli.restore import restore, swap
from talaria.config.home import Home
from talaria.core.errors import BadRequest, StoreError, TalariaError
from talaria.core.ids import TurnId
from talaria.store.archive import MANIFEST, Manifest, Packing, drop_snapshots, new_snapshot, pack, unpack
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


def silent(size: int, name: str) -> None:
    pass


@pytest.fixture
def home(tmp_path: Path) -> Home:
    path = tmp_path / "home"
    (path / "files" / "chat" / "deep").mkdir(parents=True)
    (path / "files" / "chat" / "deep" / "notes ü.txt").write_text("notes")
    (path / "memory").mkdir()
    (path / "memory" / "facts.md").write_text("facts")
    (path / "skills" / ".accepted" / "greet").mkdir(parents=True)
    (path / "skills" / ".accepted" / "greet" / "run.sh").write_text("echo")
    (path / "skills" / ".accepted" / "greet" / "run.sh").chmod(0o555)
    (path / "config.toml").write_text("[pool]\nmax_agents = 4\n")
    (path / "http.token").write_text("a secret of this machine")
    return Home(path)


async def packed(home: Home, clock: FakeClock, target: Path) -> tuple[Manifest, TurnId]:
    """A backup made while the store is open and goes on."""
    async with await SqliteStore.open(home.database, clock) as store:
        turn = await answered(store)
        copy = new_snapshot(home.path)
        await store.snapshot(copy)
        await store.accept(accepting("after the backup"))
        packing = Packing(home.path, copy, "1", latest_version(), clock.now())
        manifest = pack(packing, target, overwrite=False, on_progress=silent)
        copy.unlink()
    return manifest, turn.turn.id


async def test_a_home_comes_back_as_it_was_and_what_was_there_is_kept(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    os.symlink("/etc/passwd", home.files / "chat" / "link")
    os.mkfifo(home.files / "chat" / "pipe")
    archive = tmp_path / "a.tar.gz"
    manifest, turn_id = await packed(home, clock, archive)
    assert archive.stat().st_mode & 0o777 == 0o600
    assert {member.name for member in manifest.members} == {
        "talaria.db",
        "config.toml",
        "files/chat/deep/notes ü.txt",
        "memory/facts.md",
        "skills/.accepted/greet/run.sh",
    }
    assert sorted(manifest.left_out) == ["files/chat/link", "files/chat/pipe"]
    (home.files / "chat" / "deep" / "notes ü.txt").write_text("spoiled")
    (home.path / "config.toml").write_text("spoiled")

    _, aside = restore(home, archive)
    assert aside is not None
    assert (aside / "config.toml").read_text() == "spoiled"
    assert (aside / "talaria.db").exists()
    assert home.config.read_text().startswith("[pool]")
    assert (home.files / "chat" / "deep" / "notes ü.txt").read_text() == "notes"
    for folder in (home.files, home.files / "chat", home.files / "chat" / "deep", home.path / "memory"):
        assert folder.stat().st_mode & 0o777 == 0o700
    copy = home.path / "skills" / ".accepted" / "greet"
    assert copy.stat().st_mode & 0o777 == 0o755, "commands may run as another user"
    assert (copy / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (home.path / "http.token").read_text() == "a secret of this machine"
    assert not list(home.path.glob(".restoring*")) and not list(home.path.glob(".snapshot*"))
    async with await SqliteStore.open(home.database, clock) as store:
        record = await record_of(store, turn_id)
        assert record.turn.reply == "hi"
        assert (await store.stats()).owed == 0, "what came after the backup is not in it"


async def test_a_home_restored_from_an_older_archive_uses_the_restored_database(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    home.config.write_text('[pool]\nmax_agents = 4\n[store]\nurl = "postgresql://db.example/old"\n')
    await packed(home, clock, tmp_path / "a.tar.gz")
    other = Home(tmp_path / "other")
    other.prepare()
    restore(other, tmp_path / "a.tar.gz")
    assert other.config.read_text().strip() == "[pool]\nmax_agents = 4"
    assert other.database.exists()


def packing_of(home: Home) -> Packing:
    home.database.write_bytes(b"rows")
    return Packing(home.path, home.database, "1", latest_version(), 0.0)


@pytest.mark.broken_database
def test_a_folder_that_becomes_a_link_during_a_backup_is_not_followed(home: Home, tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", home.files / "chat" / "deep"
    secret.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("own")
        (secret / name).write_text("secret")

    def swap(size: int, name: str) -> None:
        if name == "files/chat/deep/a":
            folder.rename(folder.with_name("moved"))
            folder.symlink_to(secret)

    pack(packing_of(home), tmp_path / "a.tar.gz", overwrite=False, on_progress=swap)
    assert folder.is_symlink()
    unpack(tmp_path / "a.tar.gz", tmp_path / "out", silent)
    assert (tmp_path / "out" / "files" / "chat" / "deep" / "b").read_text() == "own"


@pytest.mark.broken_database
def test_a_backup_leaves_out_folders_that_are_nested_too_deeply(home: Home, tmp_path: Path) -> None:
    with nested(home.files / "chat", 3000):
        manifest = pack(packing_of(home), tmp_path / "a.tar.gz", overwrite=False, on_progress=silent)
    assert manifest.left_out == ("files/chat" + "/n" * 99,)
    assert "memory/facts.md" in {member.name for member in manifest.members}


async def test_a_file_that_is_there_is_not_replaced_unasked(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    (tmp_path / "a.tar.gz").write_text("mine")
    with pytest.raises(BadRequest, match="there already") as caught:
        await packed(home, clock, tmp_path / "a.tar.gz")
    assert "--force" in caught.value.hint
    assert (tmp_path / "a.tar.gz").read_text() == "mine"


async def test_a_backup_that_cannot_be_written_says_so_and_leaves_nothing(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        await packed(home, clock, tmp_path / "nowhere" / "a.tar.gz")


async def test_an_archive_that_cannot_be_read_back_is_not_kept(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    async with await SqliteStore.open(home.database, clock) as store:
        await store.snapshot(copy := new_snapshot(home.path))

    def damage(size: int, name: str) -> None:
        (draft,) = (tmp_path / "backups").iterdir()
        with draft.open("r+b") as file:
            file.write(b"damaged")

    (tmp_path / "backups").mkdir()
    # Random, so that the beginning is on the disk before the last file has been added.
    (home.files / "large").write_bytes(os.urandom(1 << 20))
    packing = Packing(home.path, copy, "1", latest_version(), clock.now())
    with pytest.raises(StoreError, match="cannot be read back"):
        pack(packing, tmp_path / "backups" / "a.tar.gz", overwrite=False, on_progress=damage)
    assert not list((tmp_path / "backups").iterdir())


def repacked(archive: Path, target: Path, *, drop: str = "", extra: tarfile.TarInfo | None = None) -> None:
    """The archive with something changed, as nobody's `talaria backup` writes it."""
    with tarfile.open(archive) as old, tarfile.open(target, "w:gz") as new:
        if extra is not None:
            new.addfile(extra, io.BytesIO(b"x" * extra.size))
        for info in old:
            if info.name != drop:
                source = old.extractfile(info)
                assert source is not None
                data = source.read()
                if drop == "content" and info.name == "config.toml":
                    data = data.upper()
                new.addfile(info, io.BytesIO(data))


def odd(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "extra",
    [
        odd("/etc/cron.d/evil"),
        odd("../evil"),
        odd("files/../../evil"),
        odd("files/./x"),
        odd("http.token"),
        odd("talaria.lock"),
        odd("logs/x"),
        odd("files/link", tarfile.SYMTYPE, "/etc"),
        odd("files/hard", tarfile.LNKTYPE, "config.toml"),
        odd("files/pipe", tarfile.FIFOTYPE),
        odd("files/unlisted"),
        odd("files" + "/n" * 2000),
    ],
    ids=lambda info: f"{info.name}-{info.type!r}",
)
async def test_an_archive_with_what_no_backup_has_replaces_nothing(
    home: Home, clock: FakeClock, tmp_path: Path, extra: tarfile.TarInfo
) -> None:
    await packed(home, clock, tmp_path / "good.tar.gz")
    repacked(tmp_path / "good.tar.gz", tmp_path / "bad.tar.gz", extra=extra)
    await refused(home, tmp_path / "bad.tar.gz")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("drop", [MANIFEST, "talaria.db", "memory/facts.md", "content"])
async def test_an_archive_that_is_not_its_manifest_replaces_nothing(
    home: Home, clock: FakeClock, tmp_path: Path, drop: str
) -> None:
    await packed(home, clock, tmp_path / "good.tar.gz")
    repacked(tmp_path / "good.tar.gz", tmp_path / "bad.tar.gz", drop=drop)
    await refused(home, tmp_path / "bad.tar.gz")


@pytest.mark.parametrize("kept", [0, 10, 200, -300])
async def test_a_cut_archive_replaces_nothing(
    home: Home, clock: FakeClock, tmp_path: Path, kept: int
) -> None:
    await packed(home, clock, tmp_path / "good.tar.gz")
    (tmp_path / "bad.tar.gz").write_bytes((tmp_path / "good.tar.gz").read_bytes()[:kept])
    await refused(home, tmp_path / "bad.tar.gz")


async def test_a_backup_of_a_newer_program_replaces_nothing(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    await (await SqliteStore.open(home.database, clock)).close()
    newer = tmp_path / "newer.db"
    newer.write_bytes(home.database.read_bytes())
    connection = driver.connect(newer)
    connection.execute(f"PRAGMA user_version = {latest_version() + 1}")
    connection.commit()
    connection.close()
    pack(Packing(home.path, newer, "9", 99, 0.0), tmp_path / "b.tar.gz", overwrite=False, on_progress=silent)
    await refused(home, tmp_path / "b.tar.gz", "newer Talaria")


async def refused(home: Home, archive: Path, why: str = ".") -> None:
    before = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}
    with pytest.raises(TalariaError, match=why) as caught:
        restore(home, archive)
    assert caught.value.hint
    assert {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()} == before


async def test_the_whole_archive_is_checked_before_it_is_believed(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    manifest, _ = await packed(home, clock, tmp_path / "good.tar.gz")
    assert unpack(tmp_path / "good.tar.gz", tmp_path / "out", silent) == manifest


def rewritten(archive: Path, target: Path, change: Callable[[Manifest], Manifest], drop: str = "") -> None:
    """The archive with another manifest, and without one of its files."""
    with tarfile.open(archive) as old, tarfile.open(target, "w:gz") as new:
        for info in old:
            source = old.extractfile(info)
            assert source is not None
            data = source.read()
            if info.name == MANIFEST:
                data = msgspec.json.encode(change(msgspec.json.decode(data, type=Manifest)))
                info.size = len(data)
            if info.name != drop:
                new.addfile(info, io.BytesIO(data))


def without_database(manifest: Manifest) -> Manifest:
    members = tuple(member for member in manifest.members if member.name != "talaria.db")
    return msgspec.structs.replace(manifest, members=members)


@pytest.mark.parametrize(
    ("change", "drop", "why"),
    [
        (lambda manifest: msgspec.structs.replace(manifest, format=2), "", "made by a newer Talaria"),
        (without_database, "talaria.db", "it has no database"),
    ],
)
async def test_a_manifest_that_no_backup_writes_replaces_nothing(
    home: Home,
    clock: FakeClock,
    tmp_path: Path,
    change: Callable[[Manifest], Manifest],
    drop: str,
    why: str,
) -> None:
    await packed(home, clock, tmp_path / "good.tar.gz")
    rewritten(tmp_path / "good.tar.gz", tmp_path / "bad.tar.gz", change, drop)
    await refused(home, tmp_path / "bad.tar.gz", why)


async def test_the_manifest_tells_the_size_of_all_files(home: Home, clock: FakeClock, tmp_path: Path) -> None:
    manifest, _ = await packed(home, clock, tmp_path / "a.tar.gz")
    unpack(tmp_path / "a.tar.gz", tmp_path / "out", silent)
    sizes = [path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert manifest.size == sum(sizes)


async def test_no_gateway_starts_on_a_home_whose_restore_stopped_in_the_middle(
    home: Home, clock: FakeClock, tmp_path: Path
) -> None:
    await packed(home, clock, tmp_path / "a.tar.gz")
    unpack(tmp_path / "a.tar.gz", tmp_path / "fresh", silent)
    assert home.find_loss("") is None
    with pytest.raises(StoreError, match="stopped in the middle"):
        swap(home, tmp_path / "fresh", home.config / "aside")  # a file, so that no folder can be made there
    for url in ("", "postgresql://db.example/talaria"):
        loss = home.find_loss(url)
        assert loss is not None and "was interrupted" in loss.user_text
    restore(home, tmp_path / "a.tar.gz")
    assert home.find_loss("") is None


@pytest.mark.broken_database
def test_copies_that_a_killed_backup_left_are_dropped(tmp_path: Path) -> None:
    for _ in range(2):
        new_snapshot(tmp_path).write_bytes(b"half")
    (tmp_path / "talaria.db").write_bytes(b"kept")
    drop_snapshots(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["talaria.db"]
