"""`talaria model` as its users run it; what pulling does is in tests/models/local."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Talaria
from talaria.models.local.weights import DEFAULT_MODEL, WeightsCache, find_weights


def test_the_list_says_what_is_here_and_what_answers(talaria: Talaria, tmp_path: Path) -> None:
    cache = WeightsCache(tmp_path / "cache")
    cache.folder.mkdir()
    cache.partial(find_weights(DEFAULT_MODEL)).touch()
    with cache.partial(find_weights(DEFAULT_MODEL)).open("wb") as file:
        file.truncate(find_weights(DEFAULT_MODEL).size // 2)
    with cache.path(find_weights("smollm2-135m")).open("wb") as file:
        file.truncate(find_weights("smollm2-135m").size)
    environ = {"TALARIA_CACHE": str(cache.folder), "TALARIA_MODEL__PROVIDER": "local"}
    done = talaria("model", "list", env={**environ, "TALARIA_MODEL__NAME": DEFAULT_MODEL})
    assert done.returncode == 0, done.stderr
    rows = {line[3:].split()[0]: line for line in done.stdout.splitlines()[1:4]}
    assert rows[DEFAULT_MODEL].startswith("*")
    assert "491 MB   Apache-2.0  50 %" in rows[DEFAULT_MODEL]
    assert "98 MB    Apache-2.0  yes" in rows["smollm2-135m"]
    assert "1117 MB  Apache-2.0  no" in rows["qwen2.5-coder-1.5b"]

    done = talaria("model", "pull", "smollm2-135m", env=environ)
    assert "is here already" in done.stdout
    done = talaria("model", "remove", "smollm2-135m", env=environ)
    assert done.stdout == "smollm2-135m: 98 MB freed.\n"
    done = talaria("model", "remove", "smollm2-135m", env=environ)
    assert done.stdout == "smollm2-135m was not on this machine.\n"
    done = talaria("model", "remove", "--all", env=environ)
    assert done.stdout.splitlines() == [f"{DEFAULT_MODEL}: 246 MB freed.", f"{cache.folder} is deleted."]
    assert not cache.folder.exists()
    assert talaria("model", "remove", env=environ).returncode == 2


def test_without_a_terminal_it_pulls_only_with_a_yes_and_says_the_size(talaria: Talaria) -> None:
    done = talaria("model", "pull")
    assert done.returncode == 2
    assert done.stdout.startswith(f"{DEFAULT_MODEL}: 491 MB to fetch (Apache-2.0), into ")
    assert "add --yes" in done.stderr


def test_an_unknown_model_lists_the_known_ones(talaria: Talaria) -> None:
    done = talaria("model", "pull", "gpt-5")
    assert done.returncode == 1
    assert "There is no built-in model named gpt-5." in done.stderr
    assert DEFAULT_MODEL in done.stderr


def test_what_another_process_fetches_is_not_removed(talaria: Talaria, tmp_path: Path) -> None:
    cache = WeightsCache(tmp_path / "cache")
    with cache.locked(find_weights(DEFAULT_MODEL)) as is_ours:
        assert is_ours
        done = talaria("model", "remove", DEFAULT_MODEL, env={"TALARIA_CACHE": str(cache.folder)})
    assert done.returncode == 1
    assert f"Another process fetches {DEFAULT_MODEL} now." in done.stderr


def test_a_star_is_explained_only_where_one_is(talaria: Talaria) -> None:
    assert "* " not in talaria("model", "list").stdout
    env = {"TALARIA_MODEL__PROVIDER": "local", "TALARIA_MODEL__NAME": ""}
    assert "* answers by default" in talaria("model", "list", env=env).stdout
