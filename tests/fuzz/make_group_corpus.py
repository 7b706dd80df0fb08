#!/usr/bin/python3
"""Writes the seeds of fuzz_group next to itself: the seeds of fuzz_stacks_report, each after its length, alone
and together."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "corpus", "group")
REPORTS = os.path.join(HERE, "corpus", "stacks_report")


def read(name):
    with open(os.path.join(REPORTS, name), "rb") as f:
        data = f.read()
    return struct.pack("<H", len(data)) + data


def write(name, data):
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data)


names = sorted(os.listdir(REPORTS))
for name in names:
    write(name, read(name))
write("all", b"".join(read(name) for name in names))
write("twice", read("many") * 2 + read("empty"))
write("nothing", b"")
write("short", read("empty")[:-1])
