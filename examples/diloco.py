#!/usr/bin/python3
"""DiLoCo: peers train a small language model apart, and average now and then how far they came.
One of them is killed in the midst of a round, and a new one joins.

    examples/diloco.py                     four peers on this machine, and one process beside them
    examples/diloco.py --short             the same in less than a minute

Between machines, start a peer on each, the first without an address, which it prints:

    examples/diloco.py peer --listen /ip4/0.0.0.0/tcp/31337
    examples/diloco.py peer --dht /ip4/10.0.0.1/tcp/31337/p2p/12D3...

The model learns the bytes of this project's own pages. What a script of yours needs is in train().
"""
import argparse
import glob
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

import torch

import muster.average

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CONTEXT, BATCH, WIDTH, BLOCK = 12, 32, 128, 4096


# --- a model and its data -------------------------------------------------------------------------

class Model(torch.nn.Module):
    """Guesses the next byte from the last few."""

    def __init__(self):
        super().__init__()
        self.bytes = torch.nn.Embedding(256, 24)
        self.first = torch.nn.Linear(24 * CONTEXT, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.guess = torch.nn.Linear(WIDTH, 256)

    def forward(self, text):
        x = torch.relu(self.first(self.bytes(text).flatten(1)))
        return self.guess(x + torch.relu(self.second(x)))


def pages():
    """The bytes of the project's pages: those to learn, and every tenth block to judge by."""
    names = sorted(glob.glob(f"{ROOT}/*.md") + glob.glob(f"{ROOT}/docs/*.md"))
    raw = b"".join(open(name, "rb").read() for name in names)
    blocks = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long().split(BLOCK)[:-1]
    return [b for i, b in enumerate(blocks) if i % 10], torch.cat(blocks[::10])


def batch_of(text, generator, count=BATCH):
    starts = torch.randint(len(text) - CONTEXT, (count,), generator=generator)
    rows = torch.stack([text[s : s + CONTEXT + 1] for s in starts])
    return rows[:, :-1], rows[:, -1]


def loss_of(model, batch):
    given, wanted = batch
    return torch.nn.functional.cross_entropy(model(given), wanted)


def judge(model, text):
    """The loss for text that nobody learns, in nats for each byte."""
    with torch.no_grad():
        return loss_of(model, batch_of(text, torch.Generator().manual_seed(0), 2048)).item()


def train(args, outer=None, told=lambda **_: None):
    """Trains, with peers or alone; returns the model and the number of steps that were made."""
    learn, judged = pages()
    text = torch.cat(learn[args.share :: args.peers] if outer else learn)
    generator = torch.Generator().manual_seed(args.share)
    model = args.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    made = 0
    while (outer.steps if outer else made) < args.steps:
        optimizer.zero_grad()
        loss_of(model, batch_of(text, generator)).backward()
        optimizer.step()
        made += 1
        round = outer.step(BATCH) if outer else None
        if round is not None:
            told(round=round, loss=judge(model, judged))
    return judge(model, judged), made


# --- a peer ---------------------------------------------------------------------------------------

def say(**what):
    print(json.dumps(what), flush=True)


def die_in_a_round(outer, step):
    """Kills this process as soon as others count on it in a round."""
    while True:
        look = outer.look() if outer.steps >= step else None
        if look and (look.phase in ("following", "reducing") or look.followers):
            say(event="dies", step=outer.steps, phase=look.phase)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.0005)


def peer(args):
    torch.manual_seed(1000 + args.share)
    args.model = Model()
    if args.led:
        args.dht = json.loads(sys.stdin.readline())
    options = json.loads(args.options)
    outer = muster.average.Outer(args.model, every=args.every, fragments=args.fragments,
                                 prefix="diloco", dht=args.dht, listen=args.listen, **options)
    outer.load_state()
    say(event="ready", address=outer.address, step=outer.steps, loss=judge(args.model, pages()[1]))
    if args.led:
        sys.stdin.readline()
    if args.die_at:
        threading.Thread(target=die_in_a_round, args=(outer, args.die_at), daemon=True).start()

    def told(round, loss):
        say(event="round", step=round.step, fragment=round.fragment, members=round.members,
            sent=round.result.bytes_sent if round.result else 0, seconds=round.seconds,
            loaded=round.loaded, error=str(round.error or ""), loss=loss)

    loss, made = train(args, outer, told)
    say(event="done", loss=loss, made=made, versions=outer.versions)
    outer.close()


# --- four peers, one of which is killed, and a fifth ----------------------------------------------

