#!/usr/bin/python3
"""fork() in every state: the parent goes on, the child has its own, and what it inherited says
clearly that it is dead."""

import harness

checks = harness.checks

BEGIN = """
import asyncio, gc, os, signal, sys, threading, time
import muster
URL = sys.argv[1]

def child(work):
    # Runs it in a child that ends as programs do; its words come first.
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except Exception:
            import traceback
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

def uses_its_own():
    with muster.Store(URL) as own:
        own.add('n', 1)
        assert own.get('n') is not None
        asyncio.run(own.aio.set('async', '1'))
        with own.watch('n') as watch:
            own.add('n', 1)
            watch.next(5)

def is_dead(call, what):
    try:
        call()
    except muster.errors.Closed as error:
        assert 'fork' in str(error) and 'child' in str(error), error
    else:
        raise AssertionError(what + ' lives on')

def goes_on(store):
    store.set('after', 'x')
    assert store.get('after') == b'x'
"""

PROGRAMS = {
    "before anything is opened": """
child(uses_its_own)
goes_on(muster.Store(URL))
""",
    "with an open store": """
store = muster.Store(URL)
def work():
    is_dead(lambda: store.get('a'), 'get')
    is_dead(lambda: store.watch('a'), 'watch')
    is_dead(lambda: store.timeout, 'timeout')
    is_dead(lambda: asyncio.run(store.aio.get('a')), 'aio')
    is_dead(lambda: store.lease(5), 'lease')
    store.close(); store.close()
    uses_its_own()
child(work)
goes_on(store)
""",
    "a child that forgets what it inherited": """
store = muster.Store(URL)
server = muster.Server()
watch = store.watch('a')
lease = store.lease(30).keep_alive()
def work():
    global store, server, watch, lease
    del store, server, watch, lease
    gc.collect()
    uses_its_own()
child(work)
goes_on(store)
store.set('a', '1')
assert watch.next(5).value == b'1'
lease.keep()
goes_on(muster.Store(server.url))
""",
    "with a server": """
server = muster.Server()
store = muster.Store(server.url)
def work():
    is_dead(lambda: server.port, 'server')
    server.close()
    with muster.Store(server_url) as inner: goes_on(inner)
server_url = server.url
child(work)
goes_on(store)
""",
    "a runtime of its own": """
runtime = muster.Runtime()
store = muster.Store(URL, runtime=runtime)
def work():
    is_dead(lambda: muster.Store(URL, runtime=runtime), 'runtime')
    runtime.close()
    with muster.Runtime() as own, muster.Store(URL, runtime=own) as inner: goes_on(inner)
child(work)
goes_on(store)
runtime.close()
""",
    "with threads in every call": """
store = muster.Store(URL)
stop = []
def work_on():
    while not stop:
        store.set('w', 'x'); store.get('w')
        with muster.Store('hash:') as other: other.set('a', 'b')
def wait_on():
    try: store.get('never')
    except muster.errors.Closed: pass
def follow():
    try:
        for change in store.watch('w'): pass
    except muster.errors.Closed: pass
threads = [threading.Thread(target=t) for t in (work_on, work_on, work_on, wait_on, follow)]
for thread in threads: thread.start()
for i in range(20):
    def work():
        is_dead(lambda: store.get('w'), 'get')
        uses_its_own()
    child(work)
stop.append(1)
for thread in threads[:3]: thread.join()  # they do not expect the end of the store
goes_on(store)
store.close()
for thread in threads: thread.join()
""",
    "from another thread": """
store = muster.Store(URL)
def forks():
    def work():
        is_dead(lambda: store.get('w'), 'get')
        uses_its_own()
        # This thread is the child's main one: Ctrl-C works in it.
        own = muster.Store(URL)
        # (Python 3.13.0 itself may miss signals there, in a loop of its own as well.)
        probe = sys.version_info[:2] != (3, 13)
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try: own.get('never' if probe else 'n')
        except KeyboardInterrupt: pass
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try: work(); os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
thread = threading.Thread(target=forks); thread.start(); thread.join()
goes_on(store)
""",
    "in a signal's handler, in the midst of an operation": """
store = muster.Store(URL)
pids = []
def handler(*_):
    pids.append(os.fork())
    if pids[-1] == 0:
        try: is_dead(lambda: store.get('x'), 'get'); uses_its_own(); os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try: store.get('never', timeout=0.5)
except muster.errors.TimedOut: pass
assert os.waitpid(pids[0], 0)[1] == 0
goes_on(store)
""",
    "with an event loop": """
store = muster.Store(URL)
async def work():
    await store.aio.set('a', '1')
    pid = os.fork()
    if pid == 0:
        try:
            store.close()
            # asyncio's loop does not survive fork(); a new one, on another thread, does its work.
            thread = threading.Thread(target=uses_its_own)
            thread.start(); thread.join()
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    for i in range(100): await store.aio.set('a', '1')
asyncio.run(work())
goes_on(store)
""",
    "a child of a child": """
store = muster.Store(URL)
def work():
    own = muster.Store(URL)
    def deeper():
        is_dead(lambda: own.get('a'), 'own')
        is_dead(lambda: store.get('a'), 'store')
        uses_its_own()
    child(deeper)
    goes_on(own)
child(work)
goes_on(store)
""",
}

# Programs in files: a child that is spawned imports them.
PROCESSES = """
import multiprocessing, sys
import muster

def work(url, number):
    with muster.Store(url) as store:
        store.barrier('all', 4, timeout=30)
        return store.add('sum', number)

def fails(url):
    raise_it = muster.Store(url).get('absent', wait=False)

if __name__ == '__main__':
    url, method = sys.argv[1:]
    store = muster.Store(url)
    store.set('before', '1')
    context = multiprocessing.get_context(method)
    with context.Pool(4) as pool:
        sums = pool.starmap(work, [(url, n) for n in (1, 2, 3, 4)], chunksize=1)
        assert max(sums) == 10, sums
        try:
            pool.apply(fails, (url,))
        except muster.errors.NotFound as error:
            assert error.code == -10006 and 'absent' in str(error), error
        else:
            raise AssertionError('no error came through')
        pool.close(); pool.join()
    assert store.get('sum') == b'10'
    print('done')
"""


def test_fork() -> None:
    for name, program in PROGRAMS.items():
        with harness.Server() as server:
            # Newer Pythons warn of a fork with threads, which is what is tested.
            ended = harness.run("import warnings; warnings.simplefilter('ignore')\n" + BEGIN +
                                program, server.url, patience=60)
        checks.ok((ended.code, ended.err) == (0, ""), f"fork {name}", ended)


def test_multiprocessing() -> None:
    import os
    import subprocess
    import sys

    with harness.Scratch() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PROCESSES)
        for method in ("fork", "spawn", "forkserver"):
            with harness.Server() as server:
                process = subprocess.Popen(
                    [sys.executable, "-W", "ignore", path, server.url, method],
                    env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    universal_newlines=True)
                ended = harness.finish(process, 60)
            checks.ok((ended.code, ended.out, ended.err) == (0, "done\n", ""),
                      f"multiprocessing: {method}", ended)


harness.main(globals())
