"""An honest client of a store, which asks at fixed times: how long each answer took from the time
when it was asked for, or should have been. Prints `p50 p99 max failures`, in ms.

usage: honest.py requests HOST PORT SECONDS RATE       one connection of PyTorch's protocol
       honest.py commands SECONDS RATE COMMAND...      a command, from its start to its end
       honest.py page URL AUTHORIZATION SECONDS RATE   a page
       honest.py nothing SECONDS RATE                  nothing: how late this machine wakes us
"""
import os
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from lib import Conn  # noqa: E402


LATE = 30  # seconds after which what was not asked yet has failed


def ask_at_fixed_times(ask, seconds, rate):
    """One asks after the other; who is late stays late, and that is counted."""
    took, failures = [], 0
    begin = time.monotonic()
    for i in range(int(seconds * rate)):
        due = begin + i / rate
        if time.monotonic() > begin + seconds + LATE:
            failures += 1
            continue
        time.sleep(max(0, due - time.monotonic()))
        try:
            ask()
        except Exception as error:  # whatever it is, it is a failure of the server's
            failures += 1
            print(error, file=sys.stderr)
        took.append((time.monotonic() - due) * 1000)
    tell(took, failures)


def tell(took, failures):
    took.sort()
    print("%.2f %.2f %.2f %d" % (took[len(took) // 2], took[len(took) * 99 // 100], took[-1],
                                 failures))


def requests(host, port, seconds, rate):
    with Conn(int(port), 2, host=host, patience=60) as conn:
        conn.set_acked("/honest", "x" * 64)
        ask_at_fixed_times(lambda: conn.get("/honest"), float(seconds), float(rate))


def commands(seconds, rate, *command):
    """Each is somebody else's, and waits for no other."""
    took, failures = [], []

    def ask(due):
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            failures.append(due)
        took.append((time.monotonic() - due) * 1000)

    begin, threads = time.monotonic(), []
    for i in range(int(float(seconds) * float(rate))):
        due = begin + i / float(rate)
        time.sleep(max(0, due - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(due,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    tell(took, len(failures))


def page(url, authorization, seconds, rate):
    request = urllib.request.Request(url, headers={"Authorization": authorization})
    ask_at_fixed_times(lambda: urllib.request.urlopen(request, timeout=60).read(), float(seconds),
                       float(rate))


def nothing(seconds, rate):
    ask_at_fixed_times(lambda: None, float(seconds), float(rate))


if __name__ == "__main__":
    {"requests": requests, "commands": commands, "page": page,
     "nothing": nothing}[sys.argv[1]](*sys.argv[2:])
