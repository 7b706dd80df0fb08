#!/usr/bin/python3
"""How fuzz_live.py looks at a server: what a sanitizer says is found wherever it is in the log, and a
large log does not take the time in which the honest client is measured.

    watch.py
"""
import time

import targets
from record import lib

checks = lib.Checks()
LINE = b'muster: warn: SOME-PEER-DROPPED peer=127.0.0.2:40512 why="malformed greeting"\n'
LOOKS = 20


def append(live, data):
    with open(live.log_path, "ab") as log:
        log.write(data)


def watched(test):
    with lib.Scratch() as scratch:
        live = targets.Live("server", ["sleep", "600"], scratch)
        try:
            test(live)
        finally:
            live.kill()


def test_a_large_log_costs_little():
    def look(live):
        append(live, LINE * ((20 << 20) // len(LINE)))
        before = time.thread_time()
        found = [live.trouble() for _ in range(LOOKS)]
        took = time.thread_time() - before
        checks.equal(found, [None] * LOOKS, "nothing is found in 20 MiB")
        checks.ok(took < 2, "%d looks at them take less than 2 s of a processor" % LOOKS,
                  "%.1f s" % took)
    watched(look)


def test_what_a_sanitizer_says_is_found():
    for said in (b"==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1",
                 b"src/a.c:1:2: runtime error: signed integer overflow",
                 b"SUMMARY: UndefinedBehaviorSanitizer: undefined-behavior"):
        def look(live, said=said):
            append(live, LINE)
            checks.equal(live.trouble(), None, "nothing is found yet")
            append(live, said[:9])
            live.trouble()
            append(live, said[9:] + b"\n" + LINE)
            for _ in range(2):
                checks.ok(said[8:].decode() in (live.trouble() or ""), "%r is found" % said[8:20],
                          live.trouble())
            append(live, LINE)
            checks.ok(live.trouble(), "and stays found")
        watched(look)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
