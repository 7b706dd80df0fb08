# The zygote of `muster run --warm`: an interpreter that imports modules once and forks standbys.
# docs/warm.md explains it; src/transport/uv_standby.c is the other end of its socket.
#
# This text runs twice. First as `PYTHON FLAGS -c LOADER TEXT MODULES REST...`: it checks that this
# interpreter will obey, and executes it again as `PYTHON FLAGS REST...`, the worker's own command,
# with this text as the module sitecustomize, which Python imports just before the script. There it
# imports the modules, and forks. A standby waits until it becomes a worker, takes over what a
# worker has, and returns: Python goes on to the script, as if nothing had been. The script must
# never run in the zygote, so whatever goes wrong here ends the process.
import gc
import os
import sys

SOCKET = 3  # seqpacket: see src/transport/uv_standby.c
ARCHIVE = 9  # has this text in it, at the second run
ASIDE = 16  # descriptors from here on are out of the way
SENTINEL = 1023
VAULT = 1000  # the first


def give_up(socket, how, why):
    """`how`: "refused", for good, or "failed", perhaps only now."""
    try:
        socket.send(f"{how} {why}".encode("utf-8", "replace")[:900])
    finally:
        os._exit(1)


def explain(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- the first run: nothing of the worker's is loaded ---------------------------------------------


def find_wrapped():
    """What a wrapper around the interpreter has done to the environment that the agent gave it:
    variables that it set, and names of those that it removed."""
    given = os.environb.pop(b"MUSTER_WARM_ENV", None)
    if given is None:
        return {}, []
    known = dict(variable.partition(b"=")[::2] for variable in given.split(b"\1"))
    own = {name: value for name, value in os.environb.items() if name != b"MUSTER_CHILD"}
    changed = {name: value for name, value in own.items() if known.get(name) != value}
    return changed, [name for name in known if name not in own]


def boot():
    import io
    import zipfile
    from _socket import socket

    agent = socket(fileno=SOCKET)
    try:
        text, modules, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
        if sys.version_info < (3, 9):
            give_up(agent, "refused", f"Python {sys.version.split()[0]} is older than 3.9")
        if sys.flags.no_site or sys.flags.ignore_environment:
            give_up(agent, "refused", "Python was started with -E, -I or -S")
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().split(b"\0")[:-1]
        prefix = words[: words.index(os.fsencode(text)) - 2]
        wrapped = find_wrapped()
        old = os.environ.get("PYTHONPATH")
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            given = f"GIVEN = {(modules, len(rest), old, wrapped)!r}\n"
            file.writestr("sitecustomize.py", given + text)
        file = os.memfd_create("muster-zygote")
        os.write(file, archive.getvalue())
        os.dup2(file, ARCHIVE)
        path = f"/proc/self/fd/{ARCHIVE}"
        os.environ["PYTHONPATH"] = f"{path}:{old}" if old else path
        os.set_inheritable(SOCKET, True)
        os.execv(sys.executable, prefix + [os.fsencode(word) for word in rest])
    except BaseException as error:
        give_up(agent, "refused", explain(error))


# --- the zygote -----------------------------------------------------------------------------------


def script_folder():
    """What Python will put in front of sys.path; None: nothing."""
    name = sys.argv[0]
    if getattr(sys.flags, "safe_path", False):
        return None
    if name in ("-c", "-m"):
        return "" if name == "-c" else os.getcwd()
    return name if os.path.isdir(name) else os.path.dirname(os.path.realpath(name))


def thread_names():
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            names.append(file.read().strip())
    return names


def find_obstacle():
    """Why processes that are forked from this one would not work, or None."""
    if len(thread_names()) > 1:
        # Libraries that know of forks end their threads before one, and start them when needed.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    names = thread_names()
    if len(names) > 1:
        return f"an import started {len(names) - 1} threads ({names[-1]})"
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                return "an import initialised CUDA"
        except OSError:
            pass  # the listing's own
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is not getattr(sys, f"__{name}__"):
            return f"an import replaced sys.{name}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import initialised CUDA"
    return None


def import_modules(modules):
    """What they print is kept in files, for every standby to print when it becomes a worker."""
    import importlib

    folder = script_folder()
    said = [os.memfd_create(name) for name in ("stdout", "stderr")]
    for i, fd in enumerate(said):
        os.dup2(fd, i + 1)
    if folder is not None:
        sys.path.insert(0, folder)
    for name in modules.split(","):
        importlib.import_module(name)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    return [(os.pread(fd, 1 << 20, 0), os.close(fd))[0] for fd in said]


def fork_standbys(agent):
    """Returns in a standby, with its parent's pid."""
    while True:
        wanted = agent.recv(16)
        if not wanted:
            os._exit(0)
        for _ in range(int(wanted)):
            try:
                pid = os.fork()
            except OSError as error:
                give_up(agent, "failed", f"it cannot fork: {error.strerror}")
            if pid == 0:
                parent = os.getpid()
                try:
                    pid = os.fork()
                except OSError:
                    os._exit(1)
                if pid != 0:
                    os._exit(0)
                return parent
            os.waitpid(pid, 0)


# --- a standby ------------------------------------------------------------------------------------


def wait_for_go(agent, parent, libc):
    """Tells the agent that a standby is here, and waits: the message, and descriptors."""
    import time
    from _socket import AF_UNIX, CMSG_SPACE, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socketpair

    os.setsid()
    while os.getppid() == parent:
        time.sleep(0.0002)  # the agent becomes its parent when this one has ended
    libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    own, other = socketpair(AF_UNIX, SOCK_SEQPACKET)
    # The agent is gone if this fails.
    agent.sendmsg(
        [b"ready %d" % os.getpid()],
        [(SOL_SOCKET, SCM_RIGHTS, other.fileno().to_bytes(4, sys.byteorder))],
    )
    other.close()
    agent.close()
    word, extra, _, _ = own.recvmsg(64, CMSG_SPACE(4 * 16))
    if not word:
        os._exit(0)
    own.close()
    data = extra[0][2]
    fds = [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]
    return word, fds


class Step(Exception):
    """A step of becoming a worker that failed: the numbers are those of enum mu_exec_step."""

    CWD, OPEN, DESCRIPTORS, CPUS, BECOME = 2, 3, 4, 5, 8

    def __init__(self, step, subject, error):
        super().__init__(step, subject, error)
        self.report = (
            step.to_bytes(4, sys.byteorder)
            + (error.errno or 22).to_bytes(4, sys.byteorder)
            + os.fsencode(subject)[:200]
        )


def open_stream(i, spec):
    import fcntl

    modes = {b"r": os.O_RDONLY, b"w": os.O_WRONLY, b"c": os.O_TRUNC, b"a": os.O_APPEND}
    how, path = spec[:1], spec[1:]
    flags = modes[how] | (os.O_WRONLY | os.O_CREAT if how in b"ca" else 0)
    try:
        fd = os.open(path, flags | os.O_NOCTTY, 0o666)
    except OSError as error:
        raise Step(Step.OPEN, path, error) from None
    aside = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ASIDE)
    os.close(fd)
    return aside


