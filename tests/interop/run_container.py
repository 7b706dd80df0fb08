#!/usr/bin/python3
"""`muster run` among processes that are not its workers': as pid 1 of a container (a pid namespace of its
own, with and without a cgroup that it may divide), and behind a shell that had started something
before it became muster. What does not descend from a worker is reaped when it is dead and never
waited for, signalled or killed; what a worker leaves behind does not delay the end of the run, and
what cannot be killed delays it for a while and no longer.

usage: run_container.py path/to/muster [--only=TEXT]
"""
import os
import signal
import subprocess
import time

from lib import Checks, Scratch, die_with_parent, muster_path, wait_until

PATIENCE = 25  # less than the 30 s that workers have to end in, which is what this is about

# Ticks until it is killed, and says so when it is told to end.
SIDECAR = """
trap 'echo told >>told' TERM
echo $$ >sidecar
while :; do sleep 0.1; done
"""

# Fails once, so that all of its workers are stopped and started anew; then looks around.
WORKER = """
if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
    [ "$LOCAL_RANK" = 1 ] && exec sleep 1000
    while [ ! -e go ]; do sleep 0.02; done
    exit 3
fi
[ "$LOCAL_RANK" = 1 ] && exit 0
# Who has ended just now, as the other worker does, is not reaped yet; who stays a zombie is not.
for try in 1 2 3 4 5 6 7 8 9 10; do
    for status in /proc/[0-9]*/status; do
        awk '/^State:/ {s = $2} /^PPid:/ {p = $2} END {if (s == "Z" && p == 1) print FILENAME}' $status
    done >zombies
    [ -s zombies ] || break
    sleep 0.5
done
kill -0 $(cat sidecar) && echo alive >alive
"""


def start(directory, muster, before="", contained=True, cgroups=True, options=(), worker=WORKER):
    """A shell that does what is to be done before, and becomes `muster run`."""
    command = ["sh", "-c", before + ' exec "$@"', "sh", muster, "run", "--standalone",
               "--nproc-per-node=2", "--max-restarts=1"] + list(options)
    command += ["--no-python", "sh", "-c", worker]
    if contained:
        # As a container's runtime does it: pid 1 leads a session of its own.
        hide = "" if cgroups else "umount -l -a -t cgroup2;"
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "setsid", "sh", "-c",
                   hide + ' exec "$@"', "sh"] + command
    write(directory, "sidecar.sh", SIDECAR)
    log = open(os.path.join(directory, "log"), "w+")
    return subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                            preexec_fn=die_with_parent)


