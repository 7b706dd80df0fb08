#!/usr/bin/python3
"""Writes the seeds of fuzz_file_store: how much the file grows at a time (less one), then the file.

    make_file_store_corpus.py [FOLDER]
"""
import os
import struct
import sys


def record(key, value=b""):
    return struct.pack("<I", len(key)) + key + struct.pack("<I", len(value)) + value


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "corpus", "file_store")
    os.makedirs(folder, exist_ok=True)
    two = record(b"/k", b"v") + record(b"/n", b"5")
    seeds = {
        "empty": b"\x00",
        "two": b"\xff" + two,
        "two_dribbled": b"\x00" + two,
        "again": b"\x06" + two + record(b"/k", b"w") + record(b"/k"),
        "deleted": b"\x03" + two + record(b"-/k") + record(b"-/never"),
        "empty_key": b"\x03" + record(b"/", b"e"),
        "counters": b"\xff" + record(b"refcount/", b"1") + two + record(b"cleanup/", b"1"),
        "torn_length": b"\xff" + two + b"\x02\x00",
        "torn_key": b"\xff" + two + b"\x06\x00\x00\x00/to",
        "torn_value": b"\xff" + two + record(b"/long", b"x" * 99)[:40],
        "absurd_key": b"\xff" + two + b"\xff\xff\xff\xff" + b"x" * 9,
        "absurd_value": b"\xff" + two + b"\x02\x00\x00\x00/k\xff\xff\xff\xffx",
        "not_a_store": b"\xff#!/bin/sh\necho hello\n",
    }
    for name, content in seeds.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


main()