def place_descriptors(kinds, fds, specs):
    """`kinds` says what the descriptors are: a stream, the channel, the sentinel, a vault."""
    import resource

    for i, spec in enumerate(specs):
        if spec:
            kinds += b"%d" % i
            fds.append(open_stream(i, spec))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    places = {b"c": SOCKET, b"s": min(SENTINEL, limit - 1)}
    places.update({b"%c" % (65 + i): VAULT + i for i in range(4)})
    for i, fd in enumerate(fds):
        kind = kinds[i : i + 1]
        place = places[kind] if kind in places else int(kind)
        if place < VAULT or place < limit:
            os.dup2(fd, place)
        os.close(fd)


def find_imported(before):
    """What the imports have done to the environment: name, value before, value now; None: unset."""
    now = dict(os.environb)
    return [
        (name, before.get(name), now.get(name))
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def replace_environment(variables, wrapped, imported):
    """Returns it as it is then, in the order of a new process. What an import did to a variable, it
    would have done to the worker's as well, if that is the one that it met."""
    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    os.environb.update(wrapped[0])
    for name in wrapped[1]:
        os.environb.pop(name, None)
    for name, before, now in imported:
        if os.environb.get(name) == before:
            if now is None:
                del os.environb[name]
            else:
                os.environb[name] = now
    return [name + b"=" + value for name, value in os.environb.items()]


def show_as(argv, variables, libc):
    """Lets /proc show this process as the worker; the agent knows its children by a variable."""
    import ctypes

    with open("/proc/self/stat", "rb") as file:
        stat = [int(word) for word in file.read().rpartition(b")")[2].split()[1:]]
    args, env = (b"".join(word + b"\0" for word in words) for words in (argv, variables))
    text = ctypes.create_string_buffer(args + env)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))  # it is there until the end
    at = ctypes.addressof(text)
    libc.sbrk.restype = ctypes.c_void_p
    code, stack, data, brk = stat[22:24], stat[24], stat[41:43], stat[43]
    places = [at, at + len(args), at + len(args), at + len(args) + len(env)]
    words = [*code, *data, brk, libc.sbrk(0), stack, *places, 0, 0xFFFFFFFF << 32]
    table = (ctypes.c_uint64 * len(words))(*words)
    if libc.prctl(35, 14, table, ctypes.c_ulong(ctypes.sizeof(table)), 0) != 0:
        # PR_SET_MM_MAP is not everywhere; what was there can be overwritten.
        start, end = stat[46], stat[47]
        ctypes.memmove(start, env.ljust(end - start, b"\0"), end - start)


