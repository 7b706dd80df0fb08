#!/usr/bin/python3
"""Jobs with PyTorch workers on several hosts, for hours, while everything around them changes.

usage: soak.py MUSTER [--hours=H] [--seed=N] [--csv=FILE]

Four hosts (tests/hosts/rig.py). On node0 live servers, a worker to call and a donor, locked with
a token and with certificates, on machines that have been up for almost 2^31 and 2^32
milliseconds. On the others agents of `muster run` train examples/ddp.py, one job behind the
other; nodes join, are killed and are cut off, the server that keeps its keys on disk is killed
and paused, certificates are replaced, and the wall clock moves, by 30 days at least. All the time
somebody stores, calls and pulls.

It fails when a job is lost, when what was asked is not answered in the end, when nothing is said
and nothing goes on for a minute, when a long-lived process holds more and more, and when one does
not end in order. Memory and descriptors are in the CSV file.
"""
import hashlib
import os
import random
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "hosts"))
from rig import Rig, muster_path, option  # noqa: E402
from soak_figures import Figures  # noqa: E402
from soak_job import Job  # noqa: E402

SECONDS = 3600 * option("hours", 8.0)
SEED = option("seed", random.SystemRandom().getrandbits(32))
CSV = os.path.abspath(option("csv", "soak.csv"))
DAYS = 31                # that pass at the least
DAYS_A_MINUTE = max(1 / 3, DAYS / max(1, SECONDS / 60 - 1))
CERT_DAYS, RENEW_DAYS = 30, 10
# Where a count of milliseconds in 31 or 32 bits begins anew, in days.
WRAPS = ((1 << 31) / 86400e3, (1 << 32) / 86400e3)
CHORE_S = 120            # within which what is asked is answered, whatever happens meanwhile
MINUTE = 60


class Resident:
    """A process that is there from the beginning to the end."""

    def __init__(self, soak, name, wrap, ahead_s, *argv, host=0, ends_with=(0,)):
        self.soak, self.name, self.wrap, self.ahead_s = soak, name, wrap, ahead_s
        self.argv, self.lives, self.process = argv, 0, None
        self.host, self.ends_with = soak.hosts[host], ends_with
        self.start()

    def start(self):
        self.lives += 1
        up = self.wrap - (self.ahead_s - self.soak.elapsed()) / 86400
        self.process = self.host.start(self.soak.muster, *self.argv, clock=True, uptime_days=up)

    def sample(self):
        return self.process.rss(), self.process.fds()


class Chore:
    """Something that is asked again and again; each time it must be answered in the end."""

    def __init__(self, soak, name, gap_s, argv, check):
        self.soak, self.name, self.gap_s, self.argv, self.check = soak, name, gap_s, argv, check
        self.done = self.tries = 0
        self.worst = 0.0
        self.process, self.begun, self.due = None, None, 0.0

    def tick(self, now):
        """What went wrong, or None."""
        if self.process is None:
            if now >= self.due:
                self.begun = now if self.begun is None else self.begun
                self.tries += 1
                host = self.soak.random.choice(self.soak.hosts[1:])
                self.process = host.start(*self.argv(host), clock=True)
                self.started = now
            return None
        if self.process.alive() and now - self.started < CHORE_S:
            return None
        ended, out = not self.process.alive(), self.process.output()
        if not ended:
            self.process.kill()
        good = ended and self.process.popen.returncode == 0 and self.check(out)
        os.unlink(self.process.log)
        self.process = None
        if good:
            self.done += 1
            self.worst = max(self.worst, now - self.begun)
            self.begun, self.due = None, now + self.gap_s
        elif now - self.begun > CHORE_S:
            return "%s was not answered within %d s: %s" % (self.name, CHORE_S, out[-300:])
        else:
            self.due = now + 1
        return None


