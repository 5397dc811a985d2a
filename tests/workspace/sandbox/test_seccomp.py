"""The filter, run by a small interpreter of BPF: for both machines, whichever one this is."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from talaria.workspace.sandbox.seccomp import AARCH64, MACHINES, REFUSED, X86_64, Machine, build_filter

ALLOW, KILL, EPERM = "allow", "kill", errno.EPERM
BOTH = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
NAMESPACES = [0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000]


def decide(program: bytes, number: int, *arguments: int, audit: int) -> int | str:
    """Return what the filter says: allow, kill, or an error number."""
    filled = [each & 0xFFFFFFFFFFFFFFFF for each in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number, audit, 0, *filled)
    code = [*struct.iter_unpack("<HBBI", program)]
    accumulator, position = 0, 0
    while True:
        operation, yes, no, k = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif operation == 0x54:
            accumulator &= k
        elif operation == 0x15:
            position += yes if accumulator == k else no
        elif operation == 0x35:
            position += yes if accumulator >= k else no
        elif operation == 0x06:
            return ALLOW if k == 0x7FFF0000 else KILL if k == 0x80000000 else int(k) & 0xFFFF
        else:
            raise AssertionError(operation)


@BOTH
@pytest.mark.parametrize("has_namespaces", [True, False])
def test_listed_calls_are_refused_and_others_allowed(machine: Machine, has_namespaces: bool) -> None:
    program = build_filter(machine, has_namespaces=has_namespaces, shares_uid=not has_namespaces)
    assert len(program) // 8 <= 4096
    named = {machine.calls[name]: name for name in REFUSED if name in machine.calls}
    filtered = {*machine.calls.values()}
    for number in range(500):
        verdict = decide(program, number, audit=machine.audit)
        if number in named:
            assert verdict == EPERM, named[number]
        elif number not in filtered:
            assert verdict == ALLOW, number


@BOTH
def test_other_architectures_end_the_process(machine: Machine) -> None:
    program = build_filter(machine, has_namespaces=True, shares_uid=False)
    for other in (0x40000003, 0x40000028, *({X86_64.audit, AARCH64.audit} - {machine.audit})):
        assert decide(program, 1, audit=other) == KILL
    assert decide(program, 0x40000000 | 1, audit=machine.audit) == (KILL if machine is X86_64 else ALLOW)


@BOTH
def test_new_namespaces_are_refused_and_threads_are_not(machine: Machine) -> None:
    program = build_filter(machine, has_namespaces=True, shares_uid=False)

    def call(name: str, *arguments: int) -> int | str:
        return decide(program, machine.calls[name], *arguments, audit=machine.audit)

    threads = 0x003D0F00
    assert call("clone", threads) == call("clone", 17) == ALLOW
    assert call("clone3", 1, 88) == errno.ENOSYS
    for flag in NAMESPACES:
        assert call("clone", flag | 17) == call("clone", threads | flag) == call("unshare", flag) == EPERM
    assert call("unshare", 0x80) == EPERM
    assert call("unshare", 0x400) == ALLOW


@BOTH
def test_sockets(machine: Machine) -> None:
    with_namespaces = build_filter(machine, has_namespaces=True, shares_uid=False)
    without = build_filter(machine, has_namespaces=False, shares_uid=True)

    def call(program: bytes, name: str, *arguments: int) -> int | str:
        return decide(program, machine.calls[name], *arguments, audit=machine.audit)

    for family in (0, 1, 2, 3, 10, 16, 17, 21, 29, 31, 38, 40, 44):
        for kind in (0, 1, 2, 3, 4, 5, 6, 10):
            is_plain = family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) and kind in (1, 2, 5)
            for flags in (0, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
                assert (call(with_namespaces, "socket", family, kind | flags) == ALLOW) == is_plain
                assert call(without, "socket", family, kind | flags) == EPERM
                is_pair = family == socket.AF_UNIX and kind in (1, 5)
                assert (call(without, "socketpair", family, kind | flags) == ALLOW) == is_pair
    for name in ("connect", "bind", "listen", "shmget", "mq_open"):
        assert (call(with_namespaces, name, 3), call(without, name, 3)) == (ALLOW, EPERM)


@BOTH
@pytest.mark.parametrize("shares_uid", [True, False])
def test_without_namespaces_a_process_changes_itself_and_its_own_files_only(
    machine: Machine, shares_uid: bool
) -> None:
    program = build_filter(machine, has_namespaces=False, shares_uid=shares_uid)

    def call(name: str, *arguments: int) -> int | str:
        return decide(program, machine.calls[name], *arguments, audit=machine.audit)

    for name in ("prlimit64", "sched_setaffinity", "sched_setattr"):
        assert [call(name, 0), call(name, 77)] == [ALLOW, EPERM]
    assert [call("setpriority", 0, 0), call("setpriority", 0, 77)] == [ALLOW, EPERM]
    # By path it succeeds without effect; of an open file it is done.
    assert call("fchmodat", -100, 0x7F00) == (0 if shares_uid else ALLOW)
    for path in (1, 1 << 40):
        assert [call("utimensat", 3, path), call("utimensat", 3, 0)] == [0, ALLOW]
    for name in ("inotify_add_watch", "setxattr", "setxattrat", "lremovexattr", "file_setattr"):
        assert call(name) == EPERM


@BOTH
def test_with_namespaces_there_is_nothing_outside_to_be_changed(machine: Machine) -> None:
    program = build_filter(machine, has_namespaces=True, shares_uid=False)
    for name in ("prlimit64", "setpriority", "fchmodat", "utimensat", "setxattr", "inotify_add_watch"):
        assert decide(program, machine.calls[name], 77, 77, audit=machine.audit) == ALLOW


@BOTH
def test_nothing_types_into_a_terminal(machine: Machine) -> None:
    program = build_filter(machine, has_namespaces=True, shares_uid=False)
    number = machine.calls["ioctl"]
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32):  # the kernel looks at the lower half
        assert decide(program, number, 0, request, audit=machine.audit) == EPERM
    assert decide(program, number, 0, 0x5401, audit=machine.audit) == ALLOW
