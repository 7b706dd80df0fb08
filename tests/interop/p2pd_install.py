#!/usr/bin/python3
"""The daemon in hivemind's place: `muster p2pd --install`, and its log.

    p2pd_install.py [MUSTER] [--only=NAME]

hivemind is a folder here that looks like its package; nothing of it is imported.
"""
import datetime
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

import lib
from lib import HOST, Checks, muster_path

checks = Checks()
SCRATCH = tempfile.mkdtemp(prefix="muster-p2pd-")
GO = b"#!/bin/sh\necho the old one\n"


def package(name, daemon=GO):
    """A folder for PYTHONPATH with a hivemind package in it; importing that would fail."""
    folder = os.path.join(SCRATCH, name, "hivemind", "hivemind_cli")
    os.makedirs(folder)
    with open(os.path.join(folder, "__init__.py"), "w") as file:
        file.write("")
    with open(os.path.join(os.path.dirname(folder), "__init__.py"), "w") as file:
        file.write("raise ImportError('it was imported')\n")
    if daemon is not None:
        with open(os.path.join(folder, "p2pd"), "wb") as file:
            file.write(daemon)
        os.chmod(os.path.join(folder, "p2pd"), 0o777)
    return os.path.join(SCRATCH, name), os.path.join(folder, "p2pd")


def run(*words, env=None, program=None):
    done = subprocess.run([program or muster_path()] + list(words), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=lib.PATIENCE,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def content(path):
    with open(path, "rb") as file:
        return file.read()


# --- tests --------------------------------------------------------------------------------------


def test_install_and_back():
    where, daemon = package("there")
    env = {"PYTHONPATH": where}
    for time_number in "first", "second":
        code, out, err = run("p2pd", "--install", env=env)
        checks.ok(code == 0 and daemon in out, time_number + " install: says where", (code, out, err))
        checks.equal(content(daemon), content(muster_path()), "the daemon is this program")
        checks.equal(content(daemon + ".hivemind"), GO, "hivemind's own is kept")
    code, out, err = run("-listen=/unix%s/c" % SCRATCH, "-idleTimeout=50ms",
                         "-hostAddrs=/ip4/%s/tcp/0" % HOST, program=daemon)
    checks.ok(code == 0 and "Peer ID: " in out, "hivemind starts it, and it is a daemon", (out, err))
    code, out, err = run("p2pd", "-uninstall", env=env)
    checks.equal((code, content(daemon)), (0, GO), "uninstall brings the old one back")
    checks.equal(sorted(os.listdir(os.path.dirname(daemon))), ["__init__.py", "p2pd"],
                 "and leaves nothing behind")
    code, out, err = run("p2pd", "--uninstall", env=env)
    checks.ok(code == 0 and "not muster's" in out and content(daemon) == GO,
              "a second time there is nothing to do", (code, out, err))


def test_upgrades():
    """What pip puts there is kept, each time; a link of ours is replaced, not what it points to."""
    where, daemon = package("upgraded")
    env = {"PYTHONPATH": where}
    run("p2pd", "--install", env=env)
    with open(daemon, "wb") as file:
        file.write(b"a newer one")
    code, out, err = run("p2pd", "--install", env=env)
    checks.equal((code, content(daemon + ".hivemind")), (0, b"a newer one"),
                 "hivemind was upgraded: the newer daemon is kept")
    os.unlink(daemon)
    os.unlink(daemon + ".hivemind")
    os.symlink(muster_path(), daemon)
    code, out, err = run("p2pd", "--install", env=env)
    checks.ok(code == 0 and not os.path.islink(daemon), "a link to muster becomes a copy", err)
    checks.ok(not os.path.exists(daemon + ".hivemind"), "of which no copy is kept")
    code, out, err = run("p2pd", "--uninstall", env=env)
    checks.ok(code == 1 and "pip install" in err and os.path.exists(daemon),
              "nothing to bring back: says what brings it", (code, err))
    os.unlink(daemon)
    os.symlink("/nowhere/muster", daemon)
    code, out, err = run("p2pd", "--install", env=env)
    checks.equal((code, content(daemon)), (0, content(muster_path())), "a dead link is replaced")


def test_without_a_daemon():
    where, daemon = package("bare", daemon=None)
    code, out, err = run("p2pd", "--install", env={"PYTHONPATH": where})
    checks.equal((code, os.path.exists(daemon)), (0, True), "a package without its daemon gets one")


def test_failures_are_said():
    empty = os.path.join(SCRATCH, "empty")
    os.mkdir(empty)
    bare = {"PATH": empty}
    code, out, err = run("p2pd", "--install", env=bare)
    checks.ok(code == 1 and "python3 cannot be run" in err, "no python3", (code, err))
    fake = os.path.join(empty, "python3")
    with open(fake, "w") as file:
        file.write("#!/bin/sh\necho /opt/bin/python3\necho\n")
    os.chmod(fake, 0o755)
    code, out, err = run("p2pd", "--install", env=bare)
    checks.ok(code == 1 and "/opt/bin/python3 has no hivemind package" in err and "pip install" in err,
              "no hivemind", (code, err))
    with open(fake, "w") as file:
        file.write("#!/bin/sh\nexit 1\n")
    code, out, err = run("p2pd", "--install", env=bare)
    checks.ok(code == 1 and "could not be asked" in err, "a python3 that fails", (code, err))
    code, out, err = run("p2pd", "--install", "--uninstall")
    checks.ok(code == 2 and "exclude" in err, "both at once", (code, err))
    where, daemon = package("locked")
    folder = os.path.dirname(daemon)
    os.chmod(SCRATCH, 0o755)
    if os.geteuid() == 0:
        # The tree may be where only root can read, as in root's home.
        program = shutil.copy(muster_path(), SCRATCH)
        done = subprocess.run([program, "p2pd", "--install"], stderr=subprocess.PIPE,
                              env=dict(os.environ, PYTHONPATH=where), user=65534, group=65534,
                              extra_groups=[])
        checks.ok(done.returncode == 1 and b"Permission denied" in done.stderr and
                  b"virtual environment" in done.stderr, "packages of another user", done.stderr)
    checks.equal((content(daemon), sorted(os.listdir(folder))), (GO, ["__init__.py", "p2pd"]),
                 "nothing was changed")


# --- the log ------------------------------------------------------------------------------------


def log_of(**variables):
    """What a daemon logs while a stranger connects and says nonsense."""
    env = dict((name, value) for name, value in os.environ.items() if not name.startswith("GOLOG"))
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.Popen(
            [muster_path(), "p2pd", "-listen=/unix%s/c" % folder, "-hostAddrs=/ip4/%s/tcp/0" % HOST],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env, **variables))
        lines = [p.stdout.readline().decode() for _ in range(4)]
        with socket.create_connection((HOST, int(lines[3].split("/")[4]))) as s:
            s.sendall(b"nonsense" * 100)
            s.settimeout(lib.PATIENCE)
            while s.recv(4096):
                pass
        p.terminate()
        out, err = p.communicate(timeout=lib.PATIENCE)
    return out.decode(), err.decode()


