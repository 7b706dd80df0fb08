#!/usr/bin/python3
"""Writes the seeds of fuzz_watchdog next to itself: messages of pulses that hang, move, or are broken; as
samples, the same bytes are noise."""
import os
import struct

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "watchdog")
FRESH, BUSY, WAITING, SILENT, STOPPED, TRACED, ENDED = range(1, 8)


def pulse(rank, state=SILENT, stance=1, still=61000, fixed=61000, place=9, step=0):
    return struct.pack("<IBBHQQQQ", rank, state, stance, 0, still, fixed, place, step)


def message(*pulses, version=1, stride=40, count=None):
    return struct.pack("<BBI", version, stride, len(pulses) if count is None else count) + b"".join(pulses)


def write(name, data):
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data)


alike = [pulse(rank) for rank in range(8)]
write("empty", message())
write("alike", message(*alike))
write("odd", message(*alike[:3], pulse(3, stance=0, place=4), *alike[4:]))
write("elsewhere", message(*alike[:3], pulse(3, place=4), *alike[4:]))
write("busy", message(*alike[:3], pulse(3, BUSY, 0, 0, 0), *alike[4:]))
write("spins", message(*[pulse(rank, BUSY, 0, 0) for rank in range(7)], pulse(7, place=1)))
write("stopped", message(pulse(0, STOPPED), pulse(1)))
write("ended", message(pulse(0, ENDED), pulse(1)))
write("left_over", message(pulse(0, ENDED), pulse(1, stance=0)))
write("person", message(pulse(0, stance=3), pulse(1)))
write("server", message(pulse(0, stance=2), pulse(1)))
write("fresh", message(pulse(0, FRESH), pulse(1, TRACED), pulse(2, WAITING)))
write("longer", message(pulse(0) + b"\0" * 8, stride=48))
write("version", message(pulse(0), version=2))
write("short", message(pulse(0))[:-1])
write("many", message(count=65537))
write("state", message(pulse(0, 9)))
write("noise", bytes((i * i * 7 + i) % 251 for i in range(1600)))
write("still", bytes(8) + bytes([0, 0, 0, 1, 0, 0xe8, 3, 0]) * 60)
