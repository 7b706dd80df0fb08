#!/usr/bin/python3
"""Writes the seeds of fuzz_identify, fuzz_mss, fuzz_noise, fuzz_yamux and fuzz_peer_conn: what
peers say to each other in order, and the beginnings of what they must not say."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = bytes.fromhex("132f6d756c746973747265616d2f312e302e300a")
A = bytes.fromhex("0020f5b2d6e60f9477e310c2982daaa6c9136c108a1777c5947e448fa37d68174557")
B = bytes.fromhex(
    "00d850a61409b1ddd0325e9b16b700e719e9772c07000b1bd7786e907c653d20495d"
    "5093d7e10b3d84e13f4ec37ccd38eabe6faacc0b31ad3eb332522772dfdd2d8c5f0bd71fb7de0a79b7a56e5a"
    "61a952e8b2e23d63bf3b15d83b3b25d61cbc828beb1add4e871dc3ea5f03dae06d8267358ee43e331b29e514"
    "3d63c7ee42f84d4934dde875879a7e5ab7f833c69c84857096b1cfd6625705f7cdb443bb5a80aa1a348f8343"
    "2e852f973892c5a851620c60b76fa10f5c5be8133c09c765f4e1b0c51bd38639fbe6632f41956fb3c6b8ac06"
    "6b68d6c1097d1dc6")
C = bytes.fromhex(
    "00b8b597d54e241ad08a1d50340a58651aa24ace9a624c637ea0b8953cd6f4830dd438c02cbaff7eb0665e47"
    "815fbb05e48df4244debc9be294712072eaa6e7b79ba30855b82f6823ab48a421ce1bdd092c0851154c662f4"
    "2dced6bfe090cc3dbcbf21c7d2f7fad576e455e32f0208b69877b1892e6cc93df3ad3f59556eaaace20dbc85"
    "030355aea102ff6a9318ae9235e1f220f945a6255074a31acc69e0283182cffc6c111db862758cfd12770861"
    "7528acad5ad6276e8733")
PING_SEALED = bytes.fromhex("001c26d56dd5d361dec197aaff1ddf5cb48c0c6e8be2b394dd5af49644cc")
PONG_SEALED = bytes.fromhex("001c0c219baef7930748d835fa3d521c21f2fbf7dbe2ff3f3b5e4974dd4e")
DATA, UPDATE, PING, AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


def write(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def name(text):
    return bytes([len(text) + 1]) + text.encode() + b"\n"


def frame(kind, flags, stream, length=0, body=b""):
    return struct.pack(">BBHII", 0, kind, flags, stream, length or len(body)) + body


def step(what, value=0, data=b""):
    """A step with data takes as many of them as one byte can say, and repeats."""
    out = b""
    while True:
        out += bytes([what, len(data[:255]) if data else value]) + data[:255]
        data = data[255:]
        if not data:
            return out


def mss():
    noise, na = name("/noise"), name("na")
    for i, how in enumerate((0, 2, 1 << 2, 5 << 2)):
        write("mss", f"initiator_agreed{i}", bytes([how]) + HEADER + noise + b"rest")
    write("mss", "initiator_second", bytes([0]) + HEADER + na + name("/ipfs/id/1.0.0") + b"rest")
    write("mss", "initiator_refused", bytes([0]) + HEADER + na + na)
    write("mss", "initiator_other", bytes([2]) + HEADER + name("/plaintext/2.0.0"))
    write("mss", "responder_agreed", bytes([1]) + HEADER + noise + b"rest")
    write("mss", "responder_ls", bytes([1 | 3 << 2]) + HEADER + name("ls") + name("/odd") + noise)
    write("mss", "responder_long", bytes([1]) + HEADER + b"\x80\x08" + b"x" * 1023 + b"\n")
    write("mss", "responder_too_long", bytes([1]) + HEADER + b"\x81\x08" + b"x" * 1024 + b"\n")
    write("mss", "responder_many", bytes([1]) + HEADER + name("/a/b/c") * 70)
    write("mss", "no_header", bytes([1]) + noise)


def noise():
    write("noise", "dialler", bytes([0]) + B + PONG_SEALED)
    write("noise", "dialler_pieces", bytes([2]) + B + PONG_SEALED)
    write("noise", "listener", bytes([1]) + A + C + PING_SEALED)
    write("noise", "listener_pieces", bytes([9]) + A + C + PING_SEALED)
    write("noise", "listener_twice", bytes([1]) + A + C + PING_SEALED + PING_SEALED)
    write("noise", "listener_short", bytes([1]) + A + b"\x00\x03abc")
    write("noise", "listener_empty", bytes([1]) + A + C + b"\x00\x00")
    write("noise", "dialler_cut", bytes([0]) + B[:100])
    write("noise", "weak_key", bytes([1]) + b"\x00\x20" + bytes(32))
    write("noise", "greatest", bytes([1]) + b"\xff\xff" + bytes(65535))


FEED, WRITE, END, RESET, CONSUME, OPEN, SEND, TICK, GO_AWAY = range(9)


def yamux():
    def seed(label, role, *steps):
        write("yamux", label, bytes([role]) + b"".join(steps))

    opened = step(FEED, data=frame(UPDATE, SYN, 1))
    seed("ping", 1, step(TICK), step(FEED, data=frame(PING, SYN, 0, 7) + frame(PING, ACK, 0)))
    seed("call", 1, opened, step(FEED, data=frame(DATA, 0, 1, body=b"hello")), step(WRITE, 1 + 64),
         step(CONSUME, 1), step(FEED, data=frame(UPDATE, FIN, 1)), step(END, 1), step(SEND, 255))
    seed("ours", 0, step(OPEN), step(WRITE, 1), step(FEED, data=frame(UPDATE, ACK, 1, 1 << 20)),
         step(WRITE, 1), step(WRITE, 1), step(WRITE, 1), step(SEND, 255), step(WRITE, 1),
         step(END, 1), step(FEED, data=frame(DATA, FIN, 1, body=b"bye")))
    seed("turns", 0, step(OPEN), step(OPEN), *[step(WRITE, 1), step(WRITE, 3)] * 4,
         step(SEND, 255), *[step(WRITE, 1), step(WRITE, 3)] * 4)
    seed("reset", 1, opened, step(RESET, 1), step(FEED, data=frame(DATA, 0, 1, body=b"late")))
    seed("peer_resets", 1, opened, step(WRITE, 1), step(FEED, data=frame(DATA, RST, 1, body=b"x")))
    seed("overrun", 1, opened, step(FEED, data=frame(DATA, 0, 1, 262145)))
    seed("huge", 1, opened, step(FEED, data=frame(DATA, 0, 1, 0xffffffff)))
    seed("too_much_credit", 1, opened, step(FEED, data=frame(UPDATE, 0, 1, 0xffffffff)))
    seed("window", 1, step(FEED, data=frame(DATA, SYN, 1, 255, b"x" * 255) * 5), step(CONSUME, 1))
    seed("many", 1, step(FEED, data=b"".join(frame(UPDATE, SYN, i) for i in range(1, 61, 2))))
    seed("away", 1, step(GO_AWAY), opened, step(FEED, data=frame(AWAY, 0, 0)), step(OPEN))
    seed("dead", 0, step(TICK, 1), step(TICK, 101), step(TICK, 250))


SAY, FEED2, OPEN2, WRITE2, END2, RESET2, CONSUME2, SEND2, TICK2, CLOSE, CUT = range(11)
DIALLER, LISTENER, LATE, SECRET = 0, 1, 2, 4


def peer_conn():
    def seed(label, how, *steps):
        write("peer_conn", label, bytes([how]) + b"".join(steps))

    noise, yamux, echo = name("/noise"), name("/yamux/1.0.0"), name("/echo/1")
    hidden = SECRET | LISTENER
    asked = frame(UPDATE, SYN, 1) + frame(DATA, 0, 1, body=HEADER + echo + b"hello")
    seed("listener_transcript", LISTENER, step(FEED2, data=HEADER + noise), step(FEED2, data=A),
         step(FEED2, data=C + PING_SEALED), step(SEND2, 255))
    seed("dialler_transcript", DIALLER, step(FEED2, data=HEADER + noise), step(FEED2, data=B),
         step(FEED2, data=PONG_SEALED), step(OPEN2), step(SEND2, 255))
    seed("plaintext", LISTENER, step(FEED2, data=HEADER + name("/plaintext/2.0.0") + noise))
    seed("no_noise", DIALLER, step(FEED2, data=HEADER + name("na")))
    seed("call", hidden, step(SAY, data=asked), step(CONSUME2, 1), step(WRITE2, 65),
         step(SAY, data=frame(UPDATE, FIN, 1)), step(END2, 1), step(SEND2, 255))
    seed("refused", hidden, step(SAY, data=frame(DATA, SYN, 1, body=HEADER + name("/a"))))
    seed("unanswered", hidden, step(SAY, data=frame(DATA, SYN, 1, body=HEADER + name("/ab"))),
         step(SAY, data=frame(DATA, 0, 1, body=echo + b"x")))
    seed("ours", SECRET, step(OPEN2, 0), step(WRITE2, 1), step(SEND2, 255), step(END2, 1),
         step(SAY, data=frame(DATA, ACK, 1, body=HEADER + echo + b"hello") + frame(DATA, FIN, 1)))
    seed("ours_second", SECRET, step(OPEN2, 1), step(WRITE2, 1),
         step(SAY, data=frame(DATA, ACK, 1, body=HEADER + name("na"))),
         step(SAY, data=frame(DATA, 0, 1, body=name("/other") + b"hello")), step(WRITE2, 1))
    seed("ours_refused", SECRET, step(OPEN2, 0), step(WRITE2, 65),
         step(SAY, data=frame(DATA, ACK, 1, body=HEADER + name("na"))))
    seed("queue", SECRET, *[step(OPEN2, 0)] * 6, step(SAY, data=frame(UPDATE, ACK, 1)),
         step(RESET2, 3), step(RESET2, 11), step(SAY, data=frame(AWAY, 0, 0)))
    seed("late_muxer", hidden | LATE, step(SAY, data=asked), step(SAY, data=HEADER + yamux + asked))
    seed("violation", hidden, step(SAY, data=asked + frame(DATA, 0, 1, 262145)))
    seed("close", hidden, step(SAY, data=asked), step(OPEN2, 0), step(CLOSE), step(SEND2, 255))
    seed("cut", hidden, step(SAY, data=asked), step(CUT))
    seed("time", hidden, step(SAY, data=frame(UPDATE, SYN, 1)), step(OPEN2, 0), step(TICK2, 151))


def field(number, data):
    assert len(data) < 16384
    length = bytes([len(data)]) if len(data) < 128 else \
        bytes([len(data) % 128 | 128, len(data) // 128])
    return bytes([number << 3 | 2]) + length + data


def message(data):
    return field(1, data)[1:]


def identify():
    key = bytes.fromhex("08011220") + bytes(range(32))
    addr = bytes.fromhex("047f000001060fa1")
    peer = bytes.fromhex("0024") + key
    record = field(1, peer) + b"\x10\x2a" + field(3, field(1, addr))
    envelope = field(1, key) + field(2, b"\x03\x01") + field(3, record) + field(5, bytes(64))
    plain = field(1, key) + field(2, addr) + field(3, b"/ipfs/id/1.0.0") + field(4, addr) + \
        field(5, b"ipfs/0.1.0") + field(6, b"muster")
    for name_, how, data in (
            ("plain", 63, message(plain)),
            ("pieces", 0, message(plain)),
            ("record", 9, message(plain) + message(field(8, envelope))),
            ("two", 3, message(field(3, b"/a")) + message(field(3, b"/b") + field(6, b"x"))),
            ("empty", 1, message(b"")),
            ("ten", 1, message(b"") * 10),
            ("eleven", 1, message(b"") * 11),
            ("unknown_addr", 1, message(field(2, b"\xff\xff\x7f") + field(2, b""))),
            ("cut", 1, message(plain)[:50]),
            ("long_name", 1, message(field(3, b"/" + b"x" * 1023))),
            ("many", 30, message(field(3, b"/a") * 2000) * 2)):
        write("identify", name_, bytes([how]) + data)


if __name__ == "__main__":
    identify()
    mss()
    noise()
    yamux()
    peer_conn()
