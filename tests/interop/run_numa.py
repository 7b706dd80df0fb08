#!/usr/bin/python3
"""--numa-binding, as the workers see it: they run on the CPUs that were chosen, and so do their
children. The machine has its own CPUs and PCI devices; which of these are GPUs is made up, with a
/proc/driver of the test's own.

usage: run_numa.py path/to/muster
"""
import glob
import os
import subprocess
import sys

from lib import Checks, muster_path

# In a mount namespace: the devices $1 are NVIDIA's, and then what follows is run.
PRETEND = """
mount -t tmpfs none /proc/driver || exit 77
for device in $1; do
    mkdir -p /proc/driver/nvidia/gpus/$device
    echo "GPU UUID:  GPU-$device" >/proc/driver/nvidia/gpus/$device/information
done
shift
exec "$@"
"""
LOOK = 'echo "worker $LOCAL_RANK $(sh -c "grep Cpus_allowed_list: /proc/self/status")"'


def run(devices, *options):
    """(exit code, {local rank: CPUs}, what was said)"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", PRETEND, "sh", " ".join(devices), muster_path(), "run",
         "--standalone", "--nproc-per-node", str(len(devices)), *options, "--no-python", "sh", "-c",
         LOOK], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
    cpus = {words[1]: words[3] for words in map(str.split, done.stdout.split("\n"))
            if words[:1] == ["worker"]}
    return done.returncode, cpus, done.stdout


def main():
    checks = Checks()
    devices = sorted(os.path.basename(path) for path in glob.glob("/sys/bus/pci/devices/*")
                     if os.path.exists(os.path.join(path, "numa_node")))
    cpus = sorted(os.sched_getaffinity(0))
    if len(devices) < 2 or len(cpus) < 2 or not os.path.exists("/sys/devices/system/node/node0"):
        checks.skip("this machine has fewer than two CPUs or PCI devices, or no NUMA nodes")
        checks.done()
    code, _, said = run(devices[:1])
    if code == 77 or "unshare:" in said:
        checks.skip("this system lets us make no mount namespaces (%s)" % said.strip())
        checks.done()
    os.sched_setaffinity(0, cpus[1:2])
    for mode in ("node", "socket", "exclusive", "core-complex"):
        code, found, said = run(devices[:1], "--numa-binding", mode)
        checks.ok(code == 0 and found == {"0": str(cpus[1])},
                  "%s: a worker runs on what its agent may use" % mode, said)
    os.sched_setaffinity(0, cpus[:2])
    code, found, said = run(devices[:2], "--numa-binding", "exclusive")
    if os.path.exists("/sys/devices/system/node/node1"):
        checks.ok(code == 0 and len(found) == 2, "two workers run", said)
    else:
        checks.ok(code == 0 and found == {"0": str(cpus[0]), "1": str(cpus[1])},
                  "exclusive: two workers have a core each", said)
    code, found, said = run(devices[:2])
    checks.ok(code == 0 and len(set(found.values())) == 1, "without it they run anywhere", said)
    code, _, said = run(devices[:2], "--numa-binding", "node", "--nproc-per-node", "3")
    checks.ok(code == 1 and "worker 2 is placed by GPU 2, and this node has 2 GPUs" in said,
              "more workers than GPUs are an error", said)
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
