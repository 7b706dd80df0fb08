"""A Python program whose stacks are known: what tests/interop/stacks.py looks at. For Python 3.8 and
later, without anything but the standard library.

    stacks_target.py blocked    threads that wait in all kinds of places; for each line of standard
                                input it says what it sees itself, by sys._current_frames()
    stacks_target.py busy       threads that call, return, raise and yield as fast as they can
    stacks_target.py many       threads that are so many and so deep that not all can be read
    stacks_target.py crowd      more threads than a report has
    stacks_target.py hostile    processes that have written nonsense into their own memory, and stand still
    stacks_target.py forked     a child that was forked by a program with threads, and waits
    stacks_target.py holding    the main thread holds the GIL in C
    stacks_target.py changing   begins processes that fork, exec and exit, and says their numbers
"""
import asyncio
import contextlib
import ctypes
import faulthandler
import json
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

DEEP = 1500
FOREVER = 100000
here = threading.local()


def name_of(code):
    """As muster names it: the qualified name, since there is one."""
    return getattr(code, "co_qualname", code.co_name)


def frames_of(frame):
    seen = []
    while frame is not None:
        seen.append([name_of(frame.f_code), frame.f_code.co_filename, frame.f_lineno or 0])
        frame = frame.f_back
    return seen


def all_frames():
    tids = {t.ident: t.native_id for t in threading.enumerate()}
    return {tids[ident]: frames_of(frame) for ident, frame in sys._current_frames().items() if ident in tids}


# --- places to wait in ---------------------------------------------------------------------------


def in_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def in_queue():
    queue.Queue().get()


def in_socket():
    a, b = socket.socketpair()
    b.recv(1)
    a.close()


def in_sleep():
    while True:
        time.sleep(FOREVER)


def in_recursion(n=DEEP):
    if n == 0:
        in_sleep()
    in_recursion(n - 1)


def in_generator():
    def numbers(n):
        if n == 0:
            in_sleep()
        yield from numbers(n - 1)

    for _ in numbers(5):
        pass


def in_async():
    class Waiter:
        async def wait(self):
            in_sleep()

    async def outer():
        async with contextlib.AsyncExitStack():
            await Waiter().wait()

    asyncio.run(outer())


def in_loop():
    async def quiet():
        await asyncio.sleep(FOREVER)

    asyncio.run(quiet())


def in_callback():
    """Python that C calls: a key function, a lambda, an attribute, a comprehension."""

    class Odd:
        def __getattr__(self, name):
            return [in_sleep() for _ in range(1)]

    sorted([1], key=lambda _: list(map(lambda _: Odd().odd, [1])))


def in_finally():
    try:
        raise ValueError("on purpose")
    except ValueError:
        with contextlib.suppress(KeyError):
            (
                lambda a,
                b: in_sleep()
            )(
                1,
                2
            )


def in_code():
    text = "def %s():\n\n\n    wait()\n\n%s()\n"
    for name, file in (("größe", "<exécuté>"), ("名前", "/データ/学習.py"), ("𐐀𐐁", "/" + "long/" * 400 + "𐐀.py")):
        space = {"wait": lambda: nested.pop()()}
        nested.append(lambda name=name, file=file, space=space: exec(compile(text % (name, name), file, "exec"), space))
    nested.insert(0, in_sleep)
    nested.pop()()


nested = []

# A table of lines with long jumps: many short lines, and a call far behind its function's beginning.
exec("def in_long_table():\n" + "".join("    x%d = %d\n" % (i, i) for i in range(3000)) + "\n" * 300
     + "    in_sleep()\n")


def start(places):
    for place in places:
        # Deep recursion of Python takes the C stack as well, before 3.11.
        threading.stack_size(512 << 20 if place is in_recursion else 16 << 20)
        threading.Thread(target=place, name="at " + place.__name__[3:], daemon=True).start()


def blocked():
    places = [in_lock, in_queue, in_socket, in_sleep, in_recursion, in_generator, in_async, in_loop, in_callback,
              in_finally, in_code, globals()["in_long_table"]]
    sys.setrecursionlimit(DEEP + 500)
    start(places)
    threading.Thread(target=referee, name="referee", daemon=True).start()
    (lambda: in_generator())()


