"""Planted faults of the network: its address checks, its proxy and its namespaces."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_ADDRESSES = "tests/chaos/test_network_attacks.py::test_no_address_inside_is_ever_connected_to"
_PROXY = "tests/net/test_proxy.py"
_NETWORK = "tests/workspace/test_network.py"

NETWORK_FAULTS = (
    Mutant(
        "names checked, answers not",
        "a name that leads inside is connected to",
        (
            Edit(
                "net/dialer.py",
                "                self.check(address, port)\n                admitted",
                "                admitted",
            ),
        ),
        Tests(_ADDRESSES),
    ),
    Mutant(
        "connected by name",
        "the answer of DNS may be another one when the connection is made",
        (
            Edit(
                "net/dialer.py",
                "                return await self._connect(address, port)",
                "                names = await self._resolve(owner, host)\n"
                "                return await self._connect(ip_address(names[0]), port)",
            ),
        ),
        Tests(_ADDRESSES),
    ),
    Mutant(
        "NAT64 taken for global",
        "an IPv6 address leads to any IPv4 address",
        (
            Edit("net/addresses.py", '    "64:ff9b::/96": "a NAT64 address",\n', ""),
            Edit("net/addresses.py", 'IPv6Network("2000::/3")', 'IPv6Network("::/0")'),
        ),
        Tests(_ADDRESSES),
    ),
    Mutant(
        "IPv4 in IPv6 not looked at",
        "::ffff:127.0.0.1 is this machine",
        (
            Edit(
                "net/addresses.py",
                "        return find_refusal(address.ipv4_mapped)",
                "        return None",
            ),
        ),
        Tests(_ADDRESSES),
    ),
    Mutant(
        "no check of the socket",
        "a host that is written as a number, also in a redirect, passes by the resolver",
        (
            Edit(
                "net/dialer.py",
                "        self.check(parsed, port)\n        return _new_socket",
                "        return _new_socket",
            ),
        ),
        Tests(_ADDRESSES),
    ),
    Mutant(
        "the client's Host goes on",
        "a host behind the one that was admitted is reached",
        (Edit("net/proxy_requests.py", 'b"http2-settings", b"host",', 'b"http2-settings",'),),
        Tests(f"{_PROXY}::test_request_goes_on_rewritten_and_its_response_comes_back"),
    ),
    Mutant(
        "two lengths of a body",
        "the proxy and the host read a request differently",
        (
            Edit(
                "net/proxy_requests.py", "    if len(lengths) + len(codings) > 1:", "    if len(codings) > 1:"
            ),
        ),
        Tests(f"{_PROXY}::test_refusal_says_what_happened"),
    ),
    Mutant(
        "any name in a tunnel",
        "the admission of a host admits all others of its content delivery network",
        (Edit("net/proxy.py", "not opening.names(request.host)", "not opening.data"),),
        Tests(f"{_PROXY}::test_tunnel_must_name_the_host_that_was_admitted"),
    ),
    Mutant(
        "plain HTTP in a tunnel to port 80",
        "a command sends the Host header of a host that was not admitted",
        (Edit("net/proxy.py", "request.port in WEB_PORTS", "request.port == 443"),),
        Tests(f"{_PROXY}::test_tunnel_to_a_web_port_without_tls_for_its_host_is_cut"),
    ),
    Mutant(
        "no bound of connections",
        "a command uses up the gateway's descriptors",
        (Edit("net/proxy.py", "        if self._proxy.is_full(self.session_id):", "        if False:"),),
        Tests(f"{_PROXY}::test_bound_of_connections_refuses_one_more"),
    ),
    Mutant(
        "commands join the machine's network",
        "a command with a network reaches everything that the machine reaches",
        (Edit("workspace/network_holder.py", '"--unshare-pid", "--unshare-net", ', '"--unshare-pid", '),),
        Tests(f"{_NETWORK}::test_only_way_out_is_the_proxy"),
    ),
    Mutant(
        "the network left behind",
        "the namespace and its processes stay when the session ends",
        (
            Edit(
                "workspace/network_holder.py",
                "            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)\n",
                "            pass\n",
            ),
            Edit("workspace/network_holder.py", "_PATIENCE = 10.0", "_PATIENCE = 0.1"),
        ),
        Tests(f"{_NETWORK}::test_network_ends_with_its_session"),
    ),
)
