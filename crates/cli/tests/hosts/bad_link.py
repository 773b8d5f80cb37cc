"""A bad cable: forwards Ethernet frames between two interfaces, each after a while, some not at all.

    bad_link.py ONE OTHER DELAY_MS LOSS_PERCENT SEED
    bad_link.py --plain INTERFACE...

Frames have to be as they are on a wire: `--plain` has the kernel cut and sum up what an interface sends, instead of
leaving it to a device that is none.
"""

import array
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
# Checksums, scatter/gather, TCP segmentation, generic segmentation: `linux/ethtool.h`.
SWITCHES = (0x17, 0x19, 0x1F, 0x24)
ETH_P_ALL = 3
FRAMES_WAITING_MAX = 10_000


def make_plain(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for switch in SWITCHES:
            value = array.array("I", [switch, 0])
            address, _ = value.buffer_info()
            request = struct.pack("16sP", interface.encode(), address)
            try:
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)
            except OSError as err:
                # It may be off and fixed.
                print(f"{interface}: switch {switch:#x}: {err}", file=sys.stderr)


def open_interface(name):
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.bind((name, 0))
    opened.setblocking(False)
    return opened


def forward(one, other, delay_s, loss):
    ends = {one: other, other: one}
    waiting = []
    count = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(list(ends), [], [], timeout)
        for end in readable:
            frame, address = end.recvfrom(65_536)
            is_ours = address[2] == socket.PACKET_OUTGOING
            if is_ours or random.random() < loss or FRAMES_WAITING_MAX <= len(waiting):
                continue
            count += 1
            heapq.heappush(waiting, (time.monotonic() + delay_s, count, ends[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(waiting)
            try:
                end.send(frame)
            except OSError as err:
                # As on a wire, it is lost.
                print(f"{len(frame)} bytes: {err}", file=sys.stderr)


def main():
    if sys.argv[1] == "--plain":
        for interface in sys.argv[2:]:
            make_plain(interface)
        return
    one, other, delay_ms, loss_percent, seed = sys.argv[1:]
    random.seed(int(seed))
    forward(open_interface(one), open_interface(other), float(delay_ms) / 1e3, float(loss_percent) / 100)


main()