def referee():
    """Says what there is, when asked; the number of its own thread first, as that one is not blocked."""
    print(json.dumps({"pid": os.getpid(), "referee": threading.get_native_id()}), flush=True)
    for line in sys.stdin:
        if line.strip() == "fault":
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            sys.stderr.flush()
            print("{}", flush=True)
        else:
            print(json.dumps(all_frames()), flush=True)
    os._exit(0)


# --- never the same ------------------------------------------------------------------------------


def busy_leaf(n):
    return n * n % 7


def busy_yield(n):
    for i in range(n):
        yield busy_leaf(i)


def busy_raise(n):
    try:
        if n % 2:
            raise KeyError(n)
        return busy_call(n - 1)
    except KeyError:
        return sum(busy_yield(3))


def busy_call(n):
    if n <= 0:
        return sum(busy_yield(4))
    return busy_raise(n - 1) + (lambda: busy_leaf(n))()


def busy():
    print(json.dumps({"pid": os.getpid()}), flush=True)
    sys.setswitchinterval(1e-4)
    for _ in range(3):
        threading.Thread(target=busy_forever, daemon=True).start()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    busy_forever()


def busy_forever():
    n = 0
    while True:
        n += 1
        busy_call(n % 20)


def holding():
    print(json.dumps({"pid": os.getpid()}), flush=True)
    re.match(r"(a+)+$", "a" * 40 + "b")


def many():
    ready = threading.Semaphore(0)

    def deep(n):
        if n == 0:
            ready.release()
            in_sleep()
        deep(n - 1)

    sys.setrecursionlimit(5000)
    threading.stack_size(64 << 20)
    for _ in range(200):
        threading.Thread(target=deep, args=(2 * DEEP,), daemon=True).start()
    for _ in range(200):
        ready.acquire()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    sys.stdin.read()


def crowd():
    threading.stack_size(64 << 10)
    for _ in range(400):
        threading.Thread(target=in_sleep, daemon=True).start()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    sys.stdin.read()


def forked():
    threading.Thread(target=in_sleep, daemon=True).start()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        in_sleep()
    print(json.dumps({"pid": os.getpid(), "child": pid}), flush=True)
    sys.stdin.read()
    os.kill(pid, signal.SIGKILL)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def word(addr, value):
    ctypes.c_uint64.from_address(addr).value = value & (1 << 64) - 1


def garble(state, n):
    """Nonsense of all kinds. Nothing may run here afterwards."""
    code = id(garble.__code__)
    pick = random.Random(n)
    if n == 0:
        word(state + 8, state)  # a list of threads without an end
    elif n == 1:
        word(id(garble.__code__.co_filename) + 16, 1 << 30)  # a name of 1 GiB
    elif n == 2:
        word(id(garble.__code__.co_filename) + 16, -1)
    else:
        where = (state, code, id(garble.__code__.co_name), id(sys._getframe()))[n % 4]
        for _ in range(1 + n % 7):
            word(where + 8 * pick.randrange(2, 24), pick.choice((state, code, where, 1, 1 << 63, pick.getrandbits(64))))


def hostile():
    """Each child garbles itself and stops; the parent only lists and ends them."""
    ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
    children = []
    for n in range(200):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            # Some do not come as far as to stop, and must not go on for ever.
            signal.alarm(3)
            state = ctypes.pythonapi.PyThreadState_Get()
            stop = ctypes.PyDLL(None)["raise"]
            stop.argtypes = [ctypes.c_int]
            garble(state, n)
            stop(signal.SIGSTOP)
            os._exit(1)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, os.WUNTRACED)
    print(json.dumps({"pid": os.getpid(), "children": children}), flush=True)
    sys.stdin.read()
    for pid in children:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def changing():
    """Each of its children lives for a moment only, and most become something else."""
    kinds = ["pass", "import threading; [threading.Thread(target=len, args=((),)).start() for _ in range(9)]",
             "import os; os.execv('/bin/true', ['true'])", "import os, sys; os.fork(); os.fork()",
             "import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', 'pass'])"]
    n = 0
    print(json.dumps({"pid": os.getpid()}), flush=True)
    while True:
        child = subprocess.Popen([sys.executable, "-S", "-c", kinds[n % len(kinds)]], stdin=subprocess.DEVNULL)
        print(child.pid, flush=True)
        child.wait()
        n += 1


if __name__ == "__main__":
    {"blocked": blocked, "busy": busy, "holding": holding, "hostile": hostile, "many": many, "crowd": crowd, "forked": forked, "changing": changing}[sys.argv[1]]()
