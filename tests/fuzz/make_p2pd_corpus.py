#!/usr/bin/env python3
"""Seeds of the fuzz targets p2pd_msg and p2pd_conn: one of each message, and a few stories."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))
ID = bytes(range(16))
PEER = bytes.fromhex("0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")
ADDR = bytes.fromhex("047f000001060fa1")
UNIX = bytes.fromhex("90030b2f746d702f632e736f636b")


def d(field, value):
    return bytes([field << 3 | 2, len(value)]) + value


def n(field, value):
    return bytes([field << 3, value])


def framed(message):
    return bytes([len(message)]) + message


requests = [
    n(1, 0), n(1, 5), n(1, 9),
    n(1, 1) + d(2, d(1, PEER) + d(2, ADDR) + d(2, ADDR) + n(3, 5)),
    n(1, 2) + d(3, d(1, PEER) + d(2, b"a::B.c") + d(2, b"other")),
    n(1, 3) + d(4, d(1, UNIX) + d(2, b"a::B.c") + n(3, 1)),
    n(1, 4) + d(5, n(1, 0) + d(2, PEER)),
    n(1, 4) + d(5, n(1, 3) + d(4, b"key") + n(7, 3)),
    n(1, 6) + d(6, n(1, 0) + d(2, PEER) + d(3, b"tag") + n(4, 7)),
    n(1, 7) + d(7, d(1, PEER)),
    n(1, 8) + d(8, n(1, 0)),
    n(1, 10) + d(9, d(1, UNIX) + d(2, b"a::B.c")),
    n(1, 1),
]
call = d(1, PEER) + d(2, b"DHT.ping") + d(3, b"data")
calls = [d(1, ID)] + [d(1, ID) + d(f, m) for f, m in [
    (2, d(1, b"DHT.ping") + n(2, 0)), (3, call), (4, d(1, b"answer")), (4, d(2, b"error")),
    (5, b""), (6, d(1, b"DHT.ping"))]]
answers = [d(1, ID) + d(f, m) for f, m in [
    (2, d(1, b"answer")), (3, call), (4, d(1, b"why")), (5, b"")]]
responses = [n(1, 0), n(1, 1) + d(2, d(1, b"why")),
             n(1, 0) + d(3, d(1, PEER) + d(2, ADDR) + d(3, b"a")),
             n(1, 0) + d(4, d(1, PEER) + d(2, ADDR)),
             n(1, 0) + d(6, d(1, PEER) + d(2, ADDR)) * 2,
             d(1, PEER) + d(2, ADDR) + d(3, b"name")]
messages = [bytes([kind]) + m for kind, of in enumerate([requests, calls, answers, responses])
            for m in of]
stories = [
    b"".join(framed(r) for r in requests[:2]),
    b"".join(framed(r) for r in requests[3:]),
    framed(requests[2]) + b"".join(framed(c) for c in calls),
    framed(requests[4]) + b"what is behind it is not ours",
    framed(n(1, 11)), b"\xff\xff\xff\xff\x0f", framed(requests[3])[:20],
    framed(requests[2]) + framed(d(1, ID[:3])), framed(requests[0]) + b"\x00",
]
stories = [bytes([7 * i]) + s for i, s in enumerate(stories)]
for name, seeds in ("p2pd_msg", messages), ("p2pd_conn", stories):
    folder = os.path.join(HERE, "corpus", name)
    os.makedirs(folder, exist_ok=True)
    for i, seed in enumerate(seeds):
        with open(os.path.join(folder, f"seed-{i:02}"), "wb") as file:
            file.write(seed)
