#!/usr/bin/python3
"""The service under a real systemd, which systemd-nspawn boots in a copy of this system's own root.

    service.py [MUSTER] [--unit=FILE] [--packages=DIRECTORY] [--keep]

Without packages, the unit and the program as they were built are put in their places, and the
service is started without a token, with one, and with one that it may not use. With packages, every
command of docs/install.md is run as it stands. Exits with 77 where no systemd can be booted.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from rig import HERE, Checks, muster_path, option

ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "tree"))
import pages  # noqa: E402

checks = Checks()
SKIP = 77
BOOT_SECONDS = 240

# Begins each command's output; the number is that of the command.
MARK = "--8<-- "

TRIAL = """[Unit]
Description=what is tried
After=basic.target
[Service]
Type=oneshot
ExecStart=/bin/sh /trial/run
StandardOutput=append:/trial/output
StandardError=inherit
Environment=HOME=/trial LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
ExecStopPost=systemctl poweroff --force --force
"""


class Machine:
    """A root that is this system's, over which others' files can be written without harm. Its mounts
    are in a namespace of this process's own."""

    def __init__(self, work):
        self.root = os.path.join(work, "root")
        upper, spare = os.path.join(work, "upper"), os.path.join(work, "spare")
        for path in (self.root, upper, spare):
            os.mkdir(path)
        run("mount", "-t", "overlay", "overlay", "-o",
            f"lowerdir=/,upperdir={upper},workdir={spare}", self.root)
        self.write("/etc/machine-id", "")
        self.write("/etc/hostname", "node0\n")
        self.write("/etc/hosts", "127.0.0.1 localhost node0\n")
        for path in ("/usr/sbin/policy-rc.d", "/etc/default/muster", "/etc/credstore/muster.token"):
            if os.path.lexists(self.root + path):
                os.remove(self.root + path)

    def write(self, path, text, mode=0o644):
        whole = self.root + path
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        if os.path.islink(whole):
            os.remove(whole)
        with open(whole, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(whole, mode)

    def copy(self, path, to):
        os.makedirs(os.path.dirname(self.root + to), exist_ok=True)
        shutil.copy(path, self.root + to)

    def boot(self, commands):
        """Boots, runs the commands, each in the same shell, and powers off. Returns a list of (exit
        code, output), or None with the console's text if no systemd came up."""
        script = "mkdir -p /trial\n" + "".join(
            f"printf '\\n{MARK}{i}\\n'\n{{\n{command}\n}} </dev/null\nprintf '\\n{MARK}= %d\\n' $?\n"
            for i, command in enumerate(commands))
        self.write("/trial/run", script)
        self.write("/etc/systemd/system/trial.service", TRIAL)
        # Where the host's own root has services enabled, they stay off: only what is needed starts.
        self.write("/etc/systemd/system/trial.target",
                   "[Unit]\nRequires=basic.target trial.service\nAfter=basic.target\n")
        self.write("/trial/output", "")
        for unit in ("systemd-udevd.service", "systemd-udev-trigger.service", "timers.target",
                     "systemd-resolved.service", "systemd-networkd.service",
                     "systemd-networkd.socket", "systemd-timesyncd.service", "remote-fs.target",
                     "systemd-firstboot.service", "systemd-hwdb-update.service"):
            path = self.root + "/etc/systemd/system/" + unit
            if os.path.lexists(path):
                os.remove(path)
            os.symlink("/dev/null", path)
        # A network of its own, in which loopback is up; no registration, as there may be no machined.
        command = ["systemd-nspawn", "--quiet", "--directory", self.root, "--boot", "--register=no",
                   "--keep-unit", "--private-network", "--console=pipe", "--notify-ready=no",
                   "--resolv-conf=off", "--timezone=off", "--link-journal=no",
                   "--", "--unit=trial.target", "--show-status=no"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        try:
            said = process.communicate(timeout=BOOT_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + "\nthe machine did not power off in time"
        with open(self.root + "/trial/output", encoding="utf-8", errors="replace") as file:
            output = file.read()
        results = re.findall(rf"^{MARK}(\d+)\n(.*?)\n?^{MARK}= (\d+)$", output, re.M | re.S)
        return [(int(code), text.strip()) for _, text, code in results], said + output


def run(*command, **more):
    return subprocess.run(command, check=True, **more)


class Cgroup:
    """A control group of our own for as long as the machine runs, so that two machines do not meet,
    and nothing is left. Where there is no place for one, the machine runs in ours."""

    # The hierarchies in which systemd-nspawn makes groups, where both versions are mounted.
    BOTH = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")

    def __enter__(self):
        self.bases = [path for path in self.BOTH if os.path.isdir(path)] or ["/sys/fs/cgroup"]
        self.name = "muster-service-%s" % os.urandom(6).hex()
        self.entered = []
        for base in self.bases:
            try:
                os.mkdir(os.path.join(base, self.name))
                self.move(os.path.join(base, self.name))
                self.entered.append(base)
            except OSError:
                pass
        return self

    def move(self, path):
        with open(os.path.join(path, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")

    def __exit__(self, *_):
        for base in self.entered:
            self.move(base)
            for folder in sorted((found[0] for found in os.walk(os.path.join(base, self.name))),
                                 reverse=True):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass


def in_own_namespaces():
    """Begins again where mounts are nobody else's."""
    if os.environ.get("MUSTER_TEST_MOUNTS"):
        return
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        print("skipped: it takes root and systemd-nspawn", flush=True)
        sys.exit(SKIP)
    os.environ["MUSTER_TEST_MOUNTS"] = "own"
    os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                          "--propagation=private", sys.executable] + sys.argv)


def skip_without_boot(results, said):
    if not results:
        print(said[-3000:])
        print("skipped: no systemd could be booted here", flush=True)
        sys.exit(SKIP)


# --- the unit -------------------------------------------------------------------------------------

UNIT_TRIAL = {
    "start without a token": "systemctl start muster && systemctl is-active muster",
    "use it": "muster kv --store tcp://127.0.0.1:29400 set greeting hello &&"
              " muster kv --store tcp://127.0.0.1:29400 get greeting",
    "ask for more than that": "systemctl stop muster; mkdir -p -m 700 /etc/credstore;"
                              " echo 'MUSTER_SERVE=\"--listen 0.0.0.0:29400 --http 0.0.0.0:29401\"'"
                              " >/etc/default/muster; systemctl start muster;"
                              " journalctl --sync; journalctl -u muster --no-pager -o cat | tail -n 5",
    "store a token": "systemctl stop muster; systemctl reset-failed muster;"
                     " muster keygen token /etc/credstore/muster.token &&"
                     " systemctl start muster && systemctl is-active muster",
    "with the token": "cp /etc/credstore/muster.token /trial/job.token && ip addr add 10.9.8.7/32 dev lo;"
                      " muster kv --store tcp://10.9.8.7:29400 --token-file /trial/job.token get greeting",
    "without it": "muster kv --store tcp://10.9.8.7:29400 --timeout 3 get greeting",
    "with another": "muster keygen token /trial/other.token; muster kv --store tcp://10.9.8.7:29400"
                    " --token-file /trial/other.token --timeout 3 get greeting",
    "who can read it": "pid=$(systemctl show -p MainPID --value muster); id -u nobody;"
                       " awk '/^Uid:/ { print \"uid\", $2 }' /proc/$pid/status;"
                       " tr '\\0' '\\n' </proc/$pid/environ | grep -c MUSTER_TOKEN;"
                       " journalctl -u muster --no-pager -o cat | grep -c \"$(cat /trial/job.token)\"",
    "as nobody": "setpriv --reuid nobody --regid nogroup --clear-groups"
                 " sh -c 'cat /run/credentials/muster.service/muster.token'",
    "replace it": "rm /etc/credstore/muster.token; muster keygen token /etc/credstore/muster.token;"
                  " systemctl restart muster && muster kv --store tcp://10.9.8.7:29400 --token-file"
                  " /etc/credstore/muster.token get greeting",
    "kill it": "systemctl kill -s KILL muster; sleep 3; systemctl is-active muster",
    "stop it": "systemctl stop muster; systemctl show -p Result -p ExecMainStatus muster",
    "its exposure": "systemd-analyze security --no-pager muster | tail -n 1",
}


def try_unit(machine, muster, unit):
    machine.copy(muster, "/usr/bin/muster")
    with open(unit, encoding="utf-8") as file:
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/usr/bin/muster", file.read(), flags=re.M)
    machine.write("/lib/systemd/system/muster.service", text)
    results, said = machine.boot(list(UNIT_TRIAL.values()))
    skip_without_boot(results, said)
    if not checks.equal(len(results), len(UNIT_TRIAL), "every command was run"):
        print(said)
    done = dict(zip(UNIT_TRIAL, results))
    for name, wanted in (("start without a token", (0, "active")), ("use it", (0, "hello")),
                         ("with the token", (0, "hello")), ("replace it", (0, "hello")),
                         ("kill it", (0, "active"))):
        checks.equal((done[name][0], done[name][1].split("\n")[-1]), wanted, name)
    checks.ok("needs a token" in done["ask for more than that"][1],
              "without a token it does not listen for others, and says why",
              done["ask for more than that"])
    checks.equal(done["store a token"][1].split("\n")[-1], "active", "a token that was stored is used")
    checks.ok(done["without it"][0] != 0 and done["with another"][0] != 0,
              "others need that token", (done["without it"], done["with another"]))
    nobody, uid, in_environment, in_log = (done["who can read it"][1] + "\n\n\n").split("\n")[:4]
    checks.ok(uid.startswith("uid ") and uid not in ("uid 0", "uid " + nobody) and
              (in_environment, in_log) == ("0", "0"),
              "the server has a user of its own; the token is in no environment and no log",
              done["who can read it"])
    checks.ok(done["as nobody"][0] != 0 and "denied" in done["as nobody"][1],
              "another user cannot read it", done["as nobody"])
    checks.ok("Result=success" in done["stop it"][1] and "ExecMainStatus=0" in done["stop it"][1],
              "it ends well", done["stop it"])
    checks.ok(re.search(r"for muster\.service: ([01]\.\d) OK", done["its exposure"][1]),
              "systemd finds it little exposed", done["its exposure"])
    checks.note(done["its exposure"][1])


# --- docs/install.md ------------------------------------------------------------------------------

# What is installed first, as an older version of the same.
OLD_VERSION = "0.0.1"


def age(path, to):
    """Writes the package as one of an older version."""
    with tempfile.TemporaryDirectory() as work:
        run("dpkg-deb", "-R", path, work)
        control = os.path.join(work, "DEBIAN", "control")
        with open(control, encoding="utf-8") as file:
            text = file.read()
        version = re.search(r"^Version: (\S+)", text, re.M)[1]
        with open(control, "w", encoding="utf-8") as file:
            file.write(re.sub(rf"^(Version: |Depends: libmuster0 \(= ){re.escape(version)}",
                              r"\g<1>" + OLD_VERSION, text, flags=re.M))
        run("dpkg-deb", "--root-owner-group", "--build", work, to, stdout=subprocess.DEVNULL)


def list_commands(page):
    """(line of the page, or 0 for one of ours; command)"""
    lines = []
    for block in page.blocks:
        if block.mark == "install upgrade":
            lines += [(0, "systemctl show -p MainPID --value muster >/trial/pid"),
                      (0, "rm build-deb/packages/*; cp /trial/new/* build-deb/packages/")]
        if block.mark == "install prometheus":
            lines.append((block.number, "cat >/trial/prometheus.yml <<'EOF'\n" + block.text() + "EOF\n"
                          "promtool check config /trial/prometheus.yml"))
        elif block.mark.startswith("install "):
            if block.mark == "install try":
                lines.append((block.number, "cp /etc/credstore/muster.token job.token"))
            lines += list(block.commands())
        if block.mark == "install packages":
            names = [re.sub(r"\.\d$", "", os.path.basename(path))
                     for path in sorted(glob.glob(os.path.join(ROOT, "docs/man/*.[17]")))]
            lines += [(0, "mandb -q 2>/dev/null; whatis %s libmuster muster_store_open p2pd 2>&1 |"
                       " tee /trial/whatis; ! grep nothing /trial/whatis" % " ".join(names)),
                      (0, "apropos rendezvous | grep muster-rdzv")]
        if block.mark == "install upgrade":
            lines += [(0, "[ $(cat /trial/pid) != $(systemctl show -p MainPID --value muster) ]"),
                      (0, "[ $(dpkg-query -W -f '${Version}' muster) != %s ]" % OLD_VERSION)]
    return lines


def try_packages(machine, packages):
    """The page's commands, in its order. apt-get needs no network: all that the packages need is
    here, as they were built here."""
    page = next(page for page in pages.read_pages(ROOT) if page.path == "docs/install.md")
    for path in glob.glob(os.path.join(packages, "*.deb")):
        machine.copy(path, "/trial/new/" + os.path.basename(path))
        os.makedirs(machine.root + "/trial/tree/build-deb/packages", exist_ok=True)
        age(path, machine.root + "/trial/tree/build-deb/packages/" + os.path.basename(path))
    machine.write("/trial/bin/make", "#!/bin/sh\n[ \"$*\" = deb ]\n", 0o755)  # they are made
    lines = list_commands(page)
    prologue = "cd /trial/tree; export PATH=/trial/bin:$PATH"
    results, said = machine.boot([prologue] + [line for _, line in lines] + [
        "ls -d /usr/bin/muster /lib/systemd/system/muster.service /usr/share/muster /var/lib/muster"
        " /var/lib/private/muster /usr/share/doc/muster /usr/share/man/man1/muster.1.gz"
        " /etc/systemd/system/multi-user.target.wants/muster.service"])
    skip_without_boot(results, said)
    if not checks.equal(len(results), len(lines) + 2, "every command was run"):
        print(said)
    for (number, line), (code, text) in zip(lines, results[1:]):
        wanted = re.search(r"# prints (.*)$", line)
        name = f"docs/install.md:{number}: {line.splitlines()[-1]}" if number else line[:60]
        checks.ok(code == 0, name, f"ended with {code}: {text}")
        if wanted:
            checks.equal(text.split("\n")[-1], wanted[1], f"docs/install.md:{number}: prints")
    checks.equal(results[-1][1].count("No such file"), 8, "nothing is left after that")


def main():
    in_own_namespaces()
    packages = option("packages", "")
    muster = muster_path()
    unit = option("unit", "") or os.path.join(os.path.dirname(muster), "data", "muster.service")
    with tempfile.TemporaryDirectory(prefix="muster-service-") as work, Cgroup():
        # An overlay wants its upper directory on a file system that is not an overlay itself.
        run("mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", work)
        try:
            machine = Machine(work)
            if packages:
                try_packages(machine, os.path.abspath(packages))
            else:
                try_unit(machine, muster, unit)
        finally:
            subprocess.run(["umount", "-l", os.path.join(work, "root")], check=False)
            subprocess.run(["umount", "-l", work], check=False)
    checks.done()


main()
