#!/usr/bin/python3
"""Writes the seeds of fuzz_relay_msg and fuzz_relay_in: what is said to relays and by them, and the
beginnings of what must not be."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))
HOP, STOP = b"\x00", b"\x01"
PEER_A = bytes.fromhex("0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")
PEER_B = bytes.fromhex("0024080112208139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394")
VOUCHER = bytes.fromhex(
    "0a24080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c120203021a560a26") + \
    PEER_A + b"\x12\x26" + PEER_B + bytes.fromhex(
    "1880e6fe89072a402f78fdeb414eba5b2e1f2970937b919a9d7d27d65d66bcf4a385dd9e760eb3e1e31e3af6da6b"
    "55b0cd7114c0c14ba21486a9aebeed000400f7602c744fd80304")
SMALL = [bytes([0x12, 0x20, n]) + bytes(31) for n in range(4)]


def write(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return bytes([field << 3]) + varint(value)


def text(field, data):
    return bytes([field << 3 | 2]) + varint(len(data)) + data


def connect(peer, kind=1):
    return number(1, kind) + text(2, text(1, peer))


def status(code, field=5, kind=2):
    return number(1, kind) + number(field, code)


def reserved(voucher=VOUCHER):
    addr = bytes.fromhex("047f000001060fa1a50326") + PEER_A
    return number(1, 2) + text(3, number(1, 1900000000) + text(2, addr) + text(2, addr[:8]) +
                               text(3, voucher)) + \
        text(4, number(1, 1800) + number(2, 1 << 32)) + number(5, 100)


def messages():
    write("relay_msg", "reserve", HOP + number(1, 0))
    write("relay_msg", "connect", HOP + connect(PEER_B))
    write("relay_msg", "reserved", HOP + reserved())
    write("relay_msg", "bare", HOP + reserved(b"")[:60])
    for code in (100, 200, 201, 202, 203, 204, 400, 401, 0, 1 << 40):
        write("relay_msg", "status%d" % code, HOP + status(code))
    write("relay_msg", "stop", STOP + connect(PEER_A, 0) + text(3, number(1, 120) + number(2, 131072)))
    write("relay_msg", "stopped", STOP + status(100, 4, 1))
    write("relay_msg", "nobody", HOP + number(1, 1))
    write("relay_msg", "no_type", HOP + number(5, 100))
    write("relay_msg", "voucher", HOP + VOUCHER)
    write("relay_msg", "voucher_payload", HOP + VOUCHER[44:])


def framed(*parts):
    return b"".join(varint(len(part)) + part for part in parts)


def streams():
    reserve = number(1, 0)
    write("relay_in", "one", b"\x00" + framed(reserve))
    write("relay_in", "four", b"\x02" + framed(*[reserve] * 4))
    write("relay_in", "circuits", b"\x05" + framed(
        reserve, reserve, *[connect(SMALL[n % 3]) for n in range(12)]))
    write("relay_in", "expired", b"\x07" + framed(
        reserve, reserve, status(2000), connect(SMALL[0]), reserve, connect(SMALL[0])))
    write("relay_in", "renewed", b"\x1f" + framed(*[reserve] * 40))
    write("relay_in", "forgotten", b"\x03" + framed(
        *[reserve] * 3, *[status(100)] * 4, *[connect(peer) for peer in SMALL]))
    write("relay_in", "answer", b"\x10" + framed(reserved(), b"x" * 127, b"y" * 128))
    write("relay_in", "longest", b"\x1e" + framed(b"z" * 4096))
    write("relay_in", "too_long", b"\x01\x81\x20")
    write("relay_in", "never_ends", b"\x01" + b"\xff" * 12)
    write("relay_in", "nothing", b"\x01\x00")
    write("relay_in", "cut", b"\x01" + framed(connect(PEER_B))[:-3])


messages()
streams()
