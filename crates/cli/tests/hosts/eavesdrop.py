"""A passive listener: captures every frame at an interface until SIGINT, and reports what it could read.

    eavesdrop.py INTERFACE

Prints `{"listening": true}` at once and `{"bytes": B, "headers": H, "rank_bytes": R}` at the end: payload bytes of
TCP, frame headers of the data plane found in them, and payload bytes of connections that began with its handshake.
"""

import json
import re
import signal
import socket
import sys

ETH_P_ALL = 3
# Magic, version, operation and type of a frame: `crates/transport/src/frame.rs`.
HEADER = re.compile(rb"JKLF\x01[\x01-\x08][\x01-\x10][\x00\x01]")
HELLO = b"JKLPDIAL"
BUFFER_BYTES = 64 << 20


def payload(frame):
    """Returns the connection and its TCP payload, or None if the frame is not IPv4 and TCP."""
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return None
    ip = frame[14:]
    head = (ip[0] & 15) * 4
    tcp = ip[head : int.from_bytes(ip[2:4], "big")]
    ends = frozenset([(ip[12:16], tcp[0:2]), (ip[16:20], tcp[2:4])])
    return ends, tcp[(tcp[12] >> 4) * 4 :]


def main():
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    opened.bind((sys.argv[1], 0))
    ours, heard = set(), {"bytes": 0, "headers": 0, "rank_bytes": 0}

    def end(*_):
        print(json.dumps(heard), flush=True)
        sys.exit(0)

    signal.signal(signal.SIGINT, end)
    print(json.dumps({"listening": True}), flush=True)
    while True:
        found = payload(opened.recv(1 << 17))
        if found is None:
            continue
        ends, carried = found
        if HELLO in carried:
            ours.add(ends)
        heard["bytes"] += len(carried)
        heard["headers"] += len(HEADER.findall(carried))
        heard["rank_bytes"] += len(carried) if ends in ours else 0


main()
