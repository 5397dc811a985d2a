from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pictures import gif, jpeg, lossless_webp, lossy_webp, png, webp
from talaria.workspace.reading import Picture, look_at, picture_part

MAX_PICTURE_BYTES = 5 * (1 << 20) // 4 * 3
MAX_SIDE = 8000

KINDS = {"png": png, "jpeg": jpeg, "gif": gif, "webp": webp}


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_known_by_its_bytes_with_its_sides(kind: str) -> None:
    assert look_at(KINDS[kind](640, 48)) == Picture(f"image/{kind}", 640, 48)


@pytest.mark.parametrize("make", [lossless_webp, lossy_webp])
def test_each_way_to_write_a_webp_tells_its_sides(make: Callable[..., bytes]) -> None:
    assert look_at(make(640, 48)) == Picture("image/webp", 640, 48)


def test_a_jpeg_may_say_much_before_it_comes_to_its_size() -> None:
    assert look_at(jpeg(3, 4, comment=b"x" * 60_000)) == Picture("image/jpeg", 3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_shown_as_a_data_url(kind: str) -> None:
    data = KINDS[kind]()
    shown = picture_part(data)
    assert shown is not None
    head, _, body = shown.url.partition(",")
    assert (head, base64.b64decode(body)) == (f"data:image/{kind};base64", data)


@pytest.mark.parametrize(
    "data",
    [b"", b"text", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 "],
)
def test_what_is_no_picture_or_is_broken_is_not_shown(data: bytes) -> None:
    assert look_at(data) is None
    assert picture_part(data) is None


@pytest.mark.parametrize("make", KINDS.values())
def test_a_picture_that_some_provider_would_refuse_is_not_shown(make: Callable[..., bytes]) -> None:
    assert picture_part(make(MAX_SIDE, MAX_SIDE)) is not None
    assert picture_part(make(MAX_SIDE + 1, 5)) is None
    assert picture_part(make(5, MAX_SIDE + 1)) is None
    assert picture_part(make() + b"\0" * MAX_PICTURE_BYTES) is None


@given(
    st.sampled_from([png(9, 9), jpeg(9, 9), gif(9, 9), webp(9, 9)]), st.integers(0, 80), st.binary(max_size=9)
)
def test_broken_pictures_raise_nothing(data: bytes, at: int, noise: bytes) -> None:
    look_at(data[:at])
    look_at(data[:at] + noise + data[at:])