def read(directory, name):
    try:
        with open(os.path.join(directory, name)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(directory, name, text=""):
    with open(os.path.join(directory, name), "w") as file:
        file.write(text)


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def check_end(checks, directory, process, what):
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        code = "still there after %d s" % PATIENCE
        process.kill()
        process.wait()
    checks.ok(code == 0, what + ": the run restarts and ends at once",
              "%s: %s" % (code, read(directory, "log")))
    checks.equal(read(directory, "alive"), "alive\n", what + ": who is not a worker lives on")
    checks.equal(read(directory, "told"), "", what + ": and was not told to end")


def test_processes_of_the_entrypoint(checks, muster):
    for cgroups in (True, False):
        what = "entrypoint, %s cgroups" % ("with" if cgroups else "without")
        with Scratch() as directory:
            write(directory, "go")
            process = start(directory, muster, cgroups=cgroups,
                            before="true & sleep 1000 & setsid sh sidecar.sh & setsid true &")
            check_end(checks, directory, process, what)
            checks.equal(read(directory, "zombies"), "", what + ": the dead are reaped")


def bring_in(process, script, *arguments):
    """Runs a script in the container, as `kubectl exec` and `docker exec` do, once muster is there."""
    children = "/proc/%d/task/%d/children" % (process.pid, process.pid)
    init = wait_until(lambda: read("/", children).split(), "pid 1 is there")[0]
    wait_until(lambda: "muster" in read("/", "/proc/%s/cmdline" % init).split("\0")[0], "it is muster")
    subprocess.run(["nsenter", "-t", init, "-p", "-m", "sh", "-c", script, "sh"] + list(arguments),
                   check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def test_signal_to_pid_1(checks, muster):
    """The kernel keeps from pid 1 what it does not handle; `docker stop` must reach the workers."""
    worker = "trap 'echo $LOCAL_RANK >>saved; exit 0' TERM; echo up >>up; while :; do sleep 0.05; done"
    with Scratch() as directory:
        process = start(directory, muster, worker=worker)
        wait_until(lambda: read(directory, "up").count("up") == 2, "the workers run")
        bring_in(process, "kill -TERM 1")
        checks.equal(process.wait(PATIENCE), 1, "a signal to pid 1: it ends")
        checks.equal(sorted(read(directory, "saved").split()), ["0", "1"],
                     "a signal to pid 1: its workers were told, and saved")


def test_orphans_of_a_process_that_was_brought_in(checks, muster):
    """What it leaves behind becomes a child of pid 1."""
    for cgroups in (True, False):
        what = "brought in, %s cgroups" % ("with" if cgroups else "without")
        with Scratch() as directory:
            process = start(directory, muster, cgroups=cgroups)
            bring_in(process, 'cd "$1"; (setsid sh sidecar.sh &) & setsid sh -c "true &" &', directory)
            wait_until(lambda: read(directory, "sidecar").strip(), what + ": the orphan is there")
            write(directory, "go")
            check_end(checks, directory, process, what)
            checks.equal(read(directory, "zombies"), "", what + ": the dead are reaped")


def test_children_that_a_shell_left_us(checks, muster):
    """Not pid 1: the shell's children are ours, and no worker's, also those in another session."""
    with Scratch() as directory:
        write(directory, "go")
        process = start(directory, muster, contained=False, before="setsid sh sidecar.sh &")
        check_end(checks, directory, process, "a shell's child")
        sidecar = int(read(directory, "sidecar"))
        if checks.ok(is_alive(sidecar), "a shell's child: it outlives the run"):
            os.kill(sidecar, signal.SIGKILL)


def test_daemon_of_a_worker_that_succeeds(checks, muster):
    """It is told to end, and killed after the grace; the run does not wait for that."""
    worker = """
[ "$LOCAL_RANK" = 1 ] && exit 0
setsid sh sidecar.sh &
while [ ! -s sidecar ]; do sleep 0.02; done
"""
    with Scratch() as directory:
        process = start(directory, muster, contained=False, options=["--grace=6"], worker=worker)
        began = time.monotonic()
        checks.equal(process.wait(PATIENCE), 0, "a worker's daemon: the run ends well")
        ended = time.monotonic()
        daemon = int(read(directory, "sidecar"))
        checks.ok(is_alive(daemon), "a worker's daemon: the run does not wait for it",
                  "%.1f s" % (ended - began))
        wait_until(lambda: read(directory, "told"), "the daemon is told to end")
        wait_until(lambda: not is_alive(daemon), "the daemon is killed")
        checks.ok(True, "a worker's daemon: it is told to end, and killed")
        checks.note("the run took %.1f s, the daemon lived %.1f s longer"
                    % (ended - began, time.monotonic() - ended))


def test_worker_that_cannot_be_killed(checks, muster):
    """One that is frozen from outside: the agent gives up waiting, and says so."""
    frozen = "/sys/fs/cgroup/freezer/muster-test-%d" % os.getpid()
    try:
        os.mkdir(frozen)
    except OSError as error:
        checks.note("no freezer here (%s)" % error.strerror)
        return
    with Scratch() as directory:
        process = start(directory, muster, contained=False, options=["--grace=1"],
                        worker='[ "$LOCAL_RANK" = 1 ] && exit 0; echo $$$$ >worker; exec sleep 1000')
        worker = wait_until(lambda: read(directory, "worker").strip(), "the worker runs")
        with open(os.path.join(frozen, "cgroup.procs"), "w") as file:
            file.write(worker)
        with open(os.path.join(frozen, "freezer.state"), "w") as file:
            file.write("FROZEN")
        process.send_signal(signal.SIGTERM)
        try:
            checks.equal(process.wait(PATIENCE), 1, "a frozen worker: the run ends")
        finally:
            with open(os.path.join(frozen, "freezer.state"), "w") as file:
                file.write("THAWED")
        checks.ok("cannot be killed" in read(directory, "log"), "a frozen worker: and says why",
                  read(directory, "log"))
        wait_until(lambda: not is_alive(int(worker)), "the worker dies when it can")
        os.rmdir(frozen)


def main():
    checks = Checks()
    probe = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False,
                           stderr=subprocess.DEVNULL)
    tests = dict(globals())
    if probe.returncode != 0:
        checks.skip("no pid namespace can be made here")
        tests = {name: test for name, test in tests.items()
                 if name not in ("test_processes_of_the_entrypoint", "test_signal_to_pid_1",
                                 "test_orphans_of_a_process_that_was_brought_in")}
    checks.run_tests(tests, checks, muster_path())
    checks.done()


if __name__ == "__main__":
    main()
