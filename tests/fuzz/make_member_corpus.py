#!/usr/bin/python3
"""Writes the seeds of fuzz_rdzv_member: a life for each state, and for each way out of it."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def event(kind, number=0):
    return bytes([kind]) + struct.pack("<H", number)


JOIN, BLAMELESS, LEAVE, CLOSE, SAY = event(0), event(0, 1), event(2), event(3), event(4)
STARVE, BLOCK = event(6), event(6, 1)
ENTER, SPARE, ASSIGN, AGAIN, END, WAITERS = event(7), event(8), event(9), event(11), event(12, 1), event(13)
CLOSED, CLOSE_LOST, CLOSE_LATE = event(15), event(15, 1), event(16)
LOSE, UNREACHED, BROKEN, CONFIRM, LINK, TICK = (event(k) for k in (17, 18, 19, 20, 21, 25))
STAY = event(24, 1)


def answer(which):
    return event(14, which)


def wait(ms):
    return event(22, ms)


def stop(ms):
    return event(23, ms)


IN = JOIN + SAY + ENTER + ASSIGN
SEEDS = {
    "round": IN + WAITERS + END + JOIN + ASSIGN + LEAVE + SAY + answer(0),
    "held": IN + END + ASSIGN + JOIN + TICK + END + ASSIGN + END + JOIN + ASSIGN,
    "failed": IN + JOIN + SAY + ASSIGN + BLAMELESS + SAY + ASSIGN + wait(1600) + JOIN + SAY,
    "cut": IN + CONFIRM + wait(2300) + JOIN + SAY + ASSIGN + CONFIRM + wait(200) + END,
    "stays": STAY + IN + wait(5000) + CONFIRM + WAITERS + wait(5000),
    "stopped": IN + stop(2400) + CONFIRM + wait(200) + stop(2500) + wait(200) + JOIN + stop(20000),
    "forgotten": IN + answer(3) + JOIN + SAY + ENTER + answer(3) + SAY + ENTER + ASSIGN + LOSE + wait(4000),
    "spare": JOIN + SAY + SPARE + wait(4500) + CONFIRM + wait(2500) + CONFIRM + wait(200) + ENTER + ASSIGN,
    "timeout": JOIN + SAY + ENTER + answer(2) + JOIN + LINK + wait(8000) + wait(8000) + IN + END + answer(2),
    "leave": JOIN + LEAVE + TICK + IN + LEAVE + SAY + wait(2100) + JOIN + SAY + LEAVE + LOSE + TICK,
    "close": IN + CLOSE + SAY + CLOSED + JOIN + TICK + CLOSE,
    "close_failed": CLOSE + SAY + CLOSE_LOST + SAY + CLOSE_LATE + CLOSE + UNREACHED + TICK + CLOSE + 4 * wait(8000),
    "others_close": JOIN + SAY + SPARE + CLOSE + SAY + answer(6) + CLOSED,
    "unreached": JOIN + CLOSE + UNREACHED + TICK + JOIN + UNREACHED + LEAVE + TICK,
    "refused": JOIN + SAY + answer(4) + IN + ASSIGN + IN + BROKEN + JOIN + SAY + AGAIN + answer(5),
    "starved": JOIN + STARVE + TICK + BLOCK + SAY + ENTER + LEAVE + STARVE + wait(30) + SAY,
}

folder = os.path.join(HERE, "corpus", "rdzv_member")
os.makedirs(folder, exist_ok=True)
for i, (name, seed) in enumerate(SEEDS.items()):
    for terms in (2, i % 8):
        with open(os.path.join(folder, name if terms == 2 else f"{name}_{terms}"), "wb") as f:
            f.write(bytes([terms]) + seed)
