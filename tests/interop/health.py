#!/usr/bin/python3
"""Sick machines: what `muster doctor` and `muster run` make of GPUs behind a fake driver (tests/fake/nvml.c), of full
and read-only disks, and of little memory. The driver's library is found as the real one would be.

    health.py MUSTER FAKES [--only=NAME]
"""
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

from lib import Checks, Scratch, die_with_parent, free_port, muster_path

checks = Checks()
FAKES = next(a for a in sys.argv[2:] if not a.startswith("--"))


class Driver:
    """A driver whose words can be changed while others use it."""

    def __init__(self, words="", old=False):
        self.scratch = Scratch()
        os.chmod(self.scratch.path, 0o777)
        self.file = os.path.join(self.scratch.path, "nvml")
        os.mkfifo(self.file + ".xid")
        self.say(words)
        library = os.path.join(FAKES, "old") if old else FAKES
        self.env = {**os.environ, "FAKE_NVML": self.file, "LD_LIBRARY_PATH": library}
        self.env.pop("CUDA_VISIBLE_DEVICES", None)

    def __del__(self):
        self.scratch.__exit__()

    def say(self, words):
        with open(self.file + ".new", "w", encoding="ascii") as f:
            f.write(words)
        os.rename(self.file + ".new", self.file)

    def xid(self, gpu, number):
        fifo = os.open(self.file + ".xid", os.O_WRONLY)  # waits for the one who listens
        os.write(fifo, b"%d %d\n" % (gpu, number))
        os.close(fifo)


