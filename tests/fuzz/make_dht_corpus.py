#!/usr/bin/python3
"""Writes the seeds of fuzz_msgpack, fuzz_dht_msg, fuzz_dht_node and fuzz_peer_frame: what nodes of
the DHT and peers say to each other in order, and some of what they must not say."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
NODE = bytes([1] * 20)
KEY = bytes(19) + b"\x01"
PEER = b"\x12\x20" + bytes([0x11] * 32)


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7f | 0x80])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3) + varint(value)


def store(items, node=NODE):
    out = b"".join(field(2, i[0]) for i in items) + b"".join(field(3, i[1]) for i in items)
    out += b"".join(field(4, i[2]) for i in items)
    out += field(5, b"".join(struct.pack("<d", i[3]) for i in items))
    out += field(6, bytes(i[4] for i in items))
    return out + field(7, field(1, node) if node else b"")


def dictionary(entries, latest):
    body = b"\x93\xcb\x7f\xf0" + bytes(6) + b"\xcb" + struct.pack(">d", latest)
    body += bytes([0x90 | len(entries)])
    for subkey, value, expiration in entries:
        body += b"\x93" + subkey + b"\xc4" + bytes([len(value)]) + value
        body += b"\xcb" + struct.pack(">d", expiration)
    return b"\xc7" + bytes([len(body)]) + b"\x50" + body


def result(kind, value, expiration, near):
    out = field(1, kind) + field(2, value) + field(3, expiration)
    out += b"".join(field(4, n) for n, _ in near) + b"".join(field(5, p) for _, p in near)
    return field(2, out)


def event(what, message=b""):
    return bytes([what]) + struct.pack("<H", len(message)) + message


PING = field(2, field(1, NODE)) + field(3, 1)
PONG = field(2, field(1, NODE)) + field(4, 1000.5) + field(5, 1)
DICT = dictionary([(b"\x01", b"\x2a", 1010.0), (b"\xa1x", b"\xc0", 1020.5)], 1020.5)
REGULAR = store([(KEY, b"\xc0", b"\x2a", 1050.0, 0)])
SUBKEY = store([(KEY, b"\x05", b"\x2a", 1050.0, 1), (KEY, b"", DICT, 1050.0, 0)], None)
OWNED = store([(KEY, b"\xc4\x17[owner:ssh-rsa AAAAB3Nz]", b"\x01[signature:AAAA]", 1050.0, 0)])
FIND = field(2, KEY) + field(3, field(1, NODE))
FOUND = result(1, b"\x2a", 1050.0, [(NODE, PEER), (bytes([2] * 20), PEER[:-1] + b"\x22")])
FOUND += result(2, DICT, 1020.5, []) + field(3, field(1, NODE))
AUTH = field(1, field(1, b"user") + field(2, b"ssh-rsa AAAA")) + field(3, 1000.0)
AUTH += field(4, b"12345678") + field(5, b"c2ln")
CALL_ID = bytes(range(16))
CALL = field(1, CALL_ID) + field(3, field(1, PEER) + field(2, b"DHTProtocol.rpc_ping") + field(3, PING))

SEEDS = {
    "msgpack": [b"\xc0", b"\xc3", bytes.fromhex("cb40aeba0000000000"), bytes.fromhex("a3616263"),
                bytes.fromhex("c403616263"), bytes.fromhex("c70340920102"), bytes.fromhex("ca3f800000"),
                bytes.fromhex("c7094092a178d64091c40179"), bytes.fromhex("82a16101c4019290"), DICT,
                b"\x91" * 40 + b"\xc0", bytes.fromhex("ddffffffff"), bytes.fromhex("d3ffffffff7fffffff")],
    "dht_msg": [b"\0" + PING, b"\0" + PONG, b"\x01" + REGULAR, b"\x01" + SUBKEY, b"\x01" + OWNED,
                b"\x02" + field(2, b"\x01\0\x01") + field(3, b""), b"\x02" + FIND, b"\x03" + FOUND,
                b"\x04" + DICT, b"\x04" + dictionary([], 1.0), b"\x05" + AUTH,
                b"\x05" + field(1, AUTH) + PING, b"\x01" + field(2, KEY) + field(2, b"short")],
    "dht_node": [event(0, PING) + event(3, PONG), event(0x10, field(2, field(1, NODE))),
                 event(1, REGULAR) + event(5, b"\x01"), event(1, SUBKEY) + event(0x11, OWNED),
                 event(2, FIND) + event(5, b"\x01") + event(3, FOUND),
                 event(0x12, FIND) + event(0x85, b"\x01") + event(4) + event(7, b"x" * 200),
                 event(6) + event(7, bytes(1100)) + event(5, b"\x01"),
                 event(2, FIND) + event(6) + event(3, FOUND) + event(3, field(2, b"\x01")),
                 event(1, b"\x12\xff\xff") + event(2, b"\xff")],
    "peer_frame": [b"\0" + varint(len(CALL)) + CALL,
                   b"\0" + varint(20 + 4) + field(1, CALL_ID) + field(4, field(1, b"ok")),
                   b"\0" + varint(24) + field(1, CALL_ID) + field(4, field(2, b"no")),
                   b"\0\xff\xff\xff\x7f", b"\x01\0" + bytes(7) + b"\x03abc", b"\x01\x01" + bytes(8),
                   b"\x01\x01" + bytes(7) + b"\x03" + field(1, b"x"), b"\x01\x02"],
}

for name, seeds in SEEDS.items():
    folder = os.path.join(HERE, "corpus", name)
    os.makedirs(folder, exist_ok=True)
    for i, seed in enumerate(seeds):
        with open(os.path.join(folder, "seed-%02d" % i), "wb") as f:
            f.write(seed)
