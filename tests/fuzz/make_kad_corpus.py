#!/usr/bin/python3
"""Writes the seeds of fuzz_kad_search: a search for each of its ends, and some for its limits."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
US = 400


def peers(*numbers):
    return b"".join(struct.pack("<H", n) for n in numbers)


def search(*events, us=US, nearest=20, parallel=10, asked_max=64):
    return peers(us) + bytes([nearest, parallel, asked_max]) + b"".join(events)


def event(what, message=b""):
    return bytes([what]) + struct.pack("<H", len(message)) + message


def known(*numbers):
    return event(0, peers(*numbers))


def answer(peer, *named):
    return event(1, peers(peer, *named))


def stranger(peer, *named):
    return event(3, peers(peer, *named))


def lose(peer):
    return event(4, peers(peer))


def wait(ms):
    return event(6, struct.pack("<H", ms))


STOP = event(0xff)

SEEDS = {
    "found": search(known(US, 40, 50, 60, 0), answer(40, 3, 17), lose(60), answer(3, 9, 0, 4)),
    "nobody": search(),
    "unknown": search(known(4, 5), answer(4, 5), answer(5, 4, 6), answer(6)),
    "spent": search(known(300), *(answer(300 >> i, 300 >> i + 1) for i in range(6)), parallel=1, asked_max=4),
    "stopped": search(known(1, 2, 3), answer(1, 7), STOP, answer(2, 0)),
    "late": search(known(1, 2, 3, 4), wait(999), wait(1), answer(1, 0), answer(3, 8), wait(5000), parallel=2),
    "ourselves": search(known(50, 60), answer(50, 0, 4), answer(60, 0, 2), answer(2, 4), us=0),
    "dead": search(known(*range(1, 30)), *(lose(n) for n in range(1, 12)), answer(13, 0), nearest=3, parallel=2),
    "strangers": search(known(5, 6), stranger(5, 0), stranger(77, 0), event(5, peers(77)), event(5, peers(6)),
                        answer(5), answer(5, 0), parallel=1),
    "crowd": search(known(300), known(*range(100, 300)), known(*range(1, 40)), answer(300, 7, 301, 399), parallel=1),
    "long": search(known(300), answer(300, *range(100, 164), 0), answer(100, *range(100, 163), 0), nearest=255),
    "wide": search(known(*range(1, 200)), lose(7), answer(8, *range(200, 260)), nearest=255, parallel=255, asked_max=255),
    "no_terms": search(known(1, 2), nearest=0, parallel=0, asked_max=0),
    "after": search(known(1), answer(1, 0), known(2, 3), answer(2, 0), lose(3), wait(9000), STOP),
}

folder = os.path.join(HERE, "corpus", "kad_search")
os.makedirs(folder, exist_ok=True)
for name, seed in SEEDS.items():
    with open(os.path.join(folder, name), "wb") as f:
        f.write(seed)
