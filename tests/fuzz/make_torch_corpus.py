#!/usr/bin/env python3
"""Writes the seeds of fuzz_torch_server and fuzz_torch_client next to itself."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
MAGIC = bytes.fromhex("cef7853c")


def n(x):
    return struct.pack("<Q", x & (2**64 - 1))


def s(text):
    text = text.encode()
    return n(len(text)) + text


def write(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


def step(conn, data, what=0):
    return b"".join(bytes([conn | what << 2, len(data[i:i + 255])]) + data[i:i + 255]
                    for i in range(0, max(len(data), 1), 255))


def server(name, greeted, *steps):
    write("torch_server", name, bytes([greeted]) + b"".join(steps))


def op(code, *parts):
    return bytes([code]) + b"".join(parts)


SET, CAS, GET, ADD, CHECK, WAIT, NUM, DELETE, APPEND, MGET, MSET, CANCEL = range(1, 13)
PING, PUSH, POP, LEN, LIST, BARRIER = range(13, 19)

server("handshake", 0, step(0, op(0, MAGIC) + op(PING, b"\x79\x02\0\0")))
server("values", 1, step(0, op(SET, s("/k"), s("v")) + op(GET, s("/k")) + op(ADD, s("/n"), n(-7))
                         + op(CAS, s("/k"), s("v"), s("w")) + op(DELETE, s("/k")) + op(NUM)))
server("wait", 3, step(0, op(WAIT, n(2), s("/a"), s("/b"))), step(1, op(SET, s("/a"), s(""))),
       step(1, op(CAS, s("/b"), s(""), s("x"))))
server("wait_cancel", 3, step(0, op(WAIT, n(1), s("/a"))), step(0, op(CANCEL)),
       step(1, op(SET, s("/a"), s(""))))
server("wait_close", 3, step(0, op(WAIT, n(1), s("/a"))), step(0, b"", 1),
       step(1, op(APPEND, s("/a"), s("x"))))
server("queue", 3, step(0, op(WAIT, n(1), s("/q"))), step(1, op(PUSH, s("/q"), s("e1"))),
       step(0, op(POP, s("/q")) + op(POP, s("/q")) + op(LEN, s("/q"))))
server("multi", 1, step(0, op(MSET, n(2), s("/a"), s("1"), s("/b"), s("2"))
                        + op(MGET, n(3), s("/a"), s("/b"), s("/c")) + op(CHECK, n(0)) + op(LIST)))
server("barrier", 7, step(0, op(BARRIER, s("/b"), n(3))), step(1, op(BARRIER, s("/b"), n(3))),
       step(2, op(BARRIER, s("/b"), n(3))))
server("dribble", 1, *[step(0, bytes([b])) for b in op(SET, s("/k"), s("value"))])
server("generation_1", 0, step(0, op(0, s("/k"), s("v")) + op(5, n(1), s("/k")) + op(2, s("/k"))),
       step(0, op(3, s("init/"), n(1)) + op(6) + op(8, s("/k"))))
server("watch", 0, step(1, op(7, s("/w"))), step(0, op(0, s("/w"), s("v1")) + op(3, s("/w"), n(1))))
server("watch_slow", 0, step(1, op(7, s("/w"))), *[step(0, op(0, s("/w"), s("v" * 200)))] * 12)
server("huge_length", 3, step(0, op(SET, n(2**62))), step(1, op(WAIT, n(2**64 - 1))))
server("backpressure", 1, step(0, op(SET, s("/k"), s("x" * 100))), step(0, op(GET, s("/k")) * 9, 3))


def client(name, generation, *steps):
    write("torch_client", name, bytes([generation]) + b"".join(steps))


def hear(data):
    return bytes([127 + len(data)]) + data


def ask(verb, keys=1, nowait=False):
    for what in range(64, 126) if nowait else range(0, 64):
        if what % 20 == verb - 1 and (what // 20 % 4 == keys or verb not in (5, 6, 11, 12)):
            return bytes([what])
    raise ValueError(verb)


HELLO = hear(b"\0\0\0\0")
client("handshake", 0, HELLO)
client("set_get", 0, HELLO, ask(1), hear(b"\0"), ask(2), hear(b"\0"), hear(s("value")))
client("get_nowait", 0, HELLO, ask(2, nowait=True), hear(b"\1"))
client("numbers", 0, HELLO, ask(3), ask(7), ask(8), hear(n(1) + n(2) + n(3)))
client("compare_set", 0, HELLO, ask(4), hear(s("init/")))
client("multi", 0, HELLO, ask(11, 2), hear(b"\0"), hear(s("1") + s("22")))
client("list", 0, HELLO, ask(9), hear(n(3) + s("/a") + s("init/") + s("/b")))
client("queue", 0, HELLO, ask(13), hear(b"\0"), ask(14), hear(b"\0"), hear(n(2) + s("e1")))
client("cancel", 0, HELLO, ask(6), b"\x7f", hear(b"\1"), ask(7), hear(b"\0" * 8))
client("cancel_race", 0, HELLO, ask(2), b"\x7f", hear(b"\0"), hear(b"\1"))
client("generation_1", 1, ask(2), hear(b"\0" + s("v")), ask(5), hear(b"\1"))
client("huge_length", 0, HELLO, ask(2), hear(b"\0" + n(2**63)))
client("unasked", 1, hear(b"\0"))
