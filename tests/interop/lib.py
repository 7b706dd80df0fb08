"""What the interoperability tests share: servers as child processes, PyTorch's store protocol as
raw bytes, and a way to say what was checked.

The bytes are written here by hand, from the protocol and not from muster's own code, so that a
mistake made in both client and server of muster is still seen.
"""
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "127.0.0.1"
# Seconds, for what always comes: on a machine with much else to do, it comes late.
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "60"))

# Whoever starts the tests under nohup, or in a shell's background, has some signals ignored; a shell
# that a test starts could not trap them then.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def muster_path(argv=None):
    """build/muster: from the command line, the environment, or the usual place."""
    argv = sys.argv if argv is None else argv
    for arg in argv[1:]:
        if not arg.startswith("-") and os.path.basename(arg).startswith("muster"):
            return os.path.abspath(arg)
    path = os.environ.get("MUSTER") or os.path.join(HERE, "..", "..", "build", "muster")
    return os.path.abspath(path)


def option(name, default):
    """The value of `--name=VALUE`, in the type of the default."""
    for arg in sys.argv[1:]:
        if arg.startswith("--" + name + "="):
            return type(default)(arg.split("=", 1)[1])
    return default


SKIP = 77


def beyond_loopback():
    """Two addresses of this host that are not loopback's, of which the second may be None. The
    program begins again in a network of its own, if the system lets it make one, in which nobody
    else is; else it is the address of this host. With neither the test ends as skipped."""
    addresses = ("10.77.0.1", "10.78.0.1")
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    if os.environ.get("MUSTER_TEST_NETWORK"):
        return addresses
    probe = subprocess.run(unshare + ["ip", "link", "set", "lo", "up"], stderr=subprocess.DEVNULL,
                           check=False)
    if probe.returncode == 0:
        os.environ["MUSTER_TEST_NETWORK"] = "own"
        setup = "ip link set lo up; ip addr add %s/32 dev lo; ip addr add %s/32 dev lo; exec \"$@\""
        os.execvp("unshare", unshare + ["sh", "-c", setup % addresses, "sh", sys.executable] +
                  sys.argv)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            return s.getsockname()[0], None
        except OSError:
            print("skipped: this host has no address but loopback's", flush=True)
            sys.exit(SKIP)


claims = []  # held until this process ends


