"""A worker for run_hang.py: the ranks meet in a collective, again and again, and in between one of
them, the victim, hangs or is busy in a way of its own.

usage: hang_worker.py DIRECTORY WAYS VICTIM SEED

WAYS is a list with commas. A way that ends by itself or by SIGUSR1 is followed by the next one; one
that cannot end (`skip`, `uneven`, `order`, `size`, `group`) is tried in a round of its own, the first in the
first. SEED chooses how many steps there are before each way, and how long they take.

In the environment: HANG, the seconds after which a job hangs; LONG, how many times that long a busy
way lasts; FROZEN, a control group whose members are frozen.
"""
import asyncio
import atexit
import ctypes
import importlib
import multiprocessing
import os
import pdb
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

HANG = float(os.environ["HANG"])
LONG = float(os.environ.get("LONG", "2"))


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


def hang_freeze():
    with open(os.path.join(os.environ["FROZEN"], "cgroup.procs"), "w", buffering=1) as file:
        file.write("%d\n" % os.getpid())  # here: freeze


class Starved(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        time.sleep(1000)


def leave():
    """Ends without what PyTorch 1.13 does to its threads at the end, which may end in an abort."""
    sys.stdout.flush()
    os._exit(0)


def end_late():
    try:
        hang_sleep()
    except Released:
        leave()


def hang_teardown():
    atexit.register(end_late)  # the last way: the others end


def hang_loader():
    loader = iter(torch.utils.data.DataLoader(Starved(), num_workers=1))
    next(loader)  # here: loader


# --- what only looks like it ---------------------------------------------------------------------


def until():
    return time.monotonic() + LONG * HANG


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
                    "while time.monotonic() < end: pass" % (LONG * HANG)], check=True)


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
""", str(os.getpid()), str(LONG * HANG)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    time.sleep((LONG - 0.5) * HANG)
    child.wait()


def busy_import():
    """Modules of a slow disk, one after the other."""
    end = until()
    sys.path.insert(0, sys.argv[1])
    i = 0
    while time.monotonic() < end:
        i += 1
        with open(os.path.join(sys.argv[1], "slow%d.py" % i), "w") as file:
            file.write("import time\ntime.sleep(%f)\n%s" % (HANG / 4, "x = 1\n" * 4096))
        importlib.import_module("slow%d" % i)


def busy_compile():
    """As torch.compile does: compilers in a pool of processes, which the main thread waits for."""
    with multiprocessing.Pool(1) as pool:
        pool.map(burn, [LONG * HANG])


def burn(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return int(LONG * 8)

    def __getitem__(self, i):
        burn(HANG / 16)
        time.sleep(HANG / 16)
        return i


def busy_loading():
    for _ in torch.utils.data.DataLoader(Slow(), num_workers=1, batch_size=4):
        pass


def busy_download():
    """16 KiB a quarter of the hang time, from another process."""
    here, there = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    sys.stdout.write("x" * 16384)
    sys.stdout.flush()
    time.sleep(float(sys.argv[2]))
""", str(LONG * HANG), str(HANG / 4)], stdout=there)
    there.close()
    while here.recv(65536):
        pass
    child.wait()


def busy_sync():
    """A checkpoint that goes to the disk at once."""
    end = until()
    with open(os.path.join(sys.argv[1], "synced"), "wb") as file:
        while time.monotonic() < end:
            file.write(b"x" * (1 << 20))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(HANG / 4)


def busy_thread():
    """The main thread waits for one that computes."""
    thread = threading.Thread(target=burn, args=(LONG * HANG,))
    thread.start()
    thread.join()


def busy_saver():
    """A process of its own writes the checkpoint."""
    process = multiprocessing.Process(target=busy_checkpoint)
    process.start()
    process.join()


