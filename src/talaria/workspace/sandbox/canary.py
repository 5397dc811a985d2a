"""A program of its own: tries to get out of the sandbox that it runs in, and tells what worked.

    python -I -S canary.py ORDER

The order is JSON: paths, ports and processes outside. The answer is a JSON object of names of attempts, each
with null if it was refused, else with what was reached. It imports nothing of the package.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_NEW_USER, _NEW_NET, _NEW_PID, _SIGCHLD = 0x10000000, 0x40000000, 0x20000000, 17
_IS_X86 = os.uname().machine == "x86_64"
_TIOCSTI = 0x5412
_READ_SEARCH = 1 << 2

# Each call with arguments that the kernel finds fault with only after it has been let in.
_CALLS = {
    "ptrace": (101, 117, (16, 2**30)), "mount": (165, 40, ()), "umount2": (166, 39, ()),
    "pivot_root": (155, 41, ()), "chroot": (161, 51, ()), "setns": (308, 268, (-1, 0)),
    "unshare user": (272, 97, (_NEW_USER,)), "unshare network": (272, 97, (_NEW_NET,)),
    "unshare processes": (272, 97, (_NEW_PID,)), "bpf": (321, 280, ()), "userfaultfd": (323, 282, (-1,)),
    "keyctl": (250, 219, (0, -3)), "add_key": (248, 217, ()), "request_key": (249, 218, ()),
    "perf_event_open": (298, 241, ()), "io_uring_setup": (425, 425, (1,)),
    "kexec_load": (246, 104, (0, 0, 0, -1)), "init_module": (175, 105, ()), "finit_module": (313, 273, (-1,)),
    "open_by_handle_at": (304, 265, (-1,)), "name_to_handle_at": (303, 264, (-1,)),
    "process_vm_readv": (310, 270, (2**30,)), "pidfd_getfd": (438, 438, (-1,)), "fsopen": (430, 430, ()),
    "move_mount": (429, 429, (-1,)), "open_tree": (428, 428, (-1,)), "mount_setattr": (442, 442, (-1,)),
    "clone3": (435, 435, ()), "fanotify_init": (300, 262, (2**31,)), "reboot": (169, 142, ()),
    "swapon": (167, 224, ()), "settimeofday": (164, 170, (1, 0)), "syslog": (103, 116, (3, 0, -1)),
}  # fmt: skip


def _reach(name: str) -> str | None:
    x86, arm, arguments = _CALLS[name]
    filled = [ctypes.c_long(each) for each in (*arguments, *[0] * (6 - len(arguments)))]
    if _libc.syscall(ctypes.c_long(x86 if _IS_X86 else arm), *filled) >= 0:
        return "done"
    code = ctypes.get_errno()
    return None if code in _REFUSALS else f"let in: {os.strerror(code)}"


def _new_user_by_clone() -> str | None:
    child = _libc.syscall(
        ctypes.c_long(56 if _IS_X86 else 220), ctypes.c_long(_NEW_USER | _SIGCHLD), None, None, None, None
    )
    if child == 0:
        os._exit(0)
    if child < 0:
        return None
    os.waitpid(child, 0)
    return "done"


# -- files


def _read(path: str) -> str | None:
    with open(path, "rb") as file:
        return f"{len(file.read())} bytes"


def _list(path: str, names: list[str]) -> str | None:
    """A folder above a permitted one may be seen, and what else is in it may not."""
    return ", ".join({*os.listdir(path)} & {*names}) or None


def _write(path: str) -> str | None:
    with open(path, "w") as file:
        file.write("out")
    return "written"


def _open_to_write(path: str, flags: int) -> str | None:
    os.close(os.open(path, os.O_WRONLY | flags, 0o600))
    return "opened"


def _append(path: str) -> str | None:
    with open(path, "a") as file:
        file.write("out")
    return "written"


def _by_link(target: str, folder: str, copy: Callable[[str, str], None]) -> str | None:
    link = os.path.join(folder, "canary-link")
    copy(target, link)
    try:
        return _read(link)
    finally:
        os.unlink(link)


def _rename(source: str, folder: str) -> str | None:
    os.rename(source, os.path.join(folder, "canary-moved"))
    os.rename(os.path.join(folder, "canary-moved"), source)
    return "moved"


def _cut(path: str) -> str | None:
    os.truncate(path, 0)
    return "cut"


def _cut_on_opening(path: str) -> str | None:
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    return "cut"


def _remove(path: str) -> str | None:
    os.unlink(path)
    return "removed"


def _make_folder(path: str) -> str | None:
    os.mkdir(path)
    return "made"


def _change_mode(path: str) -> str | None:
    os.chmod(path, 0o640)
    return "changed" if os.stat(path).st_mode & 0o777 == 0o640 else None


def _change_times(path: str) -> str | None:
    os.utime(path, (1, 1))
    return "changed" if os.stat(path).st_mtime == 1 else None


def _make_device(folder: str) -> str | None:
    os.mknod(os.path.join(folder, "canary-device"), 0o20600, os.makedev(1, 1))
    return "made"


# -- other processes


def _see_process(command_line: str) -> str | None:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read().hex() == command_line:
                    return f"the gateway is process {name}"
        except OSError:
            continue
    return None


def _environment_of(pid: int, namespace: str) -> str | None:
    return None if _is_apart(namespace) else _read(f"/proc/{pid}/environ")


def _signal(pid: int, namespace: str) -> str | None:
    if _is_apart(namespace):
        return None
    os.kill(pid, 0)
    return "sent"


def _limit_other(pid: int, namespace: str) -> str | None:
    if _is_apart(namespace):
        return None
    resource.prlimit(pid, resource.RLIMIT_CORE)
    return "read"


def _is_apart(namespace: str) -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") != namespace
    except OSError:
        return False


# -- the network


def _connect(family: int, kind: int, address: Any) -> str | None:
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)
        sock.send(b"out")
    return "sent"


def _send_datagram(port: int) -> str | None:
    """Only the other end knows whether it has arrived."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"out", ("127.0.0.1", port))
    return None


