#!/usr/bin/python3
"""Where each command listens and who is let in: the table in SECURITY.md, held against what the
system says.

usage: listeners.py MUSTER [--write]

Each command of the table is started in a network of its own, and `ss` tells what its process
listens at. A stranger who comes from another address and shows nothing must get nothing from what
is said to be locked. With --write the table is made anew from what was seen.
"""
import ctypes
import os
import re
import shlex
import socket
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import lib  # noqa: E402

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "SECURITY.md")
BEGIN, END = "<!-- listeners: tests/live/listeners.py --write -->\n", "<!-- end -->\n"
FAR = "10.77.0.1"
MUSTER = lib.muster_path()
NEWNS = 0x00020000
QUIET = 0.5  # seconds without a new listener: it has them all

# What is started. NODE is an address that other hosts reach; job.token, peer.key and the model are
# there, and a donor at 127.0.0.1:29700 for those that pull.
COMMANDS = [
    "muster serve --listen 127.0.0.1:29500",
    "muster serve --listen 0.0.0.0:29500",
    "muster serve --listen 0.0.0.0:29500 --token-file job.token",
    "muster serve --listen 0.0.0.0:29500 --insecure",
    "muster serve --listen 127.0.0.1:29500 --http 127.0.0.1:8080",
    "muster serve --listen 127.0.0.1:29500 --http 0.0.0.0:8080",
    "muster serve --listen 127.0.0.1:29500 --token-file job.token --http 0.0.0.0:8080",
    "muster serve --listen 127.0.0.1:29500 --http 0.0.0.0:8080 --insecure",
    "muster run train.sh",
    "muster run --standalone train.sh",
    "muster run --rdzv-endpoint 127.0.0.1:29400 train.sh",
    "muster run --rdzv-endpoint NODE:29400 train.sh",
    "muster run --rdzv-endpoint NODE:29400 --token-file job.token train.sh",
    "muster run --node-rank 0 train.sh",
    "muster run --http 127.0.0.1:8080 train.sh",
    "muster rdzv join --rdzv-id job",
    "muster rpc serve",
    "muster rpc serve --token-file job.token",
    "muster state serve model.safetensors",
    "muster state serve --token-file job.token model.safetensors",
    "muster state serve --identity peer.key model.safetensors",
    "muster state serve --identity peer.key --allow PEER model.safetensors",
    "muster state pull --stay 127.0.0.1:29700",
    "muster average --prefix run7 --bootstrap new model.safetensors",
    "muster average --prefix run7 --bootstrap new --listen /ip4/0.0.0.0/tcp/0 model.safetensors",
    "muster peer serve",
    "muster dht serve",
    "muster p2pd",
    "muster p2pd -noListenAddrs",
]
# Verbs with such an option that are not for listening: they dial it.
DIALS = {"stacks", "bench", "top", "doctor"}
LISTENS = r"^ +--?(listen|http|hostAddrs|rdzv-endpoint)\b"

checks = lib.Checks()


def argv_of(command, world):
    words = [{"PEER": world.peer}.get(word, word).replace("NODE", FAR)
             for word in shlex.split(command)[1:]]
    if words[0] == "run":
        words.insert(1, "--no-python")
        words[-1] = "./train.sh"
    return [MUSTER] + words