def busy_prompt():
    """Somebody is asked at a prompt of the debugger, and thinks."""
    reader, writer = os.pipe()
    timer = threading.Timer(LONG * HANG, os.write, (writer, b"continue\n"))
    timer.start()
    debugger = pdb.Pdb(stdin=os.fdopen(reader), stdout=open(os.devnull, "w"), nosigint=True)
    debugger.set_trace()
    timer.join()


def busy_server():
    """All wait for requests."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        timer = threading.Timer(LONG * HANG, socket.create_connection, (server.getsockname(),))
        timer.start()
        server.accept()[0].close()


def busy_loop():
    """All wait in a loop of asyncio."""
    async def serve():
        await asyncio.sleep(LONG * HANG)

    asyncio.run(serve())


def busy_store():
    """What the others see of it is in the store."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    end = until()
    i = 0
    while time.monotonic() < end:
        i += 1
        store.set("busy", str(i))
        time.sleep(HANG / 4)


def busy_places():
    """It sleeps, now here, now there: as a script that waits for several things."""
    end = until()
    while time.monotonic() < end:
        time.sleep(HANG / 4)
        time.sleep(HANG / 4)


# --- the collective ------------------------------------------------------------------------------


def meet(tensor, group=None):
    dist.all_reduce(tensor, group=group)  # here: meet


ALIKE = ("busy_alike", "busy_server", "busy_loop")


def train(way):
    """Some steps, as many and as long on all ranks."""
    rng = random.Random("%s %s" % (sys.argv[4], way))
    end = time.monotonic() + rng.random() * HANG / 2
    tensor = torch.ones(4)
    for _ in range(rng.randrange(1, 30)):
        meet(tensor)
        time.sleep(max(0.0, min(end - time.monotonic(), 0.05)))


def in_turn(ways, victim):
    tensor = torch.ones(4)
    for way in ways:
        train(way)
        if dist.get_rank() == victim:
            say("%s %d %f" % (way, os.getpid(), time.time()))
            try:
                globals()[way]()
            except Released:
                pass
        elif way in ALIKE:
            globals()[way]()
        meet(tensor)
        if dist.get_rank() == victim:
            say("done")


def busy_alike():
    time.sleep(HANG * 0.6)


def once(way, victim):
    tensor = torch.ones(4)
    other = dist.new_group(range(dist.get_world_size()))
    is_victim = dist.get_rank() == victim
    train(way)
    if is_victim:
        say("%s %d %f" % (way, os.getpid(), time.time()))
    if way == "skip":
        if not is_victim:
            meet(tensor)
        dist.barrier(group=other)  # here: skip
    elif way == "uneven":
        # It has less data than the others, whose backward passes wait for its part.
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        if not is_victim:
            model(tensor).sum().backward()  # here: backward
        dist.barrier(group=other)  # here: uneven
    elif way == "order":
        if is_victim:
            dist.all_reduce(tensor, group=other)  # here: order
        meet(tensor)
        dist.all_reduce(tensor, group=other)
    elif way == "size":
        # As with gradients in buckets: what is larger needs one collective more.
        for bucket in torch.ones(8 if is_victim else 4).split(4):
            dist.all_reduce(bucket)  # here: size
        dist.barrier(group=other)
    elif way == "group":
        # The half without the victim goes on, and waits elsewhere than the victim's own half.
        half = dist.get_world_size() // 2
        halves = [dist.new_group(range(half)), dist.new_group(range(half, 2 * half))]
        if is_victim:
            time.sleep(1000)  # here: group
        meet(tensor, halves[dist.get_rank() // half])
        dist.barrier(group=other)


def main():
    ways, victim = sys.argv[2].split(","), int(sys.argv[3])
    signal.signal(signal.SIGUSR1, release)
    dist.init_process_group("gloo")
    if not ways[0].startswith(("hang_", "busy_")):
        restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if restart < len(ways):
            once(ways[restart], victim)
    else:
        in_turn(ways, victim)
    if ways[-1] != "hang_teardown" or dist.get_rank() != victim:
        leave()


main()
