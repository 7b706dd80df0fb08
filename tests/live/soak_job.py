"""A job of soak.py: agents of `muster run` on some hosts, what is done to them, and whether they
come to the end."""
import os
import re

from rig import HERE

DDP = os.path.join(HERE, "..", "..", "examples", "ddp.py")
EPOCHS = 6000
SILENCE = 60   # seconds in which neither a word is said nor an epoch passes
PATIENCE = 600


class Job:
    """Elastic, of two or three nodes. What is done to it is drawn at its start, and happens when it
    has trained for so long, so that there is a way to go behind each."""

    def __init__(self, soak, number):
        self.soak, self.number = soak, number
        self.began = soak.elapsed()
        self.kind = ("token", "certs")[number % 2]
        self.hosted = number % 4 >= 2  # by an agent, not by a server
        self.over, self.epoch, self.moved = False, 0, self.began
        self.agents, self.heard = {}, {}
        self.late = []  # agents that were started again, and may come when all is over
        self.checkpoint = soak.file("job%d.pt" % number)
        self.nodes = soak.hosts[1:]
        self.waiting = []  # (when, host) of agents to be started
        for host in self.nodes[:2]:
            self.start(host)
        draw = soak.random
        deeds = [self.join, self.lose, self.cut]
        if self.kind == "token" and not self.hosted:
            deeds += [self.kill_server, self.pause_server]
        self.plan = sorted((draw.uniform(0.05, 0.6), index, draw.choice(deeds))
                           for index in range(draw.randint(1, 4)))

    def start(self, host):
        port = 29400 if self.kind == "token" else 29410
        # A hosted job's place is its own: the one before may not have let go of it.
        endpoint = ("%s:%d" % (self.nodes[0].name, 29500 + self.number % 64) if self.hosted
                    else "node0:%d" % port)
        self.agents[host] = host.start(
            self.soak.muster, "run", "--nnodes", "2:3", "--nproc-per-node", "1",
            "--rdzv-endpoint", endpoint, "--rdzv-id", "soak-%d" % self.number,
            "--rdzv-conf", "last_call_timeout=3",
            "--max-restarts", "10", "--grace", "5", *self.soak.lock(self.kind, host), DDP,
            str(EPOCHS), self.checkpoint, clock=True,
            uptime_days=self.soak.random.choice(self.soak.wraps) - 20 / 86400,
            env={"PYTHON_EXEC": "/usr/bin/python3", "OMP_NUM_THREADS": "1",
                 "GLOO_SOCKET_IFNAME": "eth0"})
        self.soak.count("agents")

    # -- what is done to it

    def others(self):
        """Nodes that may be lost: with a hosted job, all but the host."""
        return [h for h in self.agents if not (self.hosted and h is self.nodes[0])]

    def join(self):
        for host in self.nodes:
            if host not in self.agents:
                self.start(host)
                self.soak.count("joins")
                return

    def lose(self):
        host = self.soak.random.choice(self.others())
        self.agents.pop(host).kill()
        self.soak.count("agent kills")
        self.waiting.append((self.soak.elapsed() + self.soak.random.uniform(1, 8), host))

    def cut(self):
        self.soak.cut(self.soak.random.choice(self.others()), self.soak.random.uniform(1, 6))

    def kill_server(self):
        self.soak.kill_server()

    def pause_server(self):
        self.soak.pause_server(self.soak.random.uniform(1, 8))

    # -- how it stands

    def text(self):
        return "job %d (%s, %s) at epoch %d with %d nodes" % (
            self.number, self.kind, "hosted" if self.hosted else "at a server", self.epoch,
            len(self.agents))

    def listen(self, now):
        """Whether anything was said, and how far it is."""
        for host, agent in self.agents.items():
            size = os.path.getsize(agent.log)
            if self.heard.get(agent.log) == size:
                continue
            self.heard[agent.log] = size
            self.moved = now
            with open(agent.log, "rb") as file:
                file.seek(max(0, size - 2000))
                epochs = re.findall(rb"epoch (\d+) of", file.read())
            if epochs:
                self.epoch = max(self.epoch, int(epochs[-1]))

    def tick(self, now):
        """What went wrong, or None."""
        self.listen(now)
        for due in [one for one in self.waiting if one[0] <= now]:
            self.waiting.remove(due)
            self.start(due[1])
            self.late.append(due[1])
        while self.plan and self.epoch >= self.plan[0][0] * EPOCHS:
            self.plan.pop(0)[2]()
        self.dismiss()
        codes = [agent.popen.poll() for agent in self.agents.values()]
        if any(code not in (None, 0) for code in codes):
            return self.lost("an agent ended with %s" % codes)
        if self.epoch >= EPOCHS and all(code == 0 for code in codes) and not self.waiting:
            self.finish()
        elif now - self.moved > SILENCE:
            return self.lost("nothing was said for %d s" % SILENCE)
        elif now - self.began > PATIENCE:
            return self.lost("it had not ended after %d s" % PATIENCE)
        return None

    def dismiss(self):
        """Ends who came back when the work was done and the host of it gone: it cannot know."""
        host = self.agents.get(self.nodes[0])
        if not (self.hosted and self.epoch >= EPOCHS and host and host.popen.poll() == 0):
            return
        for late in [one for one in self.late if one in self.agents]:
            agent = self.agents[late]
            if agent.alive() and "cannot connect to" in agent.output():
                agent.stop()
                del self.agents[late]
                self.soak.count("came too late")

    def finish(self):
        self.over = True
        for agent in self.agents.values():
            os.unlink(agent.log)

    def lost(self, why):
        text = "job %d was lost (%s, %s): %s" % (self.number, self.kind,
                                                 "hosted" if self.hosted else "at a server", why)
        for host, agent in self.agents.items():
            lines = [line for line in agent.output().splitlines() if not line.startswith("epoch")]
            text += "\n--- %s\n%s" % (host.name, "\n".join(lines[-15:]))
        return text
