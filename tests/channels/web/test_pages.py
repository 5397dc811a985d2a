"""The page's files: open to everybody, closed to everything else, and not sent twice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from support.gateway import Api, in_process
from talaria.channels.web.pages import INDEX, MEDIA_TYPES, Assets
from talaria.core.program import program_name
from talaria.testing.model_server import ModelServer

ASSETS = files("talaria.channels.web") / "assets"
NAMES = sorted(path.name for path in ASSETS.iterdir())
VENDORED = ("preact.js", "temml.js")
LICENCES = ("preact.txt", "temml.txt")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "accept-encoding",
}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with ModelServer() as model, in_process(tmp_path / "home", model) as api:
        yield api


@pytest.fixture
async def stranger() -> AsyncIterator[aiohttp.ClientSession]:
    """Without the token."""
    async with aiohttp.ClientSession() as client:
        yield client


def as_served(name: str) -> bytes:
    body = (ASSETS / name).read_bytes()
    if name.endswith((".js", ".css")) and name not in VENDORED:
        return Assets().by_name[name].body  # without comments; see below
    if not name.endswith(".html"):
        return body
    program, assets = program_name().encode(), Assets()
    body = body.replace(b'="talaria"', b'="%b"' % program).replace(b"<code>talaria", b"<code>" + program)
    body = re.sub(rb'"/assets/(?!\w+\.html)', f'"/assets/{assets.tree}/'.encode(), body)
    if name == INDEX:
        links = (
            f'<link rel="modulepreload" href="/assets/{assets.tree}/{each}">\n  ' for each in assets.modules
        )
        body = body.replace(b"<script ", "".join(links).encode() + b"<script ", 1)
    return body


def address(api: Api, name: str) -> str:
    return f"{api.url}/" if name == INDEX else f"{api.url}/assets/{name}"


async def test_every_file_is_served_to_strangers_with_every_header(
    api: Api, stranger: aiohttp.ClientSession
) -> None:
    assert INDEX in NAMES
    for name in NAMES:
        async with stranger.get(address(api, name)) as response:
            body = await response.read()
        assert response.status == 200, name
        assert body == as_served(name)
        assert response.headers["Content-Type"] == MEDIA_TYPES[Path(name).suffix].decode()
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["ETag"] == f'"{hashlib.sha256(body).hexdigest()}"'
        assert {key: response.headers[key] for key in HEADERS} == HEADERS
        assert response.headers["Content-Security-Policy"] == policy(f"{api.url.partition('//')[2]}/assets/")


def policy(own: str) -> str:
    return (
        f"default-src 'none'; script-src {own}; style-src {own}; img-src {own} blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:8765", "localhost:8765/assets/"),
        ("Agents.example:443", "Agents.example:443/assets/"),
        ("10.0.0.7:8765", "'self'"),  # browsers compare no address but 127.0.0.1
        ("[fd00::1]:8765", "'self'"),
    ],
)
async def test_scripts_come_from_the_assets_alone_wherever_a_policy_can_say_so(
    tmp_path: Path, stranger: aiohttp.ClientSession, host: str, own: str
) -> None:
    async with (
        ModelServer() as model,
        in_process(tmp_path / "home", model, hosts=(host.lower(),)) as api,
        stranger.get(f"{api.url}/", headers={"Host": host}) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Security-Policy"] == policy(own)


@pytest.mark.parametrize("form", ["{0}", "W/{0}", '"other", {0}'])
async def test_a_file_that_is_known_is_not_sent_again(
    api: Api, stranger: aiohttp.ClientSession, form: str
) -> None:
    for name in NAMES:
        async with stranger.get(address(api, name)) as first:
            etag = first.headers["ETag"]
        headers = {"If-None-Match": form.format(etag)}
        async with stranger.get(address(api, name), headers=headers) as response:
            assert (response.status, await response.read()) == (304, b"")
            assert response.headers["ETag"] == etag
        async with stranger.get(address(api, name), headers={"If-None-Match": '"older"'}) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "path",
    ["no.js", "pages.py", "index.html", "../pages.py", "..%2Fpages.py", "%2e%2e/pages.py", "", "app.js/"],
)
async def test_there_is_nothing_beside_them(api: Api, stranger: aiohttp.ClientSession, path: str) -> None:
    async with stranger.get(URL(f"{api.url}/assets/{path}", encoded=True)) as response:
        assert response.status in (401, 404)  # 401: not under /assets/ at all


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("name", [INDEX, "app.js"])
async def test_a_file_can_only_be_got(
    api: Api, stranger: aiohttp.ClientSession, method: str, name: str
) -> None:
    async with stranger.request(method, address(api, name)) as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


async def test_head_tells_the_same_without_the_body(api: Api, stranger: aiohttp.ClientSession) -> None:
    async with stranger.head(address(api, INDEX), headers=PLAIN) as response:
        assert (response.status, await response.read()) == (200, b"")
        assert response.headers["Content-Length"] == str(len(as_served(INDEX)))


async def test_a_clone_without_a_link_is_told_its_own_commands(
    api: Api, stranger: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the folder of the clone, since the page needs no login."""
    monkeypatch.setenv("PATH", str(tmp_path))
    async with stranger.get(f"{api.url}/") as response:
        text = await response.text()
    assert re.findall(r"<code>(.*? \w+)</code>", text) == ["./dev chat", "./dev open"]
    assert 'data-program="./dev"' in text
    assert str(Path(__file__).parents[3]) not in text