class Child:
    """A peer in a process of its own."""

    def __init__(self, args, share, die_at=0):
        self.rows = []
        self.news = queue.Queue()
        command = [sys.executable, __file__, "peer", "--led", "--share", str(share),
                   "--die-at", str(die_at)]
        for name in ("peers", "steps", "every", "fragments", "options"):
            command += ["--" + name, str(getattr(args, name))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            row = json.loads(line)
            self.rows.append(row)
            self.news.put(row)
        self.news.put({"event": "ended"})

    def send(self, value=None):
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def wait(self, event):
        while True:
            row = self.news.get()
            if row["event"] == event:
                return row
            if row["event"] == "ended":
                raise SystemExit(f"a peer has ended: {self.rows[-1:]}")

    def all(self, event):
        return [row for row in self.rows if row["event"] == event]


def demonstrate(args):
    children = [Child(args, share, die_at=args.steps // 3 if share == args.peers - 1 else 0)
                for share in range(args.peers)]
    newcomer = Child(args, args.peers - 1)
    try:
        run(args, children, newcomer)
    finally:
        for child in [*children, newcomer]:
            child.process.kill()
            child.process.wait()


def run(args, children, newcomer):
    dht = []
    for child in children:
        child.send(dht)
        dht = [child.wait("ready")["address"]] if not dht else dht
    for child in children[1:]:
        child.wait("ready")
    began = time.monotonic()
    for child in children:
        child.send()
    *survivors, victim = children
    killed = victim.wait("dies")
    print(f"peer {args.peers - 1} is killed at step {killed['step']}, {killed['phase']}",
          flush=True)
    newcomer.send(dht)
    newcomer.send()
    joined = newcomer.wait("ready")
    others = [child.all("round")[-1]["loss"] for child in survivors]
    print(f"a new peer joins at step {joined['step']} with loss {joined['loss']:.3f}, the others "
          f"have {statistics.mean(others):.3f}", flush=True)
    peers = [*survivors, newcomer]
    ends = [child.wait("done") for child in peers]
    seconds = time.monotonic() - began
    tell(args, children, newcomer, ends, killed["step"])
    print(f"{seconds:.1f} s in all; now one process with as many steps", flush=True)
    beside(args, [end["loss"] for end in ends])


def tell(args, children, newcomer, ends, killed):
    """What each peer did, and what the kill has cost."""
    *survivors, _victim = children
    print("\n peer   steps  rounds  failed  loaded  sent/MiB  waited/s  loss")
    names = [*map(str, range(args.peers - 1)), "new"]
    for name, child, end in zip(names, [*survivors, newcomer], ends):
        rows = child.all("round")
        print(f" {name:<6} {end['made']:5}  {sum(r['members'] > 0 for r in rows):6}"
              f"  {sum(r['error'] != '' for r in rows):6}  {sum(r['loaded'] for r in rows):6}"
              f"  {sum(r['sent'] for r in rows) / 2**20:8.2f}"
              f"  {sum(r['seconds'] for r in rows):8.1f}  {end['loss']:.3f}")
    bytes_each = 4 * sum(p.numel() for p in Model().parameters())
    every_step = 2 * bytes_each * (args.peers - 1) / args.peers * args.steps
    print(f"averaging the gradients of every step would send {every_step / 2**20:.0f} MiB "
          "for each peer")
    for number, child in enumerate(survivors):
        rows = child.all("round")
        usual = statistics.median(row["seconds"] for row in rows)
        for row in rows:
            if row["step"] == killed:
                said = row["error"] or f"{row['members']} members"
                print(f"peer {number} waited {row['seconds']:.2f} s for the round of the kill, "
                      f"{usual:.2f} s for most others ({said})")


def beside(args, losses):
    torch.manual_seed(1000)
    args.model, args.share = Model(), 0
    first = judge(args.model, pages()[1])
    alone, _ = train(args)
    print(f"loss at first {first:.3f}; of the peers {statistics.mean(losses):.3f}; "
          f"of one process {alone:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("role", nargs="?", choices=("demonstration", "peer"),
                        default="demonstration")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--share", type=int, default=0, help="of the text, which a peer learns")
    parser.add_argument("--dht", action="append", default=[], help="the address of a peer")
    parser.add_argument("--listen", default="/ip4/127.0.0.1/tcp/0")
    parser.add_argument("--options", default='{"timeout": 60}', help="of Outer, as JSON")
    parser.add_argument("--die-at", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--led", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.short:
        args.steps, args.every, args.fragments = 96, 16, 2
    torch.set_num_threads(1)
    peer(args) if args.role == "peer" else demonstrate(args)


main()
