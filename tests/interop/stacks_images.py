#!/usr/bin/python3
"""Records images of real interpreters (tests/lib/stacks_image.h) into the corpus of fuzz_stacks_python,
where tests/unit/proto/stacks/test_python.c reads them, too.

    stacks_images.py RECORD --python=COMMAND...

RECORD is build/tests/interop/stacks_record. A COMMAND is as for stacks.py.
"""
import os
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = os.path.join(HERE, "..", "fuzz", "corpus", "stacks_python")
# The unit test knows these names and lines.
PROGRAM = """
import _thread, sys, time
def größe(n):
    if n:
        return größe(n - 1)
    there.release()
    time.sleep(100000)
class Loader:
    def __next__(self):
        return (lambda: größe(2))()
def 名前():
    yield Loader().__next__()
def waiter():
    waits.release()
    lock.acquire()
lock, there, waits = [_thread.allocate_lock() for _ in range(3)]
for each in lock, there, waits:
    each.acquire()
def say():
    there.acquire()
    waits.acquire()
    print(sys.version.split()[0], flush=True)
_thread.start_new_thread(waiter, ())
_thread.start_new_thread(say, ())
for _ in 名前():
    pass
"""


def main():
    record, pythons = sys.argv[1], [a.split("=", 1)[1] for a in sys.argv[2:]]
    for python in pythons:
        code = "exec(compile(%r, '/job/train.py', 'exec'))" % PROGRAM
        with subprocess.Popen(shlex.split(python) + ["-S", "-c", code], stdout=subprocess.PIPE) as child:
            version = child.stdout.readline().decode().strip()
            # The thread that said so is gone, and the others wait.
            while len(os.listdir("/proc/%d/task" % child.pid)) != 2 and child.poll() is None:
                pass
            done = subprocess.run([record, str(child.pid), os.path.join(CORPUS, "image-" + version)], check=False)
            child.kill()
        print(version, "recorded" if done.returncode == 0 else "FAILED")


main()
