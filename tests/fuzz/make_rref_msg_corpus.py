#!/usr/bin/python3
"""Writes the first seeds of fuzz_rref_msg: make_rref_msg_corpus.py [DIRECTORY]"""
import pathlib
import struct
import sys

where = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                     pathlib.Path(__file__).parent / "corpus" / "rref_msg")


def token(owner, parent, version=1, rref=(7, 1), fork=(8, 2), life=9):
    return (bytes([version]) + struct.pack("<5Q", *rref, *fork, life) + bytes([len(owner)]) + owner +
            bytes([len(parent)]) + parent)


seeds = {
    "token": token(b"w0", b"w1"),
    "token_long": token(b"o" * 127, b"p" * 127),
    "token_too_long": token(b"o" * 128, b"p"),
    "token_bad_name": token(b"a b", b"p"),
    "token_no_name": token(b"", b"p"),
    "token_version": token(b"w0", b"w1", version=2),
    "token_zero": token(b"w0", b"w1", fork=(8, 0)),
    "token_torn": token(b"w0", b"w1")[:-1],
    "answer": struct.pack("<2QB", 7, 3, 4),
    "answer_verdict": struct.pack("<2QB", 7, 3, 5),
    "message": struct.pack("<6Q", 7, 1, 7, 1, 7, 1),
    "create": struct.pack("<6Q", 7, 1, 7, 1, 7, 1) + b"app::Model.load",
    "empty": b"",
}
where.mkdir(parents=True, exist_ok=True)
for name, data in seeds.items():
    (where / name).write_bytes(data)
