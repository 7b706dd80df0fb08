#!/usr/bin/python3
"""Makes the first inputs of the targets native_msg, native and quant.

usage: make_native_corpus.py DIRECTORY
"""
import os
import struct
import sys

DIGEST = bytes(range(32))


def make_set(members):
    mask = sum(1 << m for m in members)
    return struct.pack("<Q", mask) + b"".join(struct.pack("<d", 1.0) for _ in members)


def hello():
    return b"\x01" + struct.pack("<H", 1) + bytes(20) + struct.pack("<Q", 7) + bytes(32) + b"\x01\x03"


def part(number, weight=1.0):
    return b"\x02" + struct.pack("<Id", number, weight) + b"\0\0\0\0"


def average(total, number):
    return b"\x03" + struct.pack("<II", total, number) + b"\0\0\0\0"


def have(shard, members):
    return b"\x04" + bytes([shard]) + make_set(members)


def prepare(ballot):
    return b"\x05" + struct.pack("<I", ballot)


def newer(ballot):
    return b"\x06" + struct.pack("<I", ballot)


def promise(ballot, flags=0, at=0, members=()):
    out = b"\x07" + struct.pack("<IBQ", ballot, flags, 0)
    if flags & 1:
        out += struct.pack("<II", at, 0) + make_set(members)
    if flags & 2:
        out += struct.pack("<I", at)
    return out + (DIGEST if flags & 6 else b"")


def assign(ballot, owners):
    return b"\x08" + struct.pack("<IQ", ballot, owners)


def propose(ballot, total, members, bound=False):
    return b"\x09" + struct.pack("<II", ballot, total) + make_set(members) + (b"\x01" + DIGEST if bound else b"\0")


def accept(ballot, total, digest=DIGEST):
    return b"\x0a" + struct.pack("<II", ballot, total) + digest


def final(ballot, total, members):
    return b"\x0b" + struct.pack("<II", ballot, total) + make_set(members) + DIGEST


def want(total, shards):
    return b"\x0c" + struct.pack("<IQ", total, shards)


def fail(why):
    return b"\x10" + struct.pack("<BIIBB", why, 0, 1, 1, 2)


def step(who, message, what=0, time=0):
    return struct.pack("<BBBH", what, who, time, len(message)) + message


DONE = b"\x0d" + struct.pack("<I", 0)
CLOSE = b"\x0e" + struct.pack("<Q", 7)
LOST = b"\x0f" + struct.pack("<Q", 2)

MESSAGES = {
    "hello": hello(), "part": part(3), "average": average(2, 3), "have": have(1, [0, 2]), "prepare": prepare(4),
    "newer": newer(5), "promise": promise(4), "promise-accepted": promise(4, 11, 2, [0, 1]),
    "promise-final": promise(4, 15, 2, [0, 1]), "assign": assign(3, 6), "propose": propose(4, 3, [1, 2]),
    "propose-bound": propose(4, 3, [1], True), "accept": accept(4, 3), "final": final(4, 3, [0, 1, 2]),
    "want": want(3, 5), "done": DONE, "close": CLOSE, "lost": LOST, "fail": fail(1),
    "bad-weight": part(3, float("nan")), "bad-type": b"\x11", "short": final(4, 3, [0])[:-1],
}

# As members 0 and 2 of three with 1, 2 and 1 parts; we are 1.
FOLLOW = [step(0, part(1)), step(0, part(2)), step(2, part(1)), step(2, part(2)), step(0, part(0))]
AGREED = FOLLOW + [step(0, propose(0, 0, [0, 1, 2])), step(0, average(0, 0)), step(2, average(0, 3))]
LEAD = [step(1, part(0)), step(2, part(0)), step(2, part(3)), step(1, have(1, [0, 1, 2])), step(1, have(0, [0, 1])),
        step(2, have(2, [0, 1, 2])), step(2, have(1, [1, 2]))]
ROUNDS = {
    "follow": (b"\x02\0\x01", AGREED + [step(0, final(0, 0, [0, 1, 2])), step(0, CLOSE)]),
    "takeover": (b"\x02\0\x01", AGREED + [step(0, b"", 6), step(2, promise(1, 11, 0, [0, 1, 2])),
                                          step(2, average(0, 0)), step(2, average(0, 1)), step(2, average(0, 2)),
                                          step(2, average(0, 3)), step(2, accept(1, 0)), step(2, DONE)]),
    "early": (b"\x02\0\x01", FOLLOW + [step(0, b"", 6), step(2, promise(1)), step(2, have(2, [1, 2]))]),
    "lead": (b"\x02\0\0", LEAD + [step(1, average(0, 1)), step(1, average(0, 2)), step(2, average(0, 3)),
                                  step(1, accept(0, 0, bytes(32))), step(1, DONE), step(2, DONE)]),
    "owner-lost": (b"\x02\0\0", LEAD + [step(2, b"", 6), step(1, promise(3)), step(1, part(3)),
                                        step(1, have(1, [0, 1, 2])), step(1, have(0, [0, 1]))]),
    "split": (b"\x02\0\0", LEAD + [step(1, average(0, 1)), step(1, average(0, 2)), step(2, average(0, 3)),
                                   step(2, b"", 6), step(1, accept(0, 0)), step(1, promise(3, 11, 0, [0, 1, 2]))]),
    "late": (b"\x02\0\0", LEAD[:3] + [step(1, b"", 7, 255), step(1, b"", 7, 255), step(1, promise(3))]),
    "newer": (b"\x02\0\x01", FOLLOW + [step(2, prepare(5)), step(0, propose(0, 0, [0, 1])), step(2, assign(5, 6))]),
    "clients": (b"\x04\x0a\x02", [step(0, assign(0, 5)), step(3, want(0, 1)), step(0, LOST), step(0, fail(2))]),
    "alone": (b"\0\0\0", []),
}

QUANT = {
    "int8": b"\0\x40" + struct.pack("<f", 0.5) + bytes([1, 127, 129, 0]),
    "fp8": b"\x01\x40" + struct.pack("<f", 0.5) + bytes([1, 0x7e, 0x80, 0xff & 0xfe]),
    "two-blocks": b"\0\x40" + (struct.pack("<f", 2.0) + bytes(64)) * 2,
    "zeros": b"\0\x40" + bytes(12),
    "bad-scale": b"\x01\x40" + struct.pack("<f", 0.3) + bytes([1]),
    "bad-code": b"\0\x40" + struct.pack("<f", 1.0) + b"\x80",
    "bad-block": b"\0\x41" + bytes(8),
    "values": b"\0\x80" + struct.pack("<8f", 1e38, -1e-40, 0.0, 3.5, 448.0, 1e-30, -2.0, 7.0),
    "not-finite": b"\x01\x80" + struct.pack("<2f", float("inf"), 1.0),
}


def write(folder, name, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def main():
    root = sys.argv[1]
    for name, data in MESSAGES.items():
        write(os.path.join(root, "native_msg"), name, data)
    for name, (head, steps) in ROUNDS.items():
        write(os.path.join(root, "native"), name, head + b"".join(steps))
    for name, data in QUANT.items():
        write(os.path.join(root, "quant"), name, data)


main()