async def test_files_of_a_version_are_compressed_and_kept_and_others_are_not_found(
    api: Api, stranger: aiohttp.ClientSession
) -> None:
    tree = Assets().tree
    async with stranger.get(f"{api.url}/assets/{tree}/app.js") as response:
        assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert response.headers["Content-Encoding"] == "gzip"
        assert int(response.headers["Content-Length"]) < len(as_served("app.js"))
        assert await response.read() == as_served("app.js")
    async with stranger.get(f"{api.url}/assets/{tree}/app.js", headers=PLAIN) as response:
        assert "Content-Encoding" not in response.headers
        assert await response.read() == as_served("app.js")
    for path in ("0000000000000000/app.js", f"{tree}/index.html", f"{tree}/none.js"):
        async with stranger.get(f"{api.url}/assets/{path}") as response:
            assert response.status == 404


async def test_the_page_names_every_module_of_its_version(api: Api, stranger: aiohttp.ClientSession) -> None:
    async with stranger.get(f"{api.url}/") as response:
        html = await response.text()
    for address in re.findall(r'(?:src|href)="(/assets/[^"]*)"', html):
        async with stranger.get(api.url + address) as response:
            assert response.status == 200, address
    named = set(re.findall(r'"modulepreload" href="/assets/\w{16}/([\w.]+)"', html))
    assert named == _imported("app.js", set())


def _imported(name: str, known: set[str]) -> set[str]:
    """The module with all modules that it imports before it runs."""
    if name not in known:
        known.add(name)
        for other in re.findall(
            r'^(?:import|export) (?:.* from )?"\./([\w.]+)";', (ASSETS / name).read_text(), re.MULTILINE
        ):
            _imported(other, known)
    return known


def test_every_file_of_the_folder_is_named_by_another() -> None:
    """A forgotten module would be a page that does not start."""
    text = {name: (ASSETS / name).read_text() for name in NAMES}
    named = {
        name
        for source in text.values()
        for name in re.findall(r'(?:/assets/|from "\./|import "\./|import\("\./)([\w.]+)"', source)
    }
    assert named == set(NAMES) - {INDEX, *LICENCES}


def test_the_vendored_bundles_are_the_recorded_ones() -> None:
    readme = (files("talaria.channels.web") / "vendor" / "README.md").read_text()
    recorded = re.findall("sha256: `([0-9a-f]{64})`", readme)
    assert [hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() for name in VENDORED] == recorded


def test_the_page_is_small() -> None:
    """The bytes that a browser loads before the page can be used."""
    assets = Assets()
    sent = (INDEX, "style.css", *assets.modules)
    assert sum(len(assets.by_name[name].compressed) for name in sent) <= 60_000


def test_scripts_are_sent_without_comments_and_are_otherwise_the_same() -> None:
    assets = Assets()
    for name in (name for name in NAMES if name.endswith((".js", ".css")) and name not in VENDORED):
        written = (ASSETS / name).read_text().splitlines()
        sent = assets.by_name[name].body.decode().splitlines()
        assert len(sent) == len(written), name
        in_comment = False
        for line, got in zip((line.strip() for line in written), sent, strict=True):
            if in_comment or line.startswith(("//", "/*")):
                in_comment = not line.startswith("//") and not line.endswith("*/")
                assert got == "", (name, line)
            elif got != line:
                assert re.fullmatch(r" +// [^\"'`]+", line.removeprefix(got)), (name, line)


def test_the_page_has_no_script_or_style_of_its_own_and_fetches_nothing_elsewhere() -> None:
    """The policy would stop them; a page that needs the policy broken would not work."""
    html = (ASSETS / INDEX).read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", html)
    for name in (name for name in NAMES if name not in (*VENDORED, *LICENCES)):
        source = (ASSETS / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:src|href|url|import|fetch)\b[\s=(:]*[\"'`]?(?:https?:)?//", source), name
    own = (name for name in NAMES if name.endswith(".js") and name not in VENDORED)
    scripts = "".join((ASSETS / name).read_text() for name in own)
    assert not re.search(r"\w+HTML\b|document\.write|\beval\b|Function\(", scripts)


def luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(digit * 2 for digit in colour)
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_keep_the_contrast_that_reading_needs(scheme: str) -> None:
    """4.5 to 1, as WCAG AA asks for, for each pair that the style uses."""
    light, _, rest = (ASSETS / "style.css").read_text().partition("@media (prefers-color-scheme: dark)")
    found = re.findall(
        r"--([\w-]+): #([0-9a-f]+);", light if scheme == "light" else rest.partition("\n}\n")[0]
    )
    shades = {name: luminance(colour) for name, colour in found}
    grounds = ("paper", "side", "raised", "mine", "code")
    pairs = [(ink, ground) for ink in ("ink", "soft") for ground in grounds]
    pairs += [("accent", "paper"), ("accent", "code"), ("on-accent", "accent"), ("warn", "warn-bg")]
    pairs += [("bad", "paper"), ("bad", "bad-bg"), ("ink", "bad-bg")]
    for one, other in pairs:
        low, high = sorted((shades[one], shades[other]))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{one} on {other}"
