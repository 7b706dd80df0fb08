#!/usr/bin/python3
"""The end of the interpreter in the midst of everything: it ends at once, with the right code, and
says nothing that the program did not say."""

import harness

checks = harness.checks

BEGIN = """
import asyncio, atexit, gc, os, signal, sys, threading, time
import muster
URL = sys.argv[1]

def started(target):
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread

def waiting(count):
    # Until that many operations wait: each has told so, and nothing else keeps them.
    while len(begun) < count:
        time.sleep(0.001)
    time.sleep(0.02)

begun = []
"""

# name: (program, exit code)
PROGRAMS = {
    "an open store": ("store = muster.Store(URL); store.set('a', 'b')", 0),
    "a store in a cycle": ("store = muster.Store(URL); store.me = store", 0),
    "a store in a module's global, with a __del__ that uses it": ("""
class User:
    def __init__(self): self.store = muster.Store(URL)
    def __del__(self):
        try: self.store.set('a', 'b')
        except muster.MusterError: pass
user = User()
""", 0),
    "an open server": ("server = muster.Server(); store = muster.Store(server.url)", 0),
    "a watch": ("store = muster.Store(URL); watch = store.watch('a')", 0),
    "a lease that is kept": ("store = muster.Store(URL); lease = store.lease(1).keep_alive()", 0),
    "sys.exit() with a code": ("store = muster.Store(URL); sys.exit(7)", 7),
    "os._exit()": ("store = muster.Store(URL); os._exit(3)", 3),
    "a daemon thread in get()": ("""
store = muster.Store(URL)
def wait():
    begun.append(1)
    store.get('never')
started(wait); waiting(1)
""", 0),
    "twenty daemon threads in get(), pop(), barrier() and wait()": ("""
store = muster.Store(URL)
def wait(call, *args):
    begun.append(1)
    call(*args)
for i in range(5):
    for call in ((store.get, 'never'), (store.pop, 'q'), (store.barrier, 'b', 99),
                 (store.wait, 'w')):
        started(lambda call=call: wait(*call))
waiting(20)
""", 0),
    "daemon threads that work": ("""
store = muster.Store(URL)
def work():
    while True:
        store.set('a', 'b'); store.get('a'); begun.append(1)
for i in range(4): started(work)
waiting(50)
""", 0),
    "a daemon thread that opens and closes stores": ("""
def work():
    while True:
        with muster.Store('hash:') as store:
            store.set('a', 'b'); begun.append(1)
started(work); waiting(20)
""", 0),
    "a daemon thread in a watch": ("""
store = muster.Store(URL)
def follow():
    begun.append(1)
    for change in store.watch('a'): pass
started(follow); waiting(1)
""", 0),
    "a daemon thread that opens a store nobody serves": ("""
def work():
    begun.append(1)
    muster.Store('tcp://127.0.0.1:1', connect_timeout=60)
started(work); waiting(1)
""", 0),
    "a daemon thread that starts a server again and again": ("""
def work():
    while True:
        with muster.Server() as server: begun.append(1)
started(work); waiting(5)
""", 0),
    "an event loop on a daemon thread": ("""
store = muster.Store(URL)
async def work():
    async def one():
        begun.append(1)
        await store.aio.get('never')
    async def follow():
        async for change in store.aio.watch('a'): pass
    await asyncio.gather(*[one() for _ in range(10)], follow())
started(lambda: asyncio.run(work())); waiting(10)
""", 0),
    "an event loop that is left with tasks": ("""
store = muster.Store(URL)
async def work():
    task = asyncio.ensure_future(store.aio.get('never'))
    await asyncio.sleep(0.01)
asyncio.run(work())
""", 0),
    "an event loop that is never closed": ("""
store = muster.Store(URL)
loop = asyncio.new_event_loop()
loop.run_until_complete(store.aio.set('a', 'b'))
""", 0),
    "a thread that is waited for and ends its work": ("""
store = muster.Store(URL)
def work():
    time.sleep(0.1)
    store.set('late', 'b')
    print(store.get('late').decode())
threading.Thread(target=work).start()
""", 0),
    "an atexit function that uses the store": ("""
store = muster.Store(URL)
atexit.register(lambda: print(store.get('there', wait=False) if store.check('there') else 'b'))
""", 0),
    "an atexit function that comes after the end of the store": ("""
def late():
    try: store.get('a')
    except muster.errors.Closed as error: print('b')
    try: muster.Store('hash:').set('a', 'b')
    except muster.MusterError: pass
import sys
atexit._clear(); atexit.register(late)
from muster import _runtime
atexit.register(_runtime._at_exit)
store = muster.Store(URL)
""", 0),
    "Ctrl-C in an open": ("""
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try: muster.Store('tcp://127.0.0.1:1', connect_timeout=60)
except KeyboardInterrupt: sys.exit(5)
""", 5),
    "Ctrl-C in an open in a runtime of its own": ("""
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    with muster.Runtime() as runtime:
        muster.Store('tcp://127.0.0.1:1', connect_timeout=60, runtime=runtime)
except KeyboardInterrupt: sys.exit(5)
""", 5),
    "an exception": ("store = muster.Store(URL); watch = store.watch('a'); sys.exit(1)", 1),
    "a runtime that was closed": ("""
runtime = muster.Runtime()
store = muster.Store(URL, runtime=runtime)
watch = store.watch('a')
runtime.close()
print('b' if store.closed else 'open')
""", 0),
}


def test_programs() -> None:
    slowest = 0.0
    with harness.Server() as server:
        for name, (program, code) in PROGRAMS.items():
            ended = harness.run(BEGIN + program, server.url, patience=20)
            good = (ended.code, ended.err) == (code, "") and ended.out in ("", "b\n")
            checks.ok(good, f"{name}: exit code {code}, nothing else said", ended)
            slowest = max(slowest, ended.seconds)
    checks.note(f"the slowest of {len(PROGRAMS)} took {slowest:.2f} s from its start to its end")


def test_session_ends_at_exit() -> None:
    """A store that is open at the end is closed properly, so what is bound to its session goes at
    once and not when the session's grace is over."""
    import muster

    with harness.Server("--session-grace", "60s") as server, muster.Store(server.url) as store:
        with store.watch("bound") as watch:
            harness.run(
                "import sys, muster\nstore = muster.Store(sys.argv[1])\n"
                "store.set('bound', '1', lease=muster.store.SESSION)\n", server.url)
            kinds = [watch.next(10).kind.name, watch.next(10).kind.name]
        checks.equal(kinds, ["CREATED", "EXPIRED"], "the session ended with the program")


harness.main(globals())