class World:
    def __init__(self, path):
        os.chdir(path)
        self.run("keygen", "token", "job.token")
        self.peer = re.search(r"12D3\w+", self.run("peer", "id", "--new", "peer.key"))[0]
        head = b'{"a":{"dtype":"F32","shape":[256],"data_offsets":[0,1024]}}'
        head += b" " * (-len(head) % 8)
        with open("model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head + bytes(1024))
        with open("train.sh", "w") as file:
            file.write("#!/bin/sh\ntouch started\nexec sleep 600\n")
        os.chmod("train.sh", 0o755)

    @staticmethod
    def run(*argv):
        return subprocess.run([MUSTER] + list(argv), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=True).stdout


def listening(pid):
    """What `ss` says that the process listens at."""
    found = []
    for option, column in (("-ltnpH", 3), ("-lxpH", 4)):
        for line in subprocess.run(["ss", option], stdout=subprocess.PIPE, text=True,
                                   check=True).stdout.splitlines():
            if "pid=%d," % pid in line:
                found.append(line.split()[column])
    return sorted(found)


def wait_for_listeners(process, worker=False):
    """What it listens at once that has not changed for a while, and its worker has begun; none if
    it ends."""
    state = {"seen": None, "since": 0.0}

    def settled():
        now = lib.time.monotonic()
        seen = listening(process.pid) if process.poll() is None else []
        if seen != state["seen"]:
            state.update(seen=seen, since=now)
        return process.poll() is not None or (
            seen and now - state["since"] > QUIET and (not worker or os.path.exists("started")))

    lib.wait_until(settled, "it listens", 60, 0.2)
    return state["seen"] if process.poll() is None else []


def plain(listener):
    """As the table has it: a port that the system chose is any, a random name is left out, our
    address is NODE."""
    listener = re.sub(r"@muster-rpc-\w+", "@muster-rpc-...", listener.replace(FAR, "NODE"))
    port = int(listener.rsplit(":", 1)[1]) if ":" in listener else 0
    return re.sub(r":\d+$", ":any", listener) if port > 32000 else listener


def is_far(listener):
    return ":" in listener and not listener.startswith("127.") and not listener.startswith("@")


HELLO = (b"MUSTER\r\n" + struct.pack("<IBBHQQ", 64, 1, 0, 0, 0, 0) + struct.pack("<HH", 1, 1)
         + os.urandom(16) + struct.pack("<IQIIII", 0, 1 << 20, 1 << 20, 0, 0, 0)
         + struct.pack("<H", 12) + b"the stranger"[:12] + struct.pack("<H", 0))


def told(port, said):
    """What a stranger is told who says that, up to the end or a second's silence."""
    with socket.create_connection((FAR, port), 10) as s:
        s.settimeout(1)
        got = b""
        try:
            s.sendall(said)
            while True:
                more = s.recv(4096)
                if not more:
                    break
                got += more
        except (socket.timeout, ConnectionError):
            pass
        return got


def lets_in(port):
    """How a stranger without any credential gets in."""
    ways = []
    greeted = told(port, HELLO)
    if len(greeted) > 4 and greeted[4] == 2:
        ways.append("the native wire")
    if told(port, b"\x00\xce\xf7\x85\x3c\x0d" + b"abcd") == b"abcd":
        ways.append("PyTorch's protocol")
    if b" 200 " in told(port, b"GET /status.json HTTP/1.0\r\n\r\n").split(b"\r\n")[0]:
        ways.append("HTTP")
    return ways


def who(command, listeners):
    """In words, who may speak there, of what was tried."""
    if not listeners:
        return "nobody: it does not start"
    words = []
    far = [one for one in listeners if is_far(one)]
    doors = sorted({way for one in far for way in lets_in(int(one.rsplit(":", 1)[1]))})
    if doors:
        words.append("anybody, by " + " and ".join(doors))
    elif far and "p2pd" in command:
        words.append("any peer, inside Noise")
    elif far and "--allow PEER" in command:
        words.append("the peers that are named, inside Noise")
    elif far and "--http 0.0.0.0" in command:
        words.append("who has the page's password")
    elif far:
        words.append("who has the token")
    if any(one.startswith(("127.", "@")) for one in listeners):
        words.append("users of this host")
    for path in (one for one in listeners if one.startswith("/")):
        # Who may not write to a socket cannot connect to it.
        words.append("its user" if os.stat(path).st_mode & 0o022 == 0 else "users of this host")
    return "; ".join(words)


def look(command, world):
    """The row of a command."""
    donor = None
    if os.path.exists("started"):
        os.unlink("started")
    with open("log", "w+") as log:
        if " pull " in command:
            donor = subprocess.Popen([MUSTER, "state", "serve", "model.safetensors"],
                                     stdout=log, stderr=log, preexec_fn=lib.die_with_parent)
            wait_for_listeners(donor)
        process = subprocess.Popen(argv_of(command, world), stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, preexec_fn=lib.die_with_parent)
        try:
            seen = wait_for_listeners(process, " run " in command)
            row = "| `%s` | %s | %s |\n" % (
                command, ", ".join("`%s`" % plain(one) for one in sorted(seen, key=plain)) or "–",
                who(command, seen))
        finally:
            for one in filter(None, (process, donor)):
                one.terminate()
                one.wait(60)
    return row


def forgotten():
    """Verbs with an option to listen at something, of which no command is in the table."""
    there = {command.split()[1] for command in COMMANDS} | DIALS
    verbs = re.findall(r"^  (\w+)  ", World.run("--help"), re.M)
    return [verb for verb in verbs if verb not in there and
            re.search(LISTENS, World.run(verb, "--help"), re.M)]


def hide_tmp():
    """What is in /tmp, where p2pd's socket is, shall be ours alone."""
    if ctypes.CDLL(None).unshare(NEWNS) != 0:
        print("skipped: the system gives us no mounts of our own")
        sys.exit(lib.SKIP)
    root = os.path.dirname(os.path.realpath(PAGE))
    script = "mount --make-rprivate /; mount --bind \"$1\" /mnt; mount -t tmpfs tmpfs /tmp; "
    if root.startswith("/tmp/"):  # where the tree itself may be
        script += "mkdir -p \"$1\"; mount --bind /mnt \"$1\"; "
    subprocess.run(["sh", "-ec", script + "umount /mnt", "sh", root], check=True)


def main():
    lib.beyond_loopback()
    hide_tmp()
    with open(PAGE) as file:
        before, _, rest = file.read().partition(BEGIN)
    table, _, after = rest.partition(END)
    checks.equal(forgotten(), [], "each verb that can listen is in the table")
    with lib.Scratch() as path:
        world = World(path)
        rows = [look(command, world) for command in COMMANDS]
        os.chdir("/")
    head = "| command | listens at | who may speak there |\n|---|---|---|\n"
    if "--write" in sys.argv:
        with open(PAGE, "w") as file:
            file.write(before + BEGIN + head + "".join(rows) + END + after)
        return 0
    lines = table.splitlines(True)
    checks.equal(len(lines), 2 + len(rows), "the table has a row for each command")
    for line, row in zip(lines[2:], rows):
        checks.equal(line, row, row.split("`")[1])
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
