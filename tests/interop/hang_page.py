#!/usr/bin/python3
"""The status page of an agent whose job hangs, in a real browser: who is missing, and a link to the
stacks of all ranks, which a stranger does not get.

usage: hang_page.py path/to/muster [--shots=DIRECTORY]
"""
import os
import re
import subprocess
import urllib.error
import urllib.request

from browser import Browser
from lib import HOST, Checks, Scratch, die_with_parent, muster_path, option, wait_until

TOKEN = "correct-horse-battery-staple"
WORKER = """
import os, sys, time
def load_batch():
    time.sleep(1000)
def all_reduce():
    time.sleep(1000)
while not os.path.exists(sys.argv[1]):
    print("step", flush=True)
    time.sleep(0.1)
load_batch() if os.environ["RANK"] == "2" else all_reduce()
"""
TEXT = "(document.getElementById('%s') || {}).innerText || ''"
STATES = "[...document.querySelectorAll('#agent tr td:nth-child(4)')].map(cell => cell.innerText).join(' ')"
checks = Checks()


def get(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()


def start(scratch, *options):
    path = os.path.join(scratch, "train.py")
    with open(path, "w") as file:
        file.write(WORKER)
    errors = os.path.join(scratch, "errors")
    with open(errors, "wb") as out:
        process = subprocess.Popen(
            [muster_path(), "run", "--nproc-per-node", "4", "--hang", "1s", "--http", HOST + ":0", *options,
             path, os.path.join(scratch, "hang")], stdout=subprocess.DEVNULL, stderr=out, preexec_fn=die_with_parent)

    def said():
        with open(errors, errors="replace") as file:
            return file.read()
    page = re.search(r"status at (http://[0-9.:]+/)", wait_until(
        lambda: said() if "status at" in said() else None, "the page"))[1]
    return process, page, said


def test_seen(scratch):
    process, page, said = start(scratch)
    try:
        with Browser(1200, 800) as browser:
            browser.open(page)
            checks.ok("has not hung" in get(page + "stacks")[2], "before a hang, the page of stacks says so")
            checks.equal(wait_until(lambda: browser.evaluate(STATES), "the ranks are on the page"),
                         "running running running running", "before a hang, all run")
            with open(os.path.join(scratch, "hang"), "w"):
                pass
            seen = wait_until(lambda: browser.evaluate(TEXT % "hang"), "the hang is on the page", patience=60)
            checks.ok("is missing" in seen and "rank 2 in load_batch at train.py:4" in seen, "who is missing", seen)
            checks.equal(browser.evaluate(STATES), "running running missing running", "the missing rank is marked")
            checks.ok("hangs" in browser.evaluate("document.title"), "the title says so, too")
            checks.equal(browser.evaluate(TEXT % "stacks"), "stacks of all ranks", "a link leads to the stacks")
            folder = option("shots", "") or os.path.join(os.path.dirname(muster_path()), "status-shots")
            os.makedirs(folder, exist_ok=True)
            browser.shoot(os.path.join(folder, "hang-wide.png"))
            browser.evaluate("document.getElementById('stacks').click()")
            text = wait_until(lambda: "all_reduce (" in (browser.evaluate("document.body.innerText") or "") and
                              browser.evaluate("document.body.innerText"), "the stacks are shown")
            checks.ok("3 ranks (0,1,3) in all_reduce at train.py:6" in text, "the stacks of all ranks", text)
            browser.shoot(os.path.join(folder, "hang-stacks.png"))
        status, kind, _ = get(page + "stacks")
        checks.equal((status, kind), (200, "text/plain; charset=utf-8"), "as text for programs, too")
    finally:
        process.terminate()
        process.wait(60)
        if checks.failed:
            checks.note(said())


def test_guarded(scratch):
    path = os.path.join(scratch, "token")
    with open(path, "w") as file:
        file.write(TOKEN)
    os.chmod(path, 0o600)
    process, page, _ = start(scratch, "--token-file", path)
    try:
        checks.equal(get(page + "stacks")[0], 401, "without the token there are no stacks")
        checks.equal(get(page + "stacks", TOKEN)[0], 200, "with it there are")
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    with Scratch() as scratch:
        test_seen(scratch)
    with Scratch() as scratch:
        test_guarded(scratch)
    checks.done()
