"""The world of a test with hosts: namespaces by system calls, a pid namespace in which the test and
all that it starts lives, and what is taken away when it ends or was killed.
"""
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile

SKIP = 77
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWTIME, NEWUTS, NEWUSER, NEWPID, NEWNET = (0x20000, 0x80, 0x4000000, 0x10000000, 0x20000000,
                                                   0x40000000)
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PREFIX = "muster-rig-"
CGROUPS = "/sys/fs/cgroup"


def call(function, *arguments):
    """A function of the C library that says -1 for a failure."""
    encoded = [a.encode() if isinstance(a, str) else a for a in arguments]
    if getattr(libc, function)(*encoded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (function, os.strerror(number)))


def skip(why):
    print("skipped: " + why, flush=True)
    sys.exit(SKIP)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


place = None  # the folder of this program; its control groups have the same name


def memory_groups():
    """Where control groups for memory are made: (folder, version), or None."""
    if os.path.exists(CGROUPS + "/memory/memory.limit_in_bytes"):
        return CGROUPS + "/memory", 1
    try:
        with open(CGROUPS + "/cgroup.controllers") as file:
            return (CGROUPS, 2) if "memory" in file.read().split() else None
    except OSError:
        return None


def remove_groups(folder):
    for name in os.listdir(folder):
        if os.path.isdir(os.path.join(folder, name)):
            remove_groups(os.path.join(folder, name))
    os.rmdir(folder)


def sweep(folder):
    """Takes away what a program left in the file system, its folder last."""
    groups = memory_groups()
    group = groups and os.path.join(groups[0], os.path.basename(folder))
    if group and os.path.isdir(group):
        try:
            remove_groups(group)
        except OSError:
            return  # its last process is still ending: that is for the next sweeper
    shutil.rmtree(folder, ignore_errors=True)


def sweep_the_dead():
    """The living hold a lock on their folder."""
    for name in os.listdir(tempfile.gettempdir()):
        folder = os.path.join(tempfile.gettempdir(), name)
        if name.startswith(PREFIX):
            try:
                with Locked(folder):
                    sweep(folder)
            except OSError:
                pass


class Locked:
    def __init__(self, folder):
        self.fd = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.fd)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


def make_folder():
    """The folder of this program's files, held by a lock as long as the program runs."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        try:
            Locked(folder)
        except OSError:
            continue
        if os.path.isdir(folder):  # no sweeper came before the lock
            return folder


def exit_code(status):
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def stand_guard(init, folder):
    """The program as others see it: it waits for the rest and cleans up. That dies with it."""
    def end(number, _):
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        sweep(folder)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    _, status = os.waitpid(init, 0)
    sweep(folder)
    os._exit(exit_code(status))


def be_init(test):
    """The first process of the pid namespace: it buries orphans, and ends with the test."""
    while True:
        pid, status = os.wait()
        if pid == test:
            os._exit(exit_code(status))


def enter():
    """Goes on in a pid namespace, below a process that guards it."""
    global place
    if place:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    sweep_the_dead()
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid != 0:
            call("unshare", NEWUSER)
            write("/proc/self/setgroups", "deny")
            write("/proc/self/uid_map", "0 %d 1" % uid)
            write("/proc/self/gid_map", "0 %d 1" % gid)
        call("unshare", NEWPID | NEWNS)
        call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    except OSError as error:
        skip("this system lets us make no namespaces (%s)" % error)
    libc.unshare(NEWTIME)  # one of ours to come back to; ForChildren says when there are none
    folder = make_folder()
    init = os.fork()
    if init:
        stand_guard(init, folder)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    try:
        call("mount", "proc", "/proc", "proc", 0, None)
    except OSError as error:
        skip("this system lets us mount no /proc of our own (%s)" % error)
    test = os.fork()
    if test:
        be_init(test)
    place = folder
