"""Somebody without the secret who hears the queries of discovery and answers each with a flood:
answers of strangers that do not exist, forged and damaged ones, and one of our own agents' answers
that it has asked for with the same query and passes on as its own.

usage: flood.py OWN-IP AGENT-IP
"""

import os
import socket
import struct
import sys

PORT = 18081
GROUP = "239.255.74.75"
own, agent = sys.argv[1:]

heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
heard.bind(("", PORT))
heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(own))
heard.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
relay = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
relay.settimeout(0.5)


def newest_query():
    """The last query that has come. Answers to what was passed on come here too."""
    newest = None
    while True:
        # A search that asked earlier may have ended.
        heard.setblocking(newest is None)
        try:
            datagram, sender = heard.recvfrom(2048)
        except BlockingIOError:
            return newest
        if len(datagram) > 22 and datagram[5] == 0 and sender[0] != own:
            newest = datagram, sender


print("ready", flush=True)
while True:
    query, finder = newest_query()
    heard.setblocking(True)
    # Before the flood, in which the agent would not hear it.
    answer = None
    for _ in range(20):
        relay.sendto(query, (agent, PORT))
        try:
            answer = relay.recv(2048)
            break
        except socket.timeout:
            pass
    nonce = query[6:22]
    build = struct.pack("<HB", 6, 5) + b"9.9.9"
    forged = b"JKLD\x01\x01" + nonce + build + struct.pack("<HQB", PORT, 7, 1)
    forged += b"\x04" + socket.inet_aton(own)
    flood = [
        b"JKLD\x01\x02" + nonce + build,
        b"JKLD\x01\x02" + nonce + struct.pack("<HB", 6, 200) + b"\x1b[2J" * 50,
        forged + bytes(32),
        forged + os.urandom(32),
        forged[:20],
        query,
        os.urandom(1400),
    ]
    for _ in range(500):
        for datagram in flood:
            heard.sendto(datagram, finder)
            heard.sendto(datagram, (GROUP, PORT))
    if answer is not None:
        heard.sendto(answer, finder)
        print("relayed", flush=True)
