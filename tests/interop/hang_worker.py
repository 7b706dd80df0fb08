"""A worker for run_hang.py: the ranks meet in a collective, again and again, and in between one of
them, the victim, hangs or is busy in a way of its own.

usage: hang_worker.py DIRECTORY WAYS VICTIM

WAYS is a list with commas. A way that ends by itself or by SIGUSR1 is followed by the next one; one
that cannot end (`skip`, `order`) is tried in a round of its own, the first in the first.
"""
import atexit
import ctypes
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

HANG = float(os.environ["HANG"])


class Released(Exception):
    pass


def release(number, frame):
    for child in multiprocessing.active_children():
        child.kill()  # else its parent would wait for it
    raise Released()


def say(text):
    """For the test, not for the agent: it would take it for progress."""
    with open(os.path.join(sys.argv[1], "said"), "a") as file:
        file.write(text + "\n")


# --- hangs ---------------------------------------------------------------------------------------


def hang_sleep():
    time.sleep(1000)  # here: sleep


def hang_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # here: lock


def hang_queue():
    queue.Queue().get()  # here: queue


def hang_gil():
    ctypes.PyDLL(None).sleep(1000)  # here: gil


def hang_pipe():
    _, end = os.pipe()
    while True:
        os.write(end, b"x" * 4096)  # here: pipe


def hang_stop():
    os.kill(os.getpid(), signal.SIGSTOP)  # here: stop


class Starved(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        time.sleep(1000)


def hang_teardown():
    atexit.register(hang_sleep)  # the last way: the others end


def hang_loader():
    loader = iter(torch.utils.data.DataLoader(Starved(), num_workers=1))
    next(loader)  # here: loader


# --- what only looks like it ---------------------------------------------------------------------


def until():
    return time.monotonic() + 2 * HANG


def busy_burn():
    end = until()
    while time.monotonic() < end:
        sum(range(1000))


def busy_checkpoint():
    end = until()
    with open(os.path.join(sys.argv[1], "checkpoint"), "wb") as file:
        while time.monotonic() < end:
            file.write(b"x" * 65536)
            file.flush()
            time.sleep(HANG / 8)


def busy_evaluate():
    end = until()
    while time.monotonic() < end:
        print("evaluating", flush=True)
        time.sleep(HANG / 4)


def busy_child():
    subprocess.run([sys.executable, "-c", "import time\nend = time.monotonic() + %f\n"
                    "while time.monotonic() < end: pass" % (2 * HANG)], check=True)


def busy_steps():
    fd = int(os.environ["MUSTER_NOTIFY_FD"])
    end = until()
    step = 0
    while time.monotonic() < end:
        step += 1
        os.write(fd, b"step %d\n" % step)
        time.sleep(HANG / 4)


def busy_debugger():
    """Somebody holds it, and only looks."""
    child = subprocess.Popen([sys.executable, "-c", """
import ctypes, sys, time
libc = ctypes.CDLL(None)
if libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) != 0:
    sys.exit("it may not be traced")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
""", str(os.getpid()), str(2 * HANG)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    time.sleep(1.5 * HANG)
    child.wait()


# --- the collective ------------------------------------------------------------------------------


def meet(tensor, group=None):
    dist.all_reduce(tensor, group=group)  # here: meet


def in_turn(ways, victim):
    tensor = torch.ones(4)
    for way in ways:
        meet(tensor)
        if dist.get_rank() == victim:
            say("%s %d %f" % (way, os.getpid(), time.time()))
            try:
                globals()[way]()
            except Released:
                pass
        elif way == "busy_alike":
            time.sleep(HANG * 0.6)
        meet(tensor)
        if dist.get_rank() == victim:
            say("done")


def busy_alike():
    time.sleep(HANG * 0.6)


def once(way, victim):
    tensor = torch.ones(4)
    other = dist.new_group(range(dist.get_world_size()))
    is_victim = dist.get_rank() == victim
    if is_victim:
        say("%s %d %f" % (way, os.getpid(), time.time()))
    if way == "skip":
        if not is_victim:
            meet(tensor)
        dist.barrier(group=other)  # here: skip
    elif way == "order":
        if is_victim:
            dist.all_reduce(tensor, group=other)  # here: order
        meet(tensor)
        dist.all_reduce(tensor, group=other)


def main():
    ways, victim = sys.argv[2].split(","), int(sys.argv[3])
    signal.signal(signal.SIGUSR1, release)
    dist.init_process_group("gloo")
    if ways[0] in ("skip", "order"):
        restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if restart < len(ways):
            once(ways[restart], victim)
    else:
        in_turn(ways, victim)


main()