def as_nobody():
    """Health needs no privileges. As root, where another user can run the program at all."""
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    done = subprocess.run([*argv, muster_path(), "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False) if os.getuid() == 0 else None
    if done is not None and done.returncode != 0:
        checks.note("another user cannot run the program here")
    return argv if done is not None and done.returncode == 0 else []


def doctor(driver, inside=()):
    """(exit code, {text: (level, remedy)}, here)"""
    done = subprocess.run([*inside, muster_path(), "doctor", "--json"], timeout=60, env=driver.env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    report = json.loads(done.stdout)
    return (done.returncode, {f["text"]: (f["level"], f.get("remedy", "")) for f in report["findings"]},
            report["here"])


def level(found, *words):
    """The level of the only finding with these words; else what there is."""
    some = [l for text, (l, remedy) in found.items() if all(w in text + " -> " + remedy for w in words)]
    return some[0] if len(some) == 1 else some


def test_doctor_on_gpus():
    code, found, here = doctor(Driver("gpus=8"))
    checks.ok(code == 0 and level(found, "8 GPUs (NVIDIA Fake 80GB), driver 570.00") == "ok",
                  "doctor: eight healthy GPUs are one line", (code, found))
    checks.ok(len(here["gpus"]) == 8 and here["gpus"][0]["ecc_errors"] == 0, "doctor: and facts", here)
    code, found, _ = doctor(Driver("gpus=8 recovery.2=1"), as_nobody())
    checks.ok(code == 1 and level(found, "GPU 2 needs a reset", "nvidia-smi --gpu-reset -i 2") == "bad",
                  "doctor: a GPU that needs a reset is bad, also for a plain user", (code, found))
    code, found, _ = doctor(Driver("gpus=8 status.5=15"))
    checks.ok(code == 1 and level(found, "GPU 5 is lost") == "bad", "doctor: a lost GPU is bad", (code, found))
    code, found, _ = doctor(Driver("gpus=8 ecc.1=3 pending.1=1 slow.4=64"))
    checks.ok(code == 0 and level(found, "GPU 1 has had 3 uncorrected") == "warn"
                  and level(found, "GPU 1 has bad memory") == "warn" and level(found, "GPU 4 is slowed down") == "warn",
                  "doctor: errors of memory and heat are warnings", (code, found))
    code, found, here = doctor(Driver("gpus=2 ecc.1=3", old=True))
    checks.ok(code == 0 and level(found, "2 GPUs") == "ok" and here["gpus"][1]["ecc_errors"] is None,
                  "doctor: an old library knows less, and that is all", (code, found))
    code, found, _ = doctor(Driver("init=18"))
    checks.ok(code == 1 and level(found, "different versions", "reboot") == "bad",
                  "doctor: a library that does not fit the kernel is bad", (code, found))
    code, found, here = doctor(Driver("init=9"))
    checks.ok(code == 0 and level(found, "no NVIDIA GPU") == "ok" and here["gpus"] == [],
                  "doctor: no driver is no GPU, in one line", (code, found))


def test_doctor_on_a_driver_that_hangs():
    began = time.monotonic()
    code, found, _ = doctor(Driver("gpus=8 hang.2=1"))
    checks.ok(code == 1 and level(found, "the GPU driver has not answered for 10 s", "nvidia-smi") == "bad"
                  and time.monotonic() - began < 30, "doctor: a driver that hangs is a finding", (code, found))


def test_doctor_on_disks():
    """A full disk and a read-only one, in a mount namespace; and a container without /sys."""
    driver = Driver("init=9")
    if subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        checks.skip("no mount namespace can be made here")
        return
    with Scratch() as place:
        def in_mount(script):
            return ["unshare", "-m", "sh", "-c", f'D={place}; export TMPDIR=$D; {script} && exec "$@"', "sh"]

        code, found, _ = doctor(driver, in_mount(
            "mount -t tmpfs -o size=1m x $D && head -c 1048576 /dev/zero > $D/full"))
        checks.ok(code == 0 and level(found, "disk of the log files is full", "--log-dir") == "warn",
                      "doctor: a full disk of logs", (code, found))
        code, found, _ = doctor(driver, in_mount("mount -t tmpfs -o ro x $D"))
        checks.ok(code == 0 and level(found, "disk of the log files is read-only") == "warn",
                      "doctor: a read-only disk of logs", (code, found))
        code, found, _ = doctor(driver, in_mount(
            "mount -t tmpfs -o nr_inodes=3 x $D && touch $D/a $D/b"))
        checks.ok(level(found, "no free inodes") == "warn", "doctor: a disk without inodes", (code, found))
        code, found, here = doctor(driver, in_mount("mount -t tmpfs x /sys && mount -t tmpfs -o size=8m x /dev/shm"))
        checks.ok(here["network_ports"] == [] and level(found, "/dev/shm has 8 MiB left of 8") == "warn",
                      "doctor: no /sys, and little shared memory", (code, found, here))


# --- muster run -------------------------------------------------------------------------------------------------------


class Run:
    """muster run of shell commands; what it says is collected."""

    def __init__(self, driver, script, *args, workers=4, inside=(), env=None):
        self.driver = driver  # with its files
        self.verdict = os.path.join(driver.scratch.path, "verdict")
        self.log = open(os.path.join(driver.scratch.path, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [*inside, muster_path(), "run", f"--nproc-per-node={workers}", "--verdict", self.verdict,
             *args, "--no-python", "/bin/sh", "-c", script],
            env={**driver.env, **(env or {})}, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=die_with_parent)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def until(self, words, timeout=60):
        """Whether it says so in time, before it ends."""
        end = time.monotonic() + timeout
        while words not in self.text():
            if time.monotonic() > end or self.process.poll() is not None:
                return words in self.text()
            time.sleep(0.02)
        return True

    def ended(self):
        """(exit code, what it said, the verdict)"""
        self.process.wait(60)
        with open(self.verdict, encoding="utf-8") as f:
            return self.process.returncode, self.text(), json.load(f)

    def stop(self):
        self.process.terminate()
        return self.ended()


def test_run_is_silent_when_all_is_well():
    for words in "gpus=8", "init=9":
        code, text, _ = Run(Driver(words), "true").ended()
        checks.ok(code == 0 and "GPU" not in text and "check" not in text, "run: nothing is said with " + words, text)


def test_run_keeps_a_sick_node_out():
    driver = Driver("gpus=8 recovery.2=1")
    run = Run(driver, "true", inside=as_nobody())
    checks.ok(run.until("this node is kept out by its check: GPU 2 needs a reset; ") and
              "--gpu-reset -i 2" in run.text(), "run: a GPU that needs a reset keeps the node out", run.text())
    driver.say("gpus=8")
    code, text, _ = run.ended()
    checks.ok(code == 0 and "the check of this node has passed" in text, "run: until it was reset", text)
    checks.equal(text.count("GPU 2 needs a reset"), 1, "run: which is said once")
    for words, option_, env in (("gpus=8 status.1=15", "--health=warn", {}), ("gpus=8 status.1=15", "--health=off", {}),
                                ("gpus=8 status.1=15", "--health=on", {"CUDA_VISIBLE_DEVICES": "4,5"}),
                                ("gpus=8 status.1=15", "--health=on", {"CUDA_VISIBLE_DEVICES": ""})):
        code, text, _ = Run(Driver(words), "sleep 1", option_, env=env).ended()
        checks.ok(code == 0 and ("GPU 1 is lost" in text) == (option_ == "--health=warn"),
                  f"run: {option_} {env} lets it in", text)


def test_run_again_after_a_failure():
    """The GPU is lost while workers run: they fail, and the node is kept out before others are started."""
    driver = Driver("gpus=8")
    run = Run(driver, 'until grep -q status "$FAKE_NVML"; do sleep 0.02; done; exit 3', "--max-restarts=3", workers=2)
    checks.ok(run.until("are running"), "run: workers run", run.text())
    driver.say("gpus=8 status.1=15")
    checks.ok(run.until("this node is kept out by its check: GPU 1 is lost"),
              "run: a node that is sick after a failure is kept out", run.text())
    checks.equal(run.text().count("are running"), 1, "run: before others are started")
    run.stop()


def test_run_waits_for_memory_of_the_dead():
    gone = subprocess.Popen(["true"])
    gone.wait()
    driver = Driver(f"gpus=2 used.1=33285996544 pid.1={gone.pid}")
    if os.stat("/proc/self/ns/pid").st_ino != 0xEFFFFFFC:
        checks.skip("this is a container with processes of its own")
        return
    run = Run(driver, "true", workers=2)
    checks.ok(run.until(f"this node waits before it joins: 31.0 GiB of GPU 1 are still held by process {gone.pid}, "
                        "which is gone"), "run: memory of a dead process is waited for, and that is said", run.text())
    driver.say("gpus=2")
    code, text, _ = run.ended()
    checks.ok(code == 0 and "kept out" not in text, "run: until it is free", text)


def test_run_names_an_error_of_the_driver():
    driver = Driver("gpus=8")
    script = 'if [ "$LOCAL_RANK" = 3 ]; then until [ -e "$FAKE_NVML.go" ]; do sleep 0.02; done; exit 5; fi; sleep 60'
    run = Run(driver, script, env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    checks.ok(run.until("are running"), "run: workers run", run.text())
    driver.xid(7, 79)
    driver.xid(7, 45)
    checks.ok(run.until("GPU 7 reported Xid 79 (GPU has fallen off the bus)"), "run: an Xid is said", run.text())
    open(driver.file + ".go", "wb").close()
    code, text, verdict = run.ended()
    cause = verdict["first_failure"]["cause"]
    checks.ok(code == 1 and cause.startswith("rank 3's GPU 7 reported Xid 79 (GPU has fallen off the bus) ") and
              cause.endswith(" s before"), "run: the verdict names it, and the worker's GPU", (cause, text))
    driver = Driver("gpus=8")
    run = Run(driver, script, env={"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"})
    checks.ok(run.until("are running"), "run: workers run", run.text())
    driver.xid(6, 12345)
    open(driver.file + ".go", "wb").close()
    run.until("Xid")
    _, text, verdict = run.ended()
    checks.ok(verdict["first_failure"]["cause"].startswith("GPU 6 of this node reported Xid 12345 "),
              "run: a GPU that cannot be matched is the node's", (verdict, text))


def test_run_with_a_driver_that_hangs():
    """It neither delays the start for long nor hangs the agent; after a failure it keeps the node out."""
    began = time.monotonic()
    code, text, _ = Run(Driver("hang=1"), "true").ended()
    checks.ok(code == 0 and time.monotonic() - began < 10 and "takes long to start" in text,
              "run: a driver that hangs does not keep the job from starting", text)
    run = Run(Driver("gpus=8 hang.1=1"), "sleep 0.2; exit 3", "--max-restarts=3")
    checks.ok(run.until("kept out by its check: the GPU driver has not answered for 1"),
              "run: after a failure, it keeps the node out", run.text())
    began = time.monotonic()
    run.stop()
    checks.ok(time.monotonic() - began < 8, "run: which can be stopped", run.text())


def mounted(script):
    """What runs a command in a mount namespace of its own; None: there can be none."""
    if subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        checks.skip("no mount namespace can be made here")
        return None
    return ["unshare", "-m", "sh", "-c", script + ' && exec "$@"', "sh"]


def test_run_when_a_port_goes_down():
    """The port of one worker's adapter goes down with it; the other one never had a cable."""
    port = "/sys/class/infiniband/mlx5_%d/ports/1"
    states = enumerate(("4: ACTIVE", "1: DOWN"))
    inside = mounted("mount -t tmpfs x /sys && " + " && ".join(
        f"mkdir -p {port % i} && echo '{state}' > {port % i}/state" for i, state in states))
    if inside is None:
        return
    run = Run(Driver("init=9"), f"sleep 1; echo '1: DOWN' > {port % 0}/state; exit 3", "--max-restarts=3", workers=1,
              inside=inside)
    checks.ok(run.until("kept out by its check: the network port mlx5_0 port 1 is down, and was up when"),
              "run: a node whose adapter lost its link is kept out", run.text())
    checks.ok("mlx5_1" not in run.text(), "run: of one that was never up nothing is said", run.text())
    run.stop()


def test_run_names_shared_memory_that_is_used_up():
    inside = mounted("mount -t tmpfs -o size=20m x /dev/shm")
    if inside is None:
        return
    driver = Driver("init=9")
    run = Run(driver, 'head -c 20971520 /dev/zero > /dev/shm/x; until [ -e "$FAKE_NVML.go" ]; do sleep 0.05; done; '
              "sh -c 'kill -BUS $PPID'; sleep 60", workers=1, inside=inside)
    checks.ok(run.until("/dev/shm has 0 MiB left of 20; ", 30), "run: little shared memory is said", run.text())
    open(driver.file + ".go", "wb").close()
    _, text, verdict = run.ended()
    checks.ok("/dev/shm has 0 MiB left of 20" in verdict["first_failure"]["cause"],
              "run: and is the cause of a SIGBUS", (verdict, text))


def test_run_shows_it_on_the_page():
    driver = Driver("gpus=8 slow.2=64")
    run = Run(driver, 'until [ -e "$FAKE_NVML.go" ]; do sleep 0.02; done', f"--http=127.0.0.1:{free_port()}")
    checks.ok(run.until("are running"), "run: workers run", run.text())
    driver.xid(2, 94)
    checks.ok(run.until("Xid 94 (contained ECC error)"), "run: an Xid is said", run.text())
    page = re.search(r"status at (http://\S+/)", run.text()).group(1)

    def get(path):
        with urllib.request.urlopen(page + path, timeout=20) as answer:
            return answer.read().decode()

    status, metrics = json.loads(get("status.json")), get("metrics")
    warnings = [f["kind"] for f in status.get("health", []) if f["level"] == "warning"]
    checks.ok("gpu_slow" in warnings and
              any("Xid 94" in e["text"] for e in status["events"]), "page: what is wrong, and events", status)
    for name, value in ("health_faults", 0), ("health_warnings", len(warnings)), ("xids_total", 1):
        checks.ok(f'muster_agent_{name}{{run="none"}} {value}\n' in metrics, "page: the metric " + name, metrics)
    open(driver.file + ".go", "wb").close()
    run.ended()


def test_run_tells_events():
    driver = Driver("gpus=8 slow.2=64")
    run = Run(driver, 'until [ -e "$FAKE_NVML.go" ]; do sleep 0.02; done', "--log-format=json")
    checks.ok(run.until("NODE-HEALTH"), "run: a warning is an event", run.text())
    open(driver.file + ".go", "wb").close()
    _, text, _ = run.ended()
    event = next((json.loads(line) for line in text.splitlines() if "NODE-HEALTH" in line), {"fields": {}})
    checks.ok(event["fields"].get("kind") == "gpu_slow" and event["fields"].get("gpu") == 2 and
              event["fields"].get("level") == "warning", "run: with its fields", event)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
