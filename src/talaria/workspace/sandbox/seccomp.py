"""The seccomp filter: classic BPF, assembled here, for x86_64 and aarch64.

Every call is allowed but those listed. A refused call fails with EPERM, so that programs can go on; a call of
another architecture (32 bit, x32) ends the process, because the numbers of this filter say nothing about it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

_LD, _JEQ, _JGE, _AND, _RET = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data, little-endian
_X32 = 0x40000000

_NEW_NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000
_NESTED_NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000  # of users, processes and networks
_NEW_TIME = 0x00000080  # of unshare only: in clone these bits are the exit signal
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into a terminal
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
_STREAM, _DATAGRAM, _SEQPACKET = 1, 2, 5


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """An architecture: its word for `os.uname`, its number for audit, and its numbers of calls."""

    name: str
    audit: int
    calls: Mapping[str, int]


# Numbers that all architectures share: calls that are younger than the common table.
_SHARED = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
    "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip
X86_64 = Machine("x86_64", 0xC000003E, _SHARED | {
    "ioctl": 16, "shmget": 29, "shmat": 30, "socket": 41, "connect": 42, "bind": 49, "listen": 50,
    "socketpair": 53, "clone": 56, "semget": 64, "msgget": 68, "chmod": 90, "chown": 92, "lchown": 94,
    "ptrace": 101, "syslog": 103, "utime": 132, "uselib": 134, "setpriority": 141, "sched_setparam": 142,
    "sched_setscheduler": 144, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159,
    "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
    "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "create_module": 174, "init_module": 175, "delete_module": 176, "quotactl": 179, "nfsservctl": 180,
    "setxattr": 188, "lsetxattr": 189, "removexattr": 197, "lremovexattr": 198, "sched_setaffinity": 203,
    "lookup_dcookie": 212, "clock_settime": 227, "utimes": 235, "mq_open": 240, "kexec_load": 246,
    "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "inotify_add_watch": 254,
    "migrate_pages": 256, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272,
    "move_pages": 279, "utimensat": 280, "perf_event_open": 298, "fanotify_init": 300, "prlimit64": 302,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
    "sched_setattr": 314, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
})  # fmt: skip
AARCH64 = Machine("aarch64", 0xC00000B7, _SHARED | {
    "setxattr": 5, "lsetxattr": 6, "removexattr": 14, "lremovexattr": 15, "lookup_dcookie": 18,
    "inotify_add_watch": 27, "ioctl": 29, "ioprio_set": 30, "umount2": 39, "mount": 40, "pivot_root": 41,
    "nfsservctl": 42, "chroot": 51, "fchmodat": 53, "fchownat": 54, "vhangup": 58, "quotactl": 60,
    "utimensat": 88, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118,
    "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "reboot": 142,
    "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "mq_open": 180,
    "msgget": 186, "semget": 190, "shmget": 194, "shmat": 196, "socket": 198, "socketpair": 199,
    "bind": 200, "listen": 201, "connect": 203, "add_key": 217, "request_key": 218, "keyctl": 219,
    "clone": 220, "swapon": 224, "swapoff": 225, "migrate_pages": 238, "move_pages": 239,
    "perf_event_open": 241, "prlimit64": 261, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "sched_setattr": 274, "bpf": 280,
    "userfaultfd": 282, "kexec_file_load": 294,
})  # fmt: skip
MACHINES = {machine.name: machine for machine in (X86_64, AARCH64)}

# Calls that no command needs: the kernel's own affairs, other processes, mounts, and a record of holes.
REFUSED = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp",
    "pidfd_getfd", "mount", "umount2", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "pivot_root", "chroot", "setns", "bpf", "userfaultfd",
    "perf_event_open", "keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "kexec_load", "kexec_file_load", "create_module", "init_module", "finit_module",
    "delete_module", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "iopl",
    "ioperm", "modify_ldt", "uselib", "vhangup", "lookup_dcookie", "nfsservctl", "name_to_handle_at",
    "open_by_handle_at", "fanotify_init", "migrate_pages", "move_pages",
)  # fmt: skip
_NESTING = ("chroot",)
# Landlock does not look at these. Without namespaces they reach sockets and shared memory of the machine.
_WITHOUT_NAMESPACES = (
    "socket",
    "connect",
    "bind",
    "listen",
    "shmget",
    "shmat",
    "semget",
    "msgget",
    "mq_open",
)
# Nor at these. They change or watch files outside, by their paths.
_BY_PATH = ("setxattr", "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat",
            "file_setattr", "inotify_add_watch")  # fmt: skip
# So do these. They do nothing and succeed, as on file systems that keep no modes: git and pip go on.
# futimens, fchmod and their like, which take an open file, work.
_TIMES_BY_PATH = ("utime", "utimes", "futimesat")
_OWNERS_BY_PATH = ("chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat")
# Allowed for the process itself, which is number 0 in the argument with this index.
_OF_ITSELF = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0,
    "sched_setattr": 0, "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip


@cache
def build_filter(
    machine: Machine, *, has_namespaces: bool, shares_uid: bool, may_nest: bool = False
) -> bytes:
    """Return the filter as an array of `struct sock_filter`.

    With namespaces of its own a command may use sockets of the internet, which lead nowhere but to itself;
    without them it may not make a socket, nor change other processes, nor files by their paths. `shares_uid`
    says that files outside, which the command can name, belong to its uid. With `may_nest` a program can
    confine its own processes further: in new namespaces of users, processes and networks, and by chroot.
    """
    program = [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, machine.audit), (_RET, 0, 0, _KILL), (_LD, 0, 0, _NR)]
    if machine is X86_64:
        program += [(_JGE, 0, 1, _X32), (_RET, 0, 0, _KILL)]
    refused = [name for name in REFUSED if not (may_nest and name in _NESTING)]
    namespaces = _NEW_NAMESPACES & ~_NESTED_NAMESPACES if may_nest else _NEW_NAMESPACES
    ignored = [*_OWNERS_BY_PATH] if shares_uid else []
    if not has_namespaces:
        refused += (*_WITHOUT_NAMESPACES, *_BY_PATH)
        ignored += _TIMES_BY_PATH
    for name in refused:
        if name in machine.calls:
            program += _on(machine.calls[name], [_fail(errno.EPERM)])
    for name in ignored:
        if name in machine.calls:
            program += _on(machine.calls[name], [_fail(0)])
    # The flags of clone3 are in memory, which a filter cannot read: libraries fall back to clone.
    program += _on(machine.calls["clone3"], [_fail(errno.ENOSYS)])
    program += _on(machine.calls["clone"], _refuse_bits(0, namespaces))
    program += _on(machine.calls["unshare"], _refuse_bits(0, namespaces | _NEW_TIME))
    program += _on(machine.calls["ioctl"], _refuse_values(1, _TERMINAL_INPUT))
    if has_namespaces:
        families, types = (AF_UNIX, AF_INET, AF_INET6), (_STREAM, _DATAGRAM, _SEQPACKET)
        program += _on(machine.calls["socket"], _require(0, families) + _require(1, types, mask=0xF) + _PASS)
    else:
        # A datagram socket of a pair could still send to any address.
        body = _require(0, (AF_UNIX,)) + _require(1, (_STREAM, _SEQPACKET), mask=0xF) + _PASS
        program += _on(machine.calls["socketpair"], body)
        for name, index in _OF_ITSELF.items():
            program += _on(machine.calls[name], _require(index, (0,)) + _PASS)
        # utimensat of an open file has no path.
        is_null = [(_LD, 0, 0, _ARGS + 8), (_JEQ, 0, 3, 0), (_LD, 0, 0, _ARGS + 12), (_JEQ, 0, 1, 0)]
        program += _on(machine.calls["utimensat"], [*is_null, *_PASS, _fail(0)])
    program += _PASS
    return b"".join(struct.pack("<HBBI", code, yes, no, k) for code, yes, no, k in program)


_Instruction = tuple[int, int, int, int]
_PASS: list[_Instruction] = [(_RET, 0, 0, _ALLOW)]


def _fail(code: int) -> _Instruction:
    return (_RET, 0, 0, _ERRNO | code)


def _on(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """Run `body`, which always returns, for the call with this number. The number stays loaded."""
    return [(_JEQ, 0, len(body), number), *body]


def _load(index: int) -> _Instruction:
    return (_LD, 0, 0, _ARGS + 8 * index)


def _require(index: int, values: Iterable[int], mask: int = 0xFFFFFFFF) -> list[_Instruction]:
    """Fail unless the lower half of an argument, under the mask, is one of the values."""
    values = [*values]
    jumps = [(_JEQ, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_load(index), (_AND, 0, 0, mask), *jumps, _fail(errno.EPERM)]


def _refuse_values(index: int, values: tuple[int, ...]) -> list[_Instruction]:
    jumps = [(_JEQ, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_load(index), *jumps, *_PASS, _fail(errno.EPERM)]


def _refuse_bits(index: int, bits: int) -> list[_Instruction]:
    return [_load(index), (_AND, 0, 0, bits), (_JEQ, 1, 0, 0), _fail(errno.EPERM), *_PASS]
