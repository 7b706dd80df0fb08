#!/usr/bin/env python3
"""Writes the seeds of fuzz_rdzv_msg: one file for each message, and a few that are cut or wrong."""
import struct
from pathlib import Path

HERE = Path(__file__).parent / "corpus" / "rdzv_msg"
NEVER = 2**64 - 1


def name(text):
    return struct.pack("<B", len(text)) + text.encode()


def join(flags=1, node="node-7"):
    return (b"\0\1" + name("run") + name(node) + name("10.0.0.7") + name("rack1")
            + struct.pack("<5I4Q", flags, 2, 4, 3, 2**32 - 1, 1000, NEVER, 600000, 9))


def member(node, rank, place=0):
    body = name(node) + name("10.0.0.1") + struct.pack("<IBQ", rank, place, 17)
    return struct.pack("<H", len(body)) + body


def notice(kind, rank=0, world=0, reason=0, place=0, who="", members=b""):
    return (b"\1\1" + struct.pack("<BQQ4I3B", kind, 1, 7, rank, world, 3, 1, reason, place,
                                  1 if who else 0)
            + name(who) + struct.pack("<II", 2, len(members)) + members)


def run(run_id, members=b"", count=0):
    text = b"3 of 4 nodes are here: a, b, c"
    body = (name(run_id) + struct.pack("<BQQ7I", 1, 1, 7, 2, 4, 3, 1, 2, 3, 4)
            + struct.pack("<H", len(text)) + text + struct.pack("<II", count, len(members))
            + members)
    return struct.pack("<I", len(body)) + body


two = member("a", 0) + member("b", 1)
SEEDS = {
    "join": join(),
    "join-flag": join(flags=2),
    "join-cut": join()[:-3],
    "join-spares": join(flags=5) + bytes([2, 0, 0, 0]),
    "join-spares-cut": join(flags=5),
    "join-later": join() + b"more",
    "assigned": notice(1, 1, 2, members=two),
    "assigned-short": notice(1, 1, 3, members=two),
    "ended": notice(2, reason=1, who="node-3"),
    "waiters": notice(3),
    "entered": notice(4, place=4),
    "members": b"\2" + two + member("c", 2**32 - 1, 4),
    "runs": b"\3" + run("one", two, 2) + run("two"),
    "runs-count": b"\3" + run("one", two, 3),
    "failed": b"\4\1\1" + struct.pack("<Q", 7),
    "run-id": b"\4\1" + name("run"),
}

HERE.mkdir(parents=True, exist_ok=True)
for file, data in SEEDS.items():
    (HERE / file).write_bytes(data)
