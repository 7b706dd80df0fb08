#!/usr/bin/python3
"""Writes the seeds of fuzz_rpc_msg into tests/fuzz/corpus/rpc_msg/."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def message(*parts):
    head = struct.pack("<BH", 1, len(parts))
    table = b"".join(struct.pack("<Qi", len(data), device) for data, device in parts)
    return b"\0" + head + table + b"".join(data for data, _ in parts)


def key(seq, floor, again, rest=b""):
    return b"\1" + bytes(range(16)) + struct.pack("<QQB", seq, floor, again) + rest


def card(worker, meant, version=1):
    return (b"\2MRPC" + struct.pack("<Bi", version, worker) + bytes(range(16)) +
            bytes([len(meant)]) + meant)


SEEDS = {
    "empty": message(),
    "one-short": b"\0\0hello",
    "one-empty": b"\0\0",
    "one-on-device": message((b"hello", 3)),
    "three": message((b"a", -1), (b"", 0), (b"ccc", 7)),
    "too-many": b"\0\1\xff\xff",
    "too-long": b"\0\1\1\0" + b"\xff" * 12,
    "overflow": message((b"", 0)).replace(b"\0" * 8, b"\xff" * 7 + b"\x7f", 1),
    "kind-2": b"\0\2",
    "key": key(7, 3, 0),
    "key-again": key(2**64 - 1, 0, 1, b"\0payload"),
    "key-cut": key(7, 3, 0)[:-1],
    "card": card(5, b"worker7"),
    "card-guest": card(-1, b""),
    "card-version": card(5, b"w", 2),
}


def main():
    folder = os.path.join(HERE, "corpus", "rpc_msg")
    os.makedirs(folder, exist_ok=True)
    for name, data in SEEDS.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