def free_port():
    """A port that is free and stays so, for those who cannot find one by themselves. The system
    gives none of these to connections and listeners that do not ask for it, and no other caller of
    this function is given it while this process lives."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low = int(file.read().split()[0])
    ports = range(10000, low) if low > 12000 else range(10000, 65536)
    for port in random.sample(ports, 1000):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind("\0muster-test-port-%d" % port)
            with socket.socket() as s:
                s.bind(("", port))
        except OSError:
            claim.close()
            continue
        claims.append(claim)
        return port
    raise AssertionError("no port is free")


# --- saying what was checked --------------------------------------------------------------------


class Checks:
    """Counts and prints; done() ends the program with the verdict."""

    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = 0

    def ok(self, condition, what, detail=""):
        if condition:
            self.passed += 1
            print("ok   " + what, flush=True)
        else:
            self.failed.append(what)
            print("FAIL " + what + (": " + str(detail) if detail != "" else ""), flush=True)
        return bool(condition)

    def equal(self, got, expected, what):
        return self.ok(got == expected, what, "got %r, expected %r" % (got, expected))

    def raises(self, kinds, call, what, text=None):
        try:
            got = call()
        except kinds as error:
            return self.ok(text is None or text in str(error), what,
                           "the error says %r" % str(error))
        return self.ok(False, what, "it returned %r" % (got,))

    def note(self, text):
        print("     " + text, flush=True)

    def skip(self, text):
        """Something that cannot be checked here: if all else holds, the program is skipped."""
        self.skipped += 1
        print("skip " + text, flush=True)

    def run_tests(self, names, *args):
        """Runs what is named test_* among these (--only=TEXT: and has that in its name). One that
        fails does not keep the others from running."""
        only = option("only", "")
        for name, test in sorted(names.items()):
            if name.startswith("test_") and only in name:
                print("-- " + name[5:].replace("_", " "), flush=True)
                started = time.monotonic()
                try:
                    test(*args)
                except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                    self.ok(False, name, error)
                self.note("took %.1f s" % (time.monotonic() - started))

    def done(self):
        print("%d checks passed, %d failed" % (self.passed, len(self.failed)), flush=True)
        for what in self.failed:
            print("failed: " + what, flush=True)
        sys.exit(1 if self.failed else SKIP if self.skipped else 0)


class Lateness:
    """How late this machine wakes a sleeper at worst, while inside; for bounds on time that hold
    for a machine that has a core to spare. The sleeper is a process: a thread would wait for this
    one's lock as well."""

    PROGRAM = """
import sys, time
worst = 0
while True:
    before = time.monotonic()
    time.sleep(0.005)
    late = time.monotonic() - before - 0.005
    if late > worst:
        worst = late
        print(worst, flush=True)
"""

    def __enter__(self):
        self.worst = 0.0
        self.sleeper = subprocess.Popen([sys.executable, "-c", self.PROGRAM], text=True,
                                        stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.sleeper.stdout.readline()
        return self

    def __exit__(self, *_):
        self.sleeper.kill()
        lines = [line for line in self.sleeper.stdout if line.endswith("\n")]
        self.worst = float(lines[-1]) if lines else 0.0
        self.sleeper.wait()


def wait_until(condition, what, patience=None, step=0.005):
    """Polls until the condition holds; an AssertionError that says what was awaited if it never
    does."""
    end = time.monotonic() + (PATIENCE if patience is None else patience)
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(step)
    raise AssertionError("not within %g seconds: %s" % (PATIENCE if patience is None else patience,
                                                        what))


# --- processes ----------------------------------------------------------------------------------


class Scratch:
    """A directory that goes away with the test."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="muster-test-")

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def die_with_parent():
    """Run in the child: a test that is killed must not leave servers behind."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


class Muster:
    """`muster serve` on a port of its own. A context manager; also started and stopped by hand."""

    def __init__(self, *args, path=None, preexec=None, listen=HOST + ":0", patience=None):
        self.scratch = Scratch()
        self.port_file = os.path.join(self.scratch.path, "port")
        self.log = open(os.path.join(self.scratch.path, "log"), "w+b")
        self.argv = [path or muster_path(), "serve", "--listen", listen]
        self.argv += ["--port-file", self.port_file] + list(args)
        self.port = None

        def prepare():
            die_with_parent()
            if preexec:
                preexec()

        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=prepare
        )
        try:
            self.port = wait_until(self.read_port, "the server's port file", patience, 0.002)
        except AssertionError:
            self.kill()
            raise
        except EarlyEnd:
            self.scratch.__exit__()
            raise

    def read_port(self):
        try:
            with open(self.port_file) as file:
                text = file.read()
            if text.endswith("\n"):
                return int(text.strip().rsplit(":", 1)[-1])
        except (FileNotFoundError, ValueError):
            pass
        code = self.process.poll()
        if code is not None:
            raise EarlyEnd(code, self.output())
        return None

    @property
    def pid(self):
        return self.process.pid

    def output(self):
        self.log.flush()
        with open(self.log.name, "rb") as file:
            return file.read().decode(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """kill -9; the scratch directory goes, a data dir elsewhere stays."""
        self.process.kill()
        self.process.wait()
        self.scratch.__exit__()

    def stop(self, patience=None):
        """SIGTERM; returns the exit code. Kills what does not end."""
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE if patience is None else patience)
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        self.last_output = self.output()
        self.scratch.__exit__()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        else:
            self.scratch.__exit__()