def open_standard(name, fd, mode):
    """As Python does at its start, with the encoding that it chose."""
    import io

    old = getattr(sys, f"__{name}__")
    unbuffered = sys.__stdout__.write_through
    buffered = mode == "r" or not unbuffered
    try:
        file = open(fd, mode + "b", -1 if buffered else 0, closefd=False)
    except OSError:
        return None
    raw = file.raw if buffered else file
    raw.name = f"<{name}>"
    text = io.TextIOWrapper(
        file,
        old.encoding,
        old.errors,
        "\n",
        line_buffering=not unbuffered and (raw.isatty() or fd == 2),
        write_through=unbuffered,
    )
    text.mode = mode
    return text


def renew():
    """Renews what belongs to one process. What modules drew at their import must not be the same in
    all workers; Python's own random does that by itself."""
    gc.unfreeze()  # or its finalizers would not run at the end
    threading = sys.modules.get("threading")
    if hasattr(threading, "main_thread") and hasattr(threading.Thread, "_set_native_id"):
        threading.main_thread()._set_native_id()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def become_worker(word, fds, said, words_given, wrapped, imported, libc):
    import errno
    import fcntl

    fds = [(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ASIDE), os.close(fd))[0] for fd in fds]
    plan, report, fds = fds[0], fds[1], fds[2:]
    try:
        with open(plan, "rb") as file:
            file.seek(0)
            fields = file.read().split(b"\0")[:-1]
        specs, (cwd, cpus, death, count) = fields[:3], fields[3:7]
        argv, variables = fields[7 : 7 + int(count)], fields[7 + int(count) :]
        libc.prctl(1, int(death), 0, 0, 0)
        try:
            if cpus:
                os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(b",")])
        except OSError as error:
            raise Step(Step.CPUS, "", error) from None
        try:
            place_descriptors(word.rstrip(b"."), fds, specs)
        except OSError as error:
            raise Step(Step.DESCRIPTORS, "", error) from None
        try:
            if cwd:
                os.chdir(cwd)
        except OSError as error:
            raise Step(Step.CWD, cwd, error) from None
        variables = replace_environment(variables, wrapped, imported)
        show_as(argv, variables, libc)
        if words_given > 0:
            tail = [os.fsdecode(arg) for arg in argv[len(argv) - words_given :]]
            sys.argv[1:] = tail[len(tail) - len(sys.argv) + 1 :]
            if hasattr(sys, "orig_argv"):
                sys.orig_argv[len(sys.orig_argv) - words_given :] = tail
        modes = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
        streams = [open_standard(name, i, mode) for i, (name, mode) in enumerate(modes)]
        for (name, _), stream in zip(modes, streams):
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        renew()
        for i, text in enumerate(said):
            if text:
                os.write(i + 1, text)
    except BaseException as error:
        if not isinstance(error, Step):
            error = Step(Step.BECOME, explain(error), OSError(errno.EPROTO, ""))
        os.write(report, error.report)
        os._exit(127)
    os.close(report)


def serve(modules, words_given, python_path, wrapped):
    """Returns in a standby that has become a worker."""
    import importlib
    from _socket import socket

    agent = socket(fileno=SOCKET)
    try:
        import ctypes

        for path in [path for path in sys.path if path.startswith("/proc/self/fd/")]:
            sys.path.remove(path)
            sys.path_importer_cache.pop(path, None)
        os.close(ARCHIVE)
        os.set_inheritable(SOCKET, False)
        if python_path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = python_path
        libc = ctypes.CDLL(None)
        before = dict(os.environb)
        said = import_modules(modules)
        imported = find_imported(before)
        obstacle = find_obstacle()
        if obstacle is not None:
            give_up(agent, "refused", obstacle)
        gc.collect()
        gc.freeze()
        agent.send(b"imported")
        parent = fork_standbys(agent)
    except BaseException as error:
        give_up(agent, "refused", explain(error))
    word, fds = wait_for_go(agent, parent, libc)
    become_worker(word, fds, said, words_given, wrapped, imported, libc)
    importlib.invalidate_caches()


if __name__ == "__main__":
    boot()
else:
    try:
        serve(*GIVEN)
    except BaseException:
        os._exit(125)
    # The sitecustomize of this Python, if there is one; site takes the error for "there is none".
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize
    except BaseException:
        sys.modules["sitecustomize"] = own  # who imported it removes it
        raise