def _open_socket(family: int, kind: int) -> str | None:
    socket.socket(family, kind).close()
    return "opened"


def _connect_in(folder: str, name: str) -> str | None:
    os.chdir(folder)  # the whole path may be too long for a socket
    return _connect(socket.AF_UNIX, socket.SOCK_STREAM, name)


def _pair_sends(folder: str, address: str) -> str | None:
    os.chdir(folder)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"out", address)
    return "sent"


# -- what it was given


def _capabilities() -> str | None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data) < 0:
        return "not known"
    held = data[0] | data[1] | data[3] << 32 | data[4] << 32
    # Landlock needs this one of root's, and holds its holder.
    return hex(held) if held & ~_READ_SEARCH else None


def _descriptors() -> str | None:
    open_ones = []
    for fd in range(3, 256):
        try:
            os.fstat(fd)
        except OSError:
            continue
        open_ones.append(str(fd))
    return ", ".join(open_ones) or None


def _variables(known: list[str]) -> str | None:
    return ", ".join(set(os.environ) - set(known)) or None


def _limits(expected: dict[str, int]) -> str | None:
    for kind, name in ((resource.RLIMIT_DATA, "memory"), (resource.RLIMIT_FSIZE, "file_size")):
        if resource.getrlimit(kind) != (expected[name], expected[name]):
            return name
    return "processes" if resource.getrlimit(resource.RLIMIT_NPROC)[1] == resource.RLIM_INFINITY else None


def _type_into_terminal() -> str | None:
    if _libc.ioctl(0, ctypes.c_ulong(_TIOCSTI), b"x") == 0:
        return "typed"
    return None if ctypes.get_errno() == errno.EPERM else "let in"


def attempts(order: dict[str, Any]) -> dict[str, Callable[[], str | None]]:
    secret, outside, folder = order["secret"], order["outside"], order["folder"]
    pid, namespace = order["pid"], order["pid_namespace"]
    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    tried: dict[str, Callable[[], str | None]] = {
        "read a file": lambda: _read(secret),
        "read by a symbolic link": lambda: _by_link(secret, folder, os.symlink),
        "read by a hard link": lambda: _by_link(secret, folder, os.link),
        "read by /proc/self/root": lambda: _read("/proc/self/root" + secret),
        "read by dots": lambda: _read(os.path.join(folder, *[".."] * 30, secret.lstrip("/"))),
        "list a folder": lambda: _list(outside, ["secret"]),
        "list the gateway's home": lambda: _list(order["home"], order["home_names"]),
        "read the passwords": lambda: _read("/etc/shadow"),
        "write a file": lambda: _write(os.path.join(outside, "canary-new")),
        "append to a file": lambda: _append(secret),
        "cut a file": lambda: _cut(secret),
        "cut a file on opening": lambda: _cut_on_opening(secret),
        "move a file in": lambda: _rename(secret, folder),
        "remove a file": lambda: _remove(order["victim"]),
        "make a folder": lambda: _make_folder(os.path.join(outside, "canary-dir")),
        "change a mode": lambda: _change_mode(secret),
        "change times": lambda: _change_times(secret),
        "write to the system": lambda: _open_to_write("/usr", os.O_TMPFILE),
        "write to the kernel": lambda: _open_to_write("/proc/sys/kernel/core_pattern", 0),
        "make a device": lambda: _make_device(folder),
        "see the gateway": lambda: _see_process(order["command_line"]),
        "read the gateway's variables": lambda: _environment_of(pid, namespace),
        "signal the gateway": lambda: _signal(pid, namespace),
        "look at the gateway's limits": lambda: _limit_other(pid, namespace),
        "connect by TCP": lambda: _connect(socket.AF_INET, stream, ("127.0.0.1", order["tcp"])),
        "send by UDP": lambda: _send_datagram(order["udp"]),
        "connect to a Unix socket": lambda: _connect_in(outside, order["unix"]),
        "connect to an abstract socket": lambda: _connect(socket.AF_UNIX, stream, "\0" + order["abstract"]),
        "send from a pair of sockets": lambda: _pair_sends(outside, order["unix_datagram"]),
        "open a raw socket": lambda: _open_socket(socket.AF_INET, socket.SOCK_RAW),
        "open a packet socket": lambda: _open_socket(17, datagram),
        "open a netlink socket": lambda: _open_socket(16, socket.SOCK_RAW),
        "open a socket to the host": lambda: _open_socket(40, stream),
        "clone into a user namespace": _new_user_by_clone,
        "type into the terminal": _type_into_terminal,
        "hold capabilities": _capabilities,
        "be root": lambda: "it is" if 0 in (os.getuid(), os.geteuid()) else None,
        "have more descriptors": _descriptors,
        "have more variables": lambda: _variables(order["variables"]),
        "have no limits": lambda: _limits(order["limits"]),
    }
    return tried | {f"call {name}": lambda name=name: _reach(name) for name in _CALLS}


def main(order: dict[str, Any]) -> None:
    results = {}
    for name, attempt in attempts(order).items():
        try:
            results[name] = attempt()
        except OSError:
            results[name] = None
    # And what must be possible.
    try:
        _write(os.path.join(order["folder"], "canary-inside"))
        os.unlink(os.path.join(order["folder"], "canary-inside"))
    except OSError as error:
        results["nothing can be written inside"] = str(error)
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