class Gateway(Muster):
    """A gateway, and the server behind it (`origin`)."""

    def __init__(self, *args, **options):
        self.origin = Muster()
        try:
            super().__init__("--backing", "tcp://%s:%d" % (HOST, self.origin.port), *args,
                             **options)
        except BaseException:
            self.origin.kill()
            raise

    def __exit__(self, *_):
        super().__exit__()
        self.origin.__exit__()


class EarlyEnd(Exception):
    """The server ended before it served."""

    def __init__(self, code, output):
        super().__init__("exit code %s: %s" % (code, output.strip()))
        self.code = code
        self.output = output


def torch_version():
    """Of this interpreter's PyTorch: (1, 13) is Debian's, others are those of tests/peers."""
    import torch
    return tuple(int(number) for number in torch.__version__.split(".")[:2])


def dialect():
    """How agents of that PyTorch write a rendezvous's state, as --rdzv-conf names it."""
    return "1.13" if torch_version() < (2, 0) else "2"


class TorchServer:
    """The server of this interpreter's PyTorch, in a process of its own; --no-libuv on the command
    line asks PyTorch 2 for the one that is not its default."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "torch_server.py"), *sys.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            raise AssertionError("PyTorch's server did not start")
        self.port = int(line)

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def run_muster(*args, patience=None, input=None):
    """Runs `muster ARGS` to its end: (exit code, standard output, standard error)."""
    done = subprocess.run(
        [muster_path()] + list(args),
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=PATIENCE if patience is None else patience,
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def is_sanitized():
    """Whether muster was built with a sanitizer."""
    with open(muster_path(), "rb") as file:
        data = file.read()
    return b"__asan_init" in data or b"__tsan_init" in data


def raise_descriptor_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# --- PyTorch's protocol, as bytes ---------------------------------------------------------------

OPS1 = dict(set=0, cas=1, get=2, add=3, check=4, wait=5, num_keys=6, watch=7, delete=8, append=9,
            multi_get=10, multi_set=11, cancel=12)
OPS2 = dict(validate=0, set=1, cas=2, get=3, add=4, check=5, wait=6, num_keys=7, delete=8, append=9,
            multi_get=10, multi_set=11, cancel=12, ping=13, push=14, pop=15, queue_len=16,
            list_keys=17, meet=18)
MAGIC = b"\xce\xf7\x85\x3c"

READY, NOT_READY = b"\0", b"\1"
STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def i64(value):
    return struct.pack("<q", value)


def text(value):
    """A key or value: its length, then its bytes."""
    if isinstance(value, str):
        value = value.encode()
    return u64(len(value)) + value


def texts(values):
    return u64(len(values)) + b"".join(text(value) for value in values)


class Closed(Exception):
    """The server closed the connection."""


class Silent(Exception):
    """No byte came within the patience."""


class Conn:
    """One raw connection of either generation."""

    def __init__(self, port, generation=1, patience=None, handshake=True, host=HOST):
        self.generation = generation
        self.ops = OPS1 if generation == 1 else OPS2
        self.patience = PATIENCE if patience is None else patience
        self.sock = socket.create_connection((host, port), self.patience)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        if generation == 2 and handshake:
            nonce = u32(random.getrandbits(32))
            self.send(b"\0" + MAGIC + b"\x0d" + nonce)
            got = self.recv(4)
            assert got == nonce, "PING came back as %r" % got

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def reset(self):
        """Closes with an RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def recv(self, count, patience=None):
        """Exactly `count` bytes; Closed or Silent if they do not come."""
        self.sock.settimeout(self.patience if patience is None else patience)
        while len(self.buffer) < count:
            try:
                more = self.sock.recv(1 << 20)
            except ConnectionResetError:
                more = b""
            except (socket.timeout, BlockingIOError):
                raise Silent from None
            if not more:
                raise Closed
            self.buffer += more
        got, self.buffer = self.buffer[:count], self.buffer[count:]
        return got

    def recv_text(self, patience=None):
        (length,) = struct.unpack("<Q", self.recv(8, patience))
        return self.recv(length, patience)

    def recv_i64(self, patience=None):
        return struct.unpack("<q", self.recv(8, patience))[0]

    def silent(self, patience=0.15):
        """Whether nothing comes and the connection stays open."""
        try:
            got = self.recv(1, patience)
        except Silent:
            return True
        except Closed:
            return False
        self.buffer = got + self.buffer
        return False

    def closed(self, patience=None):
        """Whether the server closes without a further byte."""
        try:
            got = self.recv(1, patience)
        except Closed:
            return True
        except Silent:
            return False
        self.buffer = got + self.buffer
        return False

    def op(self, name, rest=b""):
        return bytes([self.ops[name]]) + rest

    # Each call is one exchange; those without an answer have none to wait for.

    def set(self, key, value):
        self.send(self.op("set", text(key) + text(value)))

    def set_acked(self, key, value):
        self.send(self.op("set", text(key) + text(value)) + self.op("check", u64(0)))
        assert self.recv(1) == READY

    def get(self, key):
        self.send(self.op("get", text(key)))
        return self.recv_text()

    def add(self, key, delta):
        self.send(self.op("add", text(key) + i64(delta)))
        return self.recv_i64()

    def cas(self, key, expected, desired):
        self.send(self.op("cas", text(key) + text(expected) + text(desired)))
        return self.recv_text()

    def check(self, *keys):
        self.send(self.op("check", texts(keys)))
        return self.recv(1)

    def has(self, *keys):
        return self.check(*keys) == READY

    def start_wait(self, *keys):
        """Sends WAIT and makes sure that the server has taken it. True if the wait is pending,
        False if it was answered."""
        if self.generation == 1:
            # A request behind the WAIT would mean that this client has given it up.
            self.send(self.op("check", texts(["/no such key/"])) + self.op("wait", texts(keys)))
            assert self.recv(1) == NOT_READY
            return self.still_waiting()
        self.send(self.op("wait", texts(keys)))
        return self.still_waiting()

    def still_waiting(self):
        """In generation 2, a question behind the pending WAIT: its answer comes first if the WAIT
        is still pending. In generation 1, the server is let go round until it must have
        answered."""
        if self.generation == 1:
            with Conn(self.sock.getpeername()[1]) as other:
                for _ in range(3):
                    other.barrier()
            try:
                first = self.recv(1, 0)
            except Silent:
                return True
            assert first == STOP_WAITING
            return False
        self.send(self.op("check", texts(["/no such key/"])))
        first = self.recv(1)
        if first == NOT_READY:
            return True
        assert first == STOP_WAITING
        assert self.recv(1) == NOT_READY
        return False

    def woken(self, patience=None):
        return self.recv(1, patience) == STOP_WAITING

    def num_keys(self):
        self.send(self.op("num_keys"))
        return self.recv_i64()

    def delete(self, key):
        self.send(self.op("delete", text(key)))
        return self.recv_i64()

    def append(self, key, value):
        self.send(self.op("append", text(key) + text(value)))

    def multi_set(self, pairs):
        self.send(self.op("multi_set", u64(len(pairs)) + b"".join(text(k) + text(v) for k,
                                                                  v in pairs)))

    def multi_get(self, keys):
        self.send(self.op("multi_get", texts(keys)))
        return [self.recv_text() for _ in keys]

    def cancel(self):
        self.send(self.op("cancel"))

    def push(self, key, value):
        self.send(self.op("push", text(key) + text(value)))

    def pop(self, key):
        """(length before the pop, the element or None)"""
        self.send(self.op("pop", text(key)))
        before = self.recv_i64()
        return before, self.recv_text() if before > 0 else None

    def queue_len(self, key):
        self.send(self.op("queue_len", text(key)))
        return self.recv_i64()

    def list_keys(self):
        self.send(self.op("list_keys"))
        return [self.recv_text() for _ in range(self.recv_i64())]

    def barrier(self):
        """Returns once the server has done everything sent before."""
        self.send(self.op("check", u64(0)))
        assert self.recv(1) == READY
