"""What `talaria doctor` says of the configuration and of the HTTP token."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping

from talaria.cli.connect import is_locked
from talaria.cli.findings import Finding, Level, shell
from talaria.cli.remedies import remedy
from talaria.cli.service_file import ENVIRONMENT
from talaria.config.home import Home
from talaria.config.load import Loaded
from talaria.config.report import BadConfig
from talaria.config.settings import Settings
from talaria.core.errors import ConfigError, TalariaError

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_broken_config(home: Home, error: ConfigError) -> Iterator[Finding]:
    """Each problem by itself, so that each has its own way out."""
    if isinstance(error, BadConfig):
        for remark in error.remarks:
            yield Finding("config", Level.PROBLEM, remark.text, "", remedy(remark, home.config))
    elif home.config.is_file():
        yield Finding.of("config", error, "talaria config edit")
    else:
        away = home.config.with_name("config.toml.not-a-file")
        yield Finding.of("config", error, shell("mv", home.config, away))


def check_config(home: Home, loaded: Loaded) -> Iterator[Finding]:
    for remark in loaded.remarks:
        yield Finding("config", Level.WARN, remark.text, "", remedy(remark, home.config))
    if not loaded.remarks:
        there = "is fine" if loaded.path else "is not there; everything runs on defaults"
        yield Finding("config", Level.OK, f"{home.config} {there}.")


def check_secret_files(home: Home, settings: Settings) -> Iterator[Finding]:
    """Files of ours that hold a secret are nobody else's to read."""
    names = [settings.channels.telegram.token_file, ENVIRONMENT]
    for path in (home.path / name for name in names if name):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # one that is needed is missed elsewhere
        if mode & OTHERS:
            text = f"{path} holds a secret and is open to other users (mode {mode:04o})."
            yield Finding("secrets", Level.WARN, text, "", shell("chmod", "600", path))


def check_token(home: Home, environ: Mapping[str, str], token_env: str) -> Iterator[Finding]:
    if token_env and token_env in environ:
        try:
            home.find_token(environ, token_env)
        except TalariaError as error:
            yield Finding.of("token", error, shell("unset", token_env))
        else:
            yield Finding("token", Level.OK, f"The HTTP token comes from {token_env}.")
        return
    try:
        mode = stat.S_IMODE(home.token_file.stat().st_mode)
    except OSError:
        if not is_locked(home):
            yield Finding("token", Level.OK, "There is no HTTP token yet; the first start makes one.")
        return
    if mode & OTHERS:
        text = f"{home.token_file} is open to other users (mode {mode:04o})."
        yield Finding("token", Level.WARN, text, "", shell("chmod", "600", home.token_file))
        return
    try:
        home.find_token(environ, token_env)
    except TalariaError as error:
        yield Finding.of("token", error, shell("rm", "-r", home.token_file))
    else:
        yield Finding("token", Level.OK, f"{home.token_file}, for this user only.")
