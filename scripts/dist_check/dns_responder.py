"""A DNS server on 127.0.0.1:53 that knows one name.

    dns_responder.py NAME

Prints a line when it listens. Answers 127.0.0.1 to queries for addresses of NAME, and that other
names do not exist. Ends after five minutes.
"""

import signal
import socket
import struct
import sys

A, IN, NO_SUCH_NAME = 1, 1, 3


def answer(query: bytes, known: str) -> bytes:
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    question = query[12 : at + 5]
    kind, _ = struct.unpack("!HH", question[-4:])
    is_known = ".".join(labels).lower() == known
    records = b""
    if is_known and kind == A:
        # A pointer to the name in the question, then the address.
        records = struct.pack("!HHHIH4s", 0xC00C, A, IN, 60, 4, socket.inet_aton("127.0.0.1"))
    flags = 0x8180 | (0 if is_known else NO_SUCH_NAME)
    header = struct.pack("!HHHHH", flags, 1, 1 if records else 0, 0, 0)
    return query[:2] + header + question + records


def main() -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 53))
    print("listening", flush=True)
    signal.alarm(300)
    while True:
        query, peer = listener.recvfrom(4096)
        try:
            listener.sendto(answer(query, sys.argv[1]), peer)
        except (IndexError, struct.error):
            pass  # not a query


main()