class Soak:
    def __init__(self, rig):
        self.rig, self.hosts = rig, rig.hosts
        self.random = random.Random(SEED)
        self.started = time.monotonic()
        self.path = os.path.join(rig.path, "shared")
        self.days = self.renewed = 0.0
        self.wraps = WRAPS
        self.counts = {}
        self.jobs_done, self.job, self.troubles = 0, None, []
        os.makedirs(self.path)
        # The tree may be built anew while we are at it.
        self.muster = shutil.copy(muster_path(), self.file("muster"))
        self.make_credentials()
        self.make_residents()
        self.make_chores()
        self.figures = Figures(CSV, SECONDS)

    def elapsed(self):
        return time.monotonic() - self.started

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def file(self, *names):
        return os.path.join(self.path, *names)

    # -- credentials

    def make_credentials(self):
        self.token = self.file("job.token")
        self.hosts[0].must_run(self.muster, "keygen", "token", self.token)
        os.makedirs(self.file("certs"))
        self.renew()

    def renew(self):
        """New certificates of the same authority, for all hosts, in the place of the old ones."""
        made = self.file("new")
        os.makedirs(made, exist_ok=True)
        for name in os.listdir(made):
            if not name.startswith("ca."):
                os.unlink(os.path.join(made, name))
        code, _, err = self.hosts[0].run(
            self.muster, "keygen", "tls", made, "--days", str(CERT_DAYS), "--host",
            ",".join(host.name for host in self.hosts), clock=True)
        assert code == 0, err
        for name in os.listdir(made):
            if name == "ca.key":
                continue
            with open(os.path.join(made, name), "rb") as file:
                data = file.read()
            with open(self.file("certs", name + ".part"), "wb", opener=lambda path, flags: os.open(
                    path, flags, 0o600)) as file:
                file.write(data)
            os.replace(self.file("certs", name + ".part"), self.file("certs", name))
        self.renewed = self.days
        self.count("renewals")

    def lock(self, kind, host):
        if kind == "token":
            return ["--token-file", self.token]
        return ["--tls-cert", self.file("certs", host.name + ".pem"), "--tls-key",
                self.file("certs", host.name + ".key"), "--tls-ca", self.file("certs", "ca.pem")]

    # -- who is there

    def make_residents(self):
        def locked(kind):
            return self.lock(kind, self.hosts[0])

        self.model = self.file("model.safetensors")
        head = b'{"a":{"dtype":"F32","shape":[65536],"data_offsets":[0,262144]}}'
        head += b" " * (-len(head) % 8)
        with open(self.model, "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head + bytes(range(256)) * 1024)
        early, late = WRAPS
        r = {}
        r["serve token"] = Resident(self, "serve token", late, 180, "serve", "--listen",
                                    "0.0.0.0:29400", "--data-dir", self.file("data"),
                                    *locked("token"))
        r["serve certs"] = Resident(self, "serve certs", early, 120, "serve", "--listen",
                                    "0.0.0.0:29410", *locked("certs"))
        r["rpc token"] = Resident(self, "rpc token", early, 60, "rpc", "serve", "--listen",
                                  "0.0.0.0:29600", "--advertise", "node0", *locked("token"))
        r["state certs"] = Resident(self, "state certs", late, 90, "state", "serve", "--listen",
                                    "0.0.0.0:29700", "--advertise", "node0", *locked("certs"),
                                    self.model)
        # A job that lasts, for what its agents hold; it is hit by what is done to the hosts.
        # SIGTERM is its end, and is what it says.
        for number, name in ((1, "agent host"), (2, "agent member")):
            r[name] = Resident(self, name, early, 150, "run", "--nnodes", "1:2", "--rdzv-endpoint",
                               "node1:29490", "--rdzv-id", "standing", "--max-restarts", "100000",
                               *self.lock("certs", self.hosts[number]), "--no-python", "sleep",
                               "infinity", host=number, ends_with=(0, 1, 128 + 15))
        self.residents = r

    def make_chores(self):
        with open(self.model, "rb") as file:
            whole = hashlib.sha256(file.read()).hexdigest()

        def kv(port, kind):
            # One that sets and gets in the same breath: what was acknowledged is there.
            line = '"$0" "$@" set soak/$$ v$$ && test "$("$0" "$@" get soak/$$)" = v$$ && ' \
                '"$0" "$@" del soak/$$'
            return lambda host: ["sh", "-c", line, self.muster, "kv", "--store",
                                 "tcp://node0:%d" % port, "--timeout", "20s",
                                 *self.lock(kind, host)]

        def pulled(_out):
            with open(self.file("copy"), "rb") as file:
                same = hashlib.sha256(file.read()).hexdigest() == whole
            os.unlink(self.file("copy"))
            return same

        self.chores = [
            Chore(self, "kv token", 5, kv(29400, "token"), lambda out: True),
            Chore(self, "kv certs", 5, kv(29410, "certs"), lambda out: True),
            Chore(self, "rpc token", 3, lambda host: [
                self.muster, "rpc", "call", "--to", "node0:29600", *self.lock("token", host),
                "--timeout", "20", "muster::Rpc.echo", "hello"], lambda out: "hello" in out),
            Chore(self, "state certs", 15, lambda host: [
                self.muster, "state", "pull", "-q", "--no-serve", "-o", self.file("copy"),
                *self.lock("certs", host), "node0:29700"], pulled)]

    # -- what happens

    def kill_server(self):
        server = self.residents["serve token"]
        server.process.kill()
        self.count("server kills")
        server.start()

    def pause_server(self, seconds):
        server = self.residents["serve token"].process
        server.pause()
        self.later.append((self.elapsed() + seconds, server.resume))
        self.count("server pauses")

    def cut(self, host, seconds):
        host.link.cut()
        self.later.append((self.elapsed() + seconds, host.link.heal))
        self.count("cuts")

    def pass_minute(self):
        self.rig.advance(days=DAYS_A_MINUTE)
        self.days += DAYS_A_MINUTE
        if self.days - self.renewed >= RENEW_DAYS:
            self.renew()
        self.say_progress()

    def say_progress(self):
        print("%3d min, %5.1f days: %d jobs done, %s; %s; %s" % (
            self.elapsed() / 60, self.days, self.jobs_done,
            self.job.text() if self.job else "none under way",
            ", ".join("%s %d" % item for item in sorted(self.counts.items())),
            ", ".join("%s %d" % (c.name, c.done) for c in self.chores)), flush=True)

    def tick(self):
        now = self.elapsed()
        for due in [one for one in self.later if one[0] <= now]:
            self.later.remove(due)
            due[1]()
        for resident in self.residents.values():
            if not resident.process.alive():
                self.troubles.append("%s ended: %s" % (resident.name,
                                                       resident.process.output()[-500:]))
        for chore in self.chores:
            trouble = chore.tick(now)
            if trouble:
                self.troubles.append(trouble)
        self.tick_job(now)

    def tick_job(self, now):
        if self.job is None and now < SECONDS - 2 * MINUTE:
            self.job = Job(self, self.jobs_done + 1)
        if self.job is None:
            return
        trouble = self.job.tick(now)
        if trouble:
            self.troubles.append(trouble)
        elif self.job.over:
            self.jobs_done += 1
            self.job = None

    def run(self):
        self.later = []
        minute = sample = 0.0
        while not self.troubles and (self.elapsed() < SECONDS or self.job):
            now = self.elapsed()
            if now >= minute + MINUTE:
                minute += MINUTE
                self.pass_minute()
            if now >= sample:
                sample += self.figures.gap_s
                self.figures.take(now, self.days, self.residents.values())
            self.tick()
            time.sleep(0.1)
        self.figures.take(self.elapsed(), self.days, self.residents.values())
        for _, action in self.later:
            action()

    def end(self):
        """Ends the residents, and judges."""
        for resident in self.residents.values():
            code = resident.process.stop(60) if resident.process.alive() else 0
            if code not in resident.ends_with:
                self.troubles.append("%s ended with %s: %s" % (
                    resident.name, code, resident.process.output()[-500:]))
        self.troubles += self.figures.judge()
        if not self.troubles and self.days < DAYS - 1:
            self.troubles.append("only %.1f days have passed" % self.days)
        self.say_progress()
        print("\n" + self.figures.table())
        print("\n%-14s %8s %8s %10s" % ("asked", "answered", "tries", "worst s"))
        for chore in self.chores:
            print("%-14s %8d %8d %10.1f" % (chore.name, chore.done, chore.tries, chore.worst))
        print("\n%d jobs done, %d lost; %.2f hours, %.1f days; %s; seed %d" % (
            self.jobs_done, sum("was lost" in t for t in self.troubles), self.elapsed() / 3600,
            self.days, ", ".join("%s %d" % item for item in sorted(self.counts.items())), SEED))
        for trouble in self.troubles:
            print("FAILED: " + trouble)
        return 1 if self.troubles or self.jobs_done == 0 else 0


def main():
    print("seed %d, %.2f hours, %.2f days a minute" % (SEED, SECONDS / 3600, DAYS_A_MINUTE),
          flush=True)
    with Rig(4, seed=SEED & 0xffff) as rig:
        soak = Soak(rig)
        try:
            soak.run()
        except KeyboardInterrupt:
            soak.troubles.append("it was stopped")
        return soak.end()


if __name__ == "__main__":
    sys.exit(main())
