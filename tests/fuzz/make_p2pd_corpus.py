#!/usr/bin/env python3
"""Seeds of the fuzz targets of the p2p daemon: one of each message, and stories for its machines."""
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
unary = [d(1, ID)] + [d(1, ID) + d(f, m) for f, m in [
    (2, d(1, b"DHT.ping") + n(2, 0)), (3, call), (4, d(1, b"answer")), (4, d(2, b"error")),
    (5, b""), (6, d(1, b"DHT.ping"))]]
answers = [d(1, ID) + d(f, m) for f, m in [
    (2, d(1, b"answer")), (3, call), (4, d(1, b"why")), (5, b"")]]
responses = [n(1, 0), n(1, 1) + d(2, d(1, b"why")),
             n(1, 0) + d(3, d(1, PEER) + d(2, ADDR) + d(3, b"a")),
             n(1, 0) + d(4, d(1, PEER) + d(2, ADDR)),
             n(1, 0) + d(6, d(1, PEER) + d(2, ADDR)) * 2,
             d(1, PEER) + d(2, ADDR) + d(3, b"name")]
messages = [bytes([kind]) + m for kind, of in enumerate([requests, unary, answers, responses])
            for m in of]
stories = [
    b"".join(framed(r) for r in requests[:2]),
    b"".join(framed(r) for r in requests[3:]),
    framed(requests[2]) + b"".join(framed(c) for c in unary),
    framed(requests[4]) + b"what is behind it is not ours",
    framed(n(1, 11)), b"\xff\xff\xff\xff\x0f", framed(requests[3])[:20],
    framed(requests[2]) + framed(d(1, ID[:3])), framed(requests[0]) + b"\x00",
]
stories = [bytes([7 * i]) + s for i, s in enumerate(stories)]


# Calls (fuzz_p2pd_calls.c): the terms, then events, each with its class and the length of the rest.
def terms(calls=15, window=1000, held=4000, high=8000, takes=60000):
    return bytes([calls]) + b"".join(n.to_bytes(2, "little") for n in (window - 1, held, high)) + \
        b"\1" + takes.to_bytes(2, "little")


def event(kind, what, *rest):
    return bytes([len(rest) << 2 | kind, what, *rest])


def says(user, what, number, name=0, length=0):
    return event(1, 3, user, what, number, 80, name, length & 255, length >> 8)


def peer(what, stream, number=0, length=0):
    return event(2, what << 3 | 4, stream, number, length & 255, length >> 8)


def time(seconds):
    return event(0, 0, 0, seconds * 1000 & 255, seconds * 1000 >> 8)


ADD, REMOVE, CANCEL, ANSWER, CALL, BALANCED = 0, 1, 2, 3, 5, 8
ASKS, ANSWERS, HALF, RAW = 0, 1, 6, 7
OPENS, ENDS, GONE, TAKES = 0, 1, 2, 3
join = [event(1, 3, user) for user in range(4)]
calls = [terms() + m for m in [
    join[0] + says(0, CALL, 1) + peer(ANSWERS, 0) + event(2, GONE, 0),
    join[0] + says(0, CALL, 1) + says(0, CALL, 1) + says(0, CANCEL, 1) + says(0, CANCEL, 1),
    join[0] + says(0, CALL | 16, 1) + says(0, CALL, 1, 3) + says(0, CALL, 2) + event(2, GONE, 0),
    join[0] + says(0, CALL, 1) + event(2, ENDS, 0) + says(0, CALL, 1) + peer(RAW, 0, 0, 5),
    join[0] + says(0, ADD, 1) + event(2, OPENS, 0, 0) + peer(ASKS, 0, 7, 20) +
    says(0, ANSWER, 7, 0, 9) + time(6),
    join[0] + join[1] + says(0, ADD | BALANCED, 1) + says(1, ADD | BALANCED, 1) +
    b"".join(event(2, OPENS, n, 0) for n in range(3)) +
    b"".join(peer(ASKS, n, n) for n in range(3)) + event(2, ENDS, 1) + event(1, 0, 0),
    join[0] + says(0, ADD, 1) + says(0, ADD, 2) + says(0, REMOVE, 3) + says(0, REMOVE, 4) +
    says(0, ADD, 5, 2) + says(0, ADD, 6, 3) + says(0, ADD, 7, 4) + event(0, 1, 1) +
    event(0, 129, 1) + event(0, 3, 1) + event(0, 2, 1) + event(0, 2, 1),
    join[0] + says(0, ADD, 1) + event(2, OPENS, 0, 0) + peer(HALF, 0, 1, 50) + time(61),
    join[0] + says(0, ADD, 1) + event(1, 1, 0) + event(2, OPENS, 0, 0) + peer(ASKS, 0, 1) +
    says(0, CALL, 1) + event(1, 2, 0) + says(0, ANSWER, 1),
]] + [
    terms(window=100, held=2000) + join[0] + says(0, ADD, 1) +
    b"".join(event(2, OPENS, 0, 0) for _ in range(3)) +
    b"".join(peer(ASKS, n, n, 1500) for n in range(3)) + event(2, GONE, 0) + event(2, GONE, 1),
    terms(high=100) + join[0] + says(0, ADD, 1) + event(1, 1, 0) +
    b"".join(says(0, CALL, n) for n in range(3)) + b"".join(peer(ANSWERS, n) for n in range(9)) +
    event(2, OPENS, 3, 0) + peer(ASKS, 3, 1, 90) + event(2, GONE, 1) + event(1, 2, 0),
    terms(takes=10) + join[0] + says(0, CALL, 1, 0, 500) + peer(ANSWERS, 0) +
    says(0, CALL, 2, 0, 500) + event(2, TAKES, 0, 255, 1) + event(2, TAKES, 0, 255, 255),
    terms(calls=1) + join[0] + says(0, CALL, 1) + says(0, CALL, 2) + event(2, OPENS, 0, 0),
]
# Pipes (fuzz_p2pd_pipe.c): pairs of what happens and how much.
OPEN, PEER, CLIENT, WRITABLE, PEER_END, LOST, CLIENT_END = 0, 1, 3, 4, 5, 6, 7
pipes = [bytes(x) for x in [
    [OPEN, 255, PEER, 50, CLIENT | 248, 20, CLIENT_END, 0, PEER, 9, PEER_END, 0, LOST, 0],
    [PEER, 50, PEER, 30, OPEN, 255, PEER_END, 0, CLIENT | 248, 5, LOST, 0],
    [OPEN, 10, PEER, 100, PEER, 20, OPEN, 9, OPEN, 255, PEER, 40],
    [OPEN, 255, CLIENT | 16, 90, WRITABLE, 0, CLIENT | 16, 90, LOST, 0, CLIENT, 9, CLIENT_END, 0],
    [PEER, 120, PEER, 9, PEER, 255, OPEN, 255],
    [OPEN, 0, PEER, 9, LOST, 0, CLIENT, 90, OPEN, 3, OPEN, 200],
]]
for name, seeds in (("p2pd_msg", messages), ("p2pd_conn", stories), ("p2pd_calls", calls),
                    ("p2pd_pipe", pipes)):
    folder = os.path.join(HERE, "corpus", name)
    os.makedirs(folder, exist_ok=True)
    for i, seed in enumerate(seeds):
        with open(os.path.join(folder, f"seed-{i:02}"), "wb") as file:
            file.write(seed)
