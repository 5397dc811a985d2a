"""The system's folders and files that commands may read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
# Not the whole of /etc, which also has passwords, keys and names of this machine.
_SETTINGS = (
    "alternatives", "ca-certificates", "crypto-policies", "fonts", "gai.conf", "gitconfig", "host.conf",
    "hosts", "inputrc", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf",
    "localtime", "magic", "mailcap", "mime.types", "nsswitch.conf", "pki/ca-trust", "pki/tls/cert.pem",
    "pki/tls/certs", "profile.d", "protocols", "python3", "resolv.conf", "services", "skel",
    "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ACCOUNTS = ("/etc/passwd", "/etc/group")
# Facts of the machine that say nothing about its processes.
PROC_FILES = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version",
    "/proc/filesystems", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/ngroups_max",
    "/proc/sys/kernel/cap_last_cap", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count",
    "/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
)  # fmt: skip


def system_paths(hidden: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the paths that exist here, apart from those that contain one of the `hidden` folders."""
    for path in (*map(Path, _PROGRAMS), *(Path("/etc", name) for name in _SETTINGS)):
        if path.exists() and not any(each.is_relative_to(path) for each in hidden):
            yield path
