#!/usr/bin/python3
"""Writes the first seeds of fuzz_state_manifest and fuzz_state_msg: make_state_corpus.py [DIRECTORY]"""
import hashlib
import pathlib
import struct
import sys

where = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus")

F32, BF16, U8 = 13, 10, 2


def tensor(name, dtype, *shape):
    return (bytes([dtype, len(shape)]) + struct.pack(f"<{len(shape)}Q", *shape) +
            struct.pack("<I", len(name)) + name)


def manifest(tensors, chunk=1024, root=bytes(32), metadata=b"\x80", version=1, epoch=3, step=9):
    return (b"MUSM" + bytes([version]) + struct.pack("<QQI", epoch, step, chunk) + root +
            struct.pack("<I", len(metadata)) + metadata + struct.pack("<I", len(tensors)) +
            b"".join(tensors))


def offer(body, leaves, key=b"\x08\x01\x12\x20" + bytes(32), signature=bytes(64), version=1):
    return (b"MUSO" + bytes([version]) + struct.pack("<IIHH", len(body), len(leaves), len(key),
                                                     len(signature)) +
            body + b"".join(leaves) + key + signature)


def node(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


leaves = [hashlib.sha256(bytes([0, i])).digest() for i in range(3)]
root = node(node(leaves[0], leaves[1]), leaves[2])
state = manifest([tensor(b"w", F32, 3, 200), tensor(b"b", BF16, 20), tensor(b"none", U8, 0)],
                 root=root)
manifests = {
    "empty": b"",
    "manifest": state,
    "manifest_nothing": manifest([], metadata=b""),
    "manifest_scalar": manifest([tensor(b"s", F32)]),
    "manifest_many": manifest([tensor(b"t%d" % i, U8, i) for i in range(40)]),
    "manifest_twice": manifest([tensor(b"w", U8, 1), tensor(b"w", U8, 2)]),
    "manifest_huge": manifest([tensor(b"w", F32, 1 << 62, 1 << 62)]),
    "manifest_too_many_chunks": manifest([tensor(b"w", U8, 1 << 40)]),
    "manifest_chunk": manifest([tensor(b"w", U8, 5)], chunk=1025),
    "manifest_version": manifest([], version=2),
    "manifest_type": manifest([tensor(b"w", 21, 5)]),
    "manifest_rank": manifest([tensor(b"w", U8, *([1] * 65))]),
    "manifest_root": manifest([], root=b"\x01" * 32),
    "offer": offer(state, leaves),
    "offer_nothing": offer(manifest([]), []),
    "offer_leaves": offer(state, leaves[:2]),
    "offer_torn": offer(state, leaves)[:-9],
    "offer_more": offer(state, leaves) + b"x",
    "offer_bad_and_more": offer(manifest([], version=2), []) + b"x",
    "offer_other_tree": offer(state, leaves[::-1]),
    "offer_long": b"MUSO\x01" + struct.pack("<IIHH", 64 << 20, 1 << 22, 2048, 1024),
    "offer_too_long": b"MUSO\x01" + struct.pack("<IIHH", 0xffffffff, 0xffffffff, 65535, 65535),
    "offer_version": offer(state, leaves, version=9),
}


def entry(prefix, priority=1.5, have=2, chunks=3):
    return (bytes([len(prefix)]) + prefix + bytes(range(32)) +
            struct.pack("<QQQIdII", 3, 9, 2440, 3, priority, have, chunks))


messages = {
    "empty": b"",
    "list": entry(b"run") + entry(b"") + entry(b"p" * 200),
    "list_nan": entry(b"run", priority=float("nan")),
    "list_long": entry(b"p" * 201),
    "list_have": entry(b"run", have=4),
    "list_torn": entry(b"run")[:-1],
    "which_id": b"\x01" + bytes(range(32)),
    "which_prefix": b"\x02run",
    "which_other": b"\x03run",
    "swarm_ask": bytes(range(32)) + b"\x0810.0.0.7",
    "swarm_ask_none": bytes(range(32)) + b"\x00",
    "swarm": struct.pack("<IHH", 5000, 1, 3) + b"\x0810.0.0.7\x03a:1",
    "swarm_none": struct.pack("<IHH", 5000, 0, 0),
    "swarm_many": struct.pack("<IHH", 5000, 0, 1) + b"\x03a:1" * 65,
    "swarm_no_part": struct.pack("<IHH", 5000, 3, 3) + b"\x03a:1",
    "have_all": b"\x01",
    "have": b"\x00\x05\x80",
    "have_odd": b"\x03\x05\x01",
    "ask": struct.pack("<3I", 0, 999, 1),
    "ask_bad": struct.pack("<2I", 0, 1000),
    "ask_many": struct.pack("<65I", *range(65)),
    "id": bytes(range(32)),
    "busy": b"no slot is free; retry after 250 ms",
}
for folder, seeds in (("state_manifest", manifests), ("state_msg", messages)):
    (where / folder).mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (where / folder / name).write_bytes(data)