def test_log_levels():
    out, err = log_of()
    checks.equal((out, err), ("", ""), "without a variable, strangers are not worth a line")
    out, err = log_of(GOLOG_LOG_LEVEL="DEBUG", GOLOG_LOG_FMT="json")
    record = json.loads(err.splitlines()[0])
    checks.equal(sorted(record), ["caller", "level", "logger", "msg", "ts"], "hivemind's form")
    # As hivemind reads it: hivemind/p2p/p2p_daemon.py.
    at = datetime.datetime.strptime(record["ts"], "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
    checks.ok(abs(at - time.time()) < lib.PATIENCE, "the time is now", record)
    checks.equal((record["level"], record["logger"]), ("debug", "peer"), "level and part")
    out, err = log_of(GOLOG_LOG_LEVEL="FATAL")
    checks.equal(err, "", "fatal: nothing")
    out, err = log_of(GOLOG_LOG_LEVEL="error,peer=debug")
    checks.ok(" debug p2pd: PEER-" in err, "one part alone, as text", err)
    out, err = log_of(GOLOG_LOG_LEVEL="debug,peer=error")
    checks.equal(err, "", "all but one part")
    out, err = log_of(GOLOG_LOG_LEVEL="loud,error", GOLOG_LOG_FMT="xml")
    checks.ok('"loud" is ignored' in err and '"xml" is ignored' in err, "nonsense is named", err)


def test_log_places():
    file = os.path.join(SCRATCH, "p2pd.log")
    out, err = log_of(GOLOG_LOG_LEVEL="debug", GOLOG_FILE=file)
    checks.ok(err == "" and "PEER-" in content(file).decode(), "into a file, and nowhere else", err)
    os.unlink(file)
    out, err = log_of(GOLOG_LOG_LEVEL="debug", GOLOG_FILE=file, GOLOG_OUTPUT="stdout+file",
                      GOLOG_LOG_FMT="json", GOLOG_LOG_LABELS="app=train,dc=1")
    checks.ok(err == "" and out == content(file).decode() != "", "to two places", (out, err))
    checks.equal((json.loads(out.splitlines()[0])["app"], json.loads(out.splitlines()[0])["dc"]),
                 ("train", "1"), "with labels")


def main():
    try:
        checks.run_tests(globals())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
