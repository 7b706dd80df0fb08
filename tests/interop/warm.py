#!/usr/bin/python3
"""`muster run --warm`: scripts of odd kinds behave the same in a worker that was a standby and in one
that was started plainly: exit code or signal, standard output, standard error, byte for byte.

Every script runs in a job of two nodes, of which the second one comes when the standby of the first
one waits; its worker is what is looked at. Addresses in memory are all that may differ.

usage: warm.py path/to/muster [--only=NAME] [--modules=torch]
"""
import concurrent.futures
import json
import os
import re
import subprocess
import textwrap
import time
import zipfile

from lib import Checks, Scratch, free_port, muster_path, option

MODULES = option("modules", "json,decimal,threading,logging,multiprocessing,random,ctypes,socket")


class Case:
    """A script, and how it is run: `words` is the command behind the options of muster run."""

    def __init__(self, name, text, words=("script.py",), options=(), files=(), stdin="", prepare=None,
                 env=(), piped=False):
        self.name, self.words, self.options, self.stdin = name, words, options, stdin
        self.files = {"script.py": text, **dict(files)}
        self.prepare, self.env, self.piped = prepare, dict(env), piped


def make_zip(directory):
    with zipfile.ZipFile(os.path.join(directory, "app.pyz"), "w") as file:
        file.writestr("__main__.py", "import sys, helper\nprint(sys.argv, sys.path[0], __file__)\n"
                      "print(__spec__, __package__)\nhelper.f()\n")
        file.writestr("helper.py", "def f():\n    raise ValueError('in a zip')\n")


def make_link(directory):
    os.mkdir(os.path.join(directory, "real"))
    os.rename(os.path.join(directory, "script.py"), os.path.join(directory, "real", "script.py"))
    os.symlink("real/script.py", os.path.join(directory, "script.py"))
    with open(os.path.join(directory, "real", "beside.py"), "w") as file:
        file.write("print('beside', __file__)\n")


def make_executable(directory):
    os.chmod(os.path.join(directory, "script.py"), 0o755)


def make_venv(directory):
    subprocess.run(["python3", "-m", "venv", "--without-pip", os.path.join(directory, "venv")], check=True)


def make_compiled(directory):
    import py_compile
    py_compile.compile(os.path.join(directory, "script.py"), os.path.join(directory, "script.pyc"))


PACKAGE = {"pack/__init__.py": "print('init', __name__)\n",
           "pack/__main__.py": "from . import other\nimport sys\nprint(__name__, __package__, sys.argv, "
                               "__spec__.name)\nother.f()\n",
           "pack/other.py": "def f():\n    raise LookupError('relative')\n",
           "pack/good.py": "import sys\nfrom .other import f\nprint(sys.argv, sys.path[0], f.__module__)\n"
                           "sys.exit(9)\n"}

CASES = [
    Case("argparse", """
        import argparse
        p = argparse.ArgumentParser(description="x")
        p.add_argument("--lr", type=float)
        p.add_argument("rest", nargs="*")
        print(p.parse_args())
        p.parse_args(["--lr", "no"])
        """, ("script.py", "--lr", "3", "a b", "é", "")),
    Case("argparse_help", "import argparse; argparse.ArgumentParser().parse_args()",
         ("script.py", "--help")),
    Case("main_module", """
        import sys
        m = sys.modules["__main__"]
        print(m is sys.modules[__name__], __file__, __name__, __spec__, __package__, __doc__)
        print(__loader__.__class__.__name__, __builtins__.__name__, sorted(globals()))
        print(sys.argv, sys.orig_argv, sys.path)
        """, ("./script.py", "one")),
    Case("absolute_path", "import sys; print(__file__, sys.argv, sys.path[0])",
         ("DIRECTORY/script.py",)),
    Case("local_rank", "import sys; print(sys.argv, sys.orig_argv)",
         ("script.py", "--rank=${local_rank}", "$$x", "last")),
    Case("shadowing", "import json; print(json.__file__, json.shadow)",
         files={"json.py": "shadow = 1\nprint('shadow', __name__)\n"}),
    Case("spawn", """
        import multiprocessing as m, os
        class Thing:
            def __init__(self, x): self.x = x
        def work(q, thing): q.put((__name__, thing.x, os.getppid() == thing.pid))
        if __name__ == "__main__":
            c = m.get_context("spawn"); q = c.Queue(); t = Thing(3); t.pid = os.getpid()
            p = c.Process(target=work, args=(q, t)); p.start(); print(q.get()); p.join()
            print(p.exitcode)
        """),
    Case("forked", """
        import multiprocessing as m, sys
        def work(q): q.put(__name__); sys.exit(4)
        c = m.get_context("fork"); q = c.Queue()
        p = c.Process(target=work, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)
        """),
    Case("forkserver", """
        import multiprocessing as m
        def work(x): return x * 2
        if __name__ == "__main__":
            with m.get_context("forkserver").Pool(2) as p: print(p.map(work, range(5)))
        """),
    Case("raw_fork", """
        import os, sys
        pid = os.fork()
        if pid == 0: os._exit(7)
        print(os.waitpid(pid, 0)[1] >> 8)
        """),
    Case("subprocess", """
        import subprocess, sys
        r = subprocess.run([sys.executable, "-c", "import os,sys; print(os.environ['RANK'], sys.path[:1])"],
                           capture_output=True, text=True)
        print(r.stdout, r.stderr, r.returncode)
        """),
    Case("atexit", """
        import atexit, sys
        atexit.register(print, "first registered", flush=True)
        atexit.register(lambda: print("second", file=sys.stderr))
        @atexit.register
        def bad(): raise OSError("in atexit")
        print("end")
        """),
    Case("threads", """
        import threading, time
        def work():
            time.sleep(0.2); print("thread ends", threading.current_thread().name)
        threading.Thread(target=work).start()
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        print(threading.main_thread() is threading.current_thread(), threading.active_count(),
              threading.main_thread().native_id == threading.get_native_id())
        """),
    Case("thread_raises", """
        import threading
        t = threading.Thread(target=lambda: 1 / 0, name="t"); t.start(); t.join(); print("goes on")
        """),
    *[Case("exit_%s" % n, "import sys; sys.exit(%s)" % c) for n, c in
      (("0", 0), ("3", 3), ("300", 300), ("text", "'a reason'"), ("none", ""), ("negative", -1),
       ("object", "[1, 2]"))],
    Case("raise_chain", """
        def f(x):
            try: return 1 / x
            except ZeroDivisionError as e: raise RuntimeError("outer é") from e
        class C:
            def go(self): f(0)
        C().go()
        """),
    Case("group", """
        raise ExceptionGroup("many", [ValueError(1), ExceptionGroup("in", [KeyError("k")])])
        """),
    Case("deep", "def f(n): return f(n + 1)\nf(0)\n"),
    Case("module_raises", "import broken\n", files={"broken.py": "x = 1\nraise ImportError('half')\n"}),
    Case("excepthook", """
        import sys
        def hook(kind, value, tb): print("hook", kind, value, tb.tb_frame.f_code.co_name, tb.tb_next)
        sys.excepthook = hook
        raise ValueError("to the hook")
        """),
    Case("broken_excepthook", """
        import sys
        sys.excepthook = lambda *a: 1 / 0
        raise ValueError("to the hook")
        """),
    Case("syntax_error", "print('never')\ndef f(:\n    pass\n"),
    Case("bad_encoding", "# -*- coding: nothing -*-\nprint(1)\n"),
    Case("not_utf8", "x = 1\n", prepare=lambda d: open(os.path.join(d, "script.py"), "wb").write(b"x='\xff'\n")),
    Case("null_byte", "x = 1\n", prepare=lambda d: open(os.path.join(d, "script.py"), "wb").write(b"x=1\0\n")),
    Case("missing", "", ("nowhere.py",)),
    Case("missing_module", "", ("-m", "nowhere.at.all")),
    Case("unreadable", "", ("pack",), files={"pack/other.py": ""}),
    Case("sigterm", "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGTERM)"),
    Case("keyboard", "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)\n"),
    Case("keyboard_module", "", ("-m", "inter"),
         files={"inter.py": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"}),
    Case("abort", "import os; print('x', flush=True); os.abort()"),
    Case("os_exit", "import os; print('lost?', end=''); os._exit(6)"),
    Case("handlers", """
        import signal
        for s in sorted(signal.valid_signals()):
            print(int(s), signal.getsignal(s))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
        """),
    Case("handled", """
        import os, signal, sys
        def on(n, frame): print("got", n, frame.f_code.co_name, frame.f_back); sys.exit(8)
        signal.signal(signal.SIGTERM, on)
        os.kill(os.getpid(), signal.SIGTERM)
        """),
    Case("broken_pipe", """
        import os, signal, sys
        r, w = os.pipe(); os.close(r)
        try: os.write(w, b"x")
        except BrokenPipeError as e: print(e)
        """),
    Case("stdin", "import sys\nfor line in sys.stdin: print(repr(line))\nprint(sys.stdin.read())\n",
         stdin="one\ntwo é\r\nthree"),
    Case("input", "print(repr(input('? ')))\nprint(input())\n", stdin="answer\n"),
    Case("stdin_bytes", "import os, sys; print(os.read(0, 3), sys.stdin.buffer.read())", stdin="abcdef"),
    *[Case("streams_" + n, """
        import sys
        for f in (sys.stdin, sys.stdout, sys.stderr):
            print(type(f), f.name, f.mode, f.encoding, f.errors, f.newlines, f.line_buffering,
                  f.write_through, f.fileno(), f.isatty(), type(f.buffer), f.closed, repr(f), f.seekable())
        print(sys.stdout is sys.__stdout__, sys.getdefaultencoding(), sys.getfilesystemencoding())
        sys.stdout.write("no line end"); sys.stderr.write("neither")
        """, env=e, piped=p, options=o, words=w) for n, e, p, o, w in (
            ("file", {}, False, (), ("script.py",)),
            ("pipe", {}, True, (), ("script.py",)),
            ("ascii", {"PYTHONIOENCODING": "ascii:replace"}, False, (), ("script.py",)),
            ("utf8", {"PYTHONUTF8": "1", "LC_ALL": "C"}, False, (), ("script.py",)),
            ("buffered", {}, False, ("--no-python",), ("python3", "script.py")))],
    Case("posix_locale", "print('é'.encode(), ascii('é')); print('é')", env={"LC_ALL": "POSIX"}),
    Case("closed_stdout", "import os, sys; print('x'); os.close(1)\ntry: print('y')\nexcept OSError as e: sys.stderr.write(str(e))\n"),
    Case("stdout_closed", "import sys; sys.stdout.close()"),
    Case("flush_fails", "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x')",
         ("python3", "script.py"), options=("--no-python",)),
    Case("flags", "import sys, warnings; print(sys.flags, sys.warnoptions, sys._xoptions, warnings.filters[:3])",
         ("python3", "-OO", "-B", "-W", "error::UserWarning", "-Xdev", "script.py", "-z"),
         options=("--no-python",)),
    Case("command", "", ("python3", "-c", "import sys; print(sys.argv, sys.path[0]); raise OSError(1)", "a"),
         options=("--no-python",)),
    Case("isolated", "import sys; print(sys.flags, sys.path[0])", ("python3", "-I", "script.py"),
         options=("--no-python",)),
    Case("unusual_program", "", ("echo", "hello"), options=("--no-python",)),
    Case("shebang", "#!/usr/bin/env python3\nimport sys; print(sys.argv, sys.flags)\n", ("./script.py", "x"),
         options=("--no-python",), prepare=make_executable),
    Case("warnings", """
        import warnings
        warnings.warn("once"); warnings.warn("old", DeprecationWarning, stacklevel=1)
        warnings.warn("far", stacklevel=9)
        """),
    Case("warning_errors", "import warnings; warnings.warn('x')", env={"PYTHONWARNINGS": "error"}),
    Case("faulthandler", """
        import faulthandler, sys, os, signal
        def f(): faulthandler.dump_traceback(); os.kill(os.getpid(), signal.SIGSEGV)
        faulthandler.enable(); f()
        """),
    Case("stack", """
        import inspect, sys, traceback
        def f():
            traceback.print_stack(); print([(i.filename, i.function) for i in inspect.stack()])
            print(sys._getframe(1).f_back)
        f()
        """),
    Case("trace", "import sys\ndef t(f, e, a): print(e, f.f_code.co_name); return t\nsys.settrace(t)\ndef g(): return 1\ng()\nsys.settrace(None)\n"),
    Case("environ", """
        import os, ctypes, subprocess
        gone = ("MASTER_PORT", "MUSTER_CHILD", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "MUSTER_KEEP")
        env = {k: v for k, v in os.environ.items() if k not in gone and "muster-flight-" not in v}
        print(env)
        shown = subprocess.run(["env"], capture_output=True, text=True).stdout
        print(shown == "".join("%s=%s\\n" % i for i in os.environ.items()))
        libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p
        print(libc.getenv(b"RANK"), libc.getenv(b"LC_ALL"), libc.getenv(b"PYTHONPATH"))
        with open("/proc/self/environ", "rb") as f: print(sorted(f.read().split(b"\\0")[1:]) ==
            sorted([b""] + [b"%s=%s" % i for i in os.environb.items() if i[0] != b"MUSTER_CHILD"]))
        with open("/proc/self/cmdline", "rb") as f: print(f.read())
        """, ("script.py", "word"), env={"PYTHONPATH": "/nowhere:/else", "ODD": "a=b\nc"}),
    Case("process", """
        import os, resource, sys
        print(os.getcwd(), os.getpgid(0) == os.getsid(0) == os.getpid(), sys.executable, sys.prefix)
        print(sorted(os.sched_getaffinity(0)), os.nice(0), resource.getrlimit(resource.RLIMIT_NOFILE))
        print(sorted(int(f) for f in os.listdir("/proc/self/fd")), os.fstat(1023).st_mode, os.umask(0))
        with open("/proc/self/status") as f: print([l for l in f if l.startswith(("SigB", "SigI", "SigC", "NoNew", "Threads"))])
        """),
    Case("pickle", """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
        text = pickle.dumps(Point(4)); print(Point.__module__, Point.__qualname__, pickle.loads(text).x, text)
        """),
    Case("getsource", """
        import inspect
        def f(a):
            return a  # a comment
        print(inspect.getsource(f), inspect.getfile(f), inspect.getmodule(f).__name__)
        """),
    Case("runpy", "import runpy; print(sorted(runpy.run_path('other.py', run_name='x')))",
         files={"other.py": "print(__name__, __file__)\ny = 1\n"}),
    Case("run_path_option", "import sys; print(__name__, __file__, sys.argv)\nraise ValueError(2)\n",
         ("script.py", "a"), options=("--run-path",)),
    Case("relative_import", "from . import x\n"),
    Case("package", "", ("pack", "a"), options=("-m",), files=PACKAGE),
    Case("module", "", ("pack.good", "--x"), options=("-m",), files=PACKAGE),
    Case("directory", "", ("app", "a"), files={"app/__main__.py": "import sys, beside\nprint(sys.argv, __file__, sys.path[0])\n1 / 0\n",
                                            "app/beside.py": "print(__name__)\n"}),
    Case("zipapp", "", ("app.pyz", "a"), prepare=make_zip),
    Case("symlink", "import sys, beside; print(__file__, sys.path[0], sys.argv)", prepare=make_link),
    Case("compiled", "import sys; print(__file__, __cached__, __loader__.__class__)\n1 / 0\n",
         ("script.pyc",), prepare=make_compiled),
    Case("asyncio", """
        import asyncio
        async def f(): await asyncio.sleep(0.01); print("slept"); raise ValueError("async")
        asyncio.run(f())
        """),
    Case("finalizers", """
        import weakref, sys
        class D:
            def __del__(self): print("deleted", sys is not None)
        d = D(); weakref.finalize(d, print, "finalized"); cycle = []; cycle.append((cycle, D()))
        """),
    Case("unraisable", "class D:\n    def __del__(self): 1 / 0\nD()\nprint('on')\n"),
    Case("logging", """
        import logging
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(processName)s %(threadName)s %(module)s %(message)s")
        logging.info("hello"); logging.getLogger("x").exception("none", exc_info=False)
        """),
    Case("imports", "import sys; print(__import__('sys').modules['__main__'].__file__, 'sitecustomize' in sys.modules)\n"
                    "import late; print(late.__file__)\n", files={"late.py": ""}),
    Case("big", "import sys; sys.stdout.write('x' * 300000); sys.stderr.write('y' * 300000)", piped=True),
    Case("user_hook", "print('script')", files={"hook/sitecustomize.py": "import os; print('customized', os.environ['RANK'])\n"},
         env={"PYTHONPATH": "hook"}),
    Case("broken_hook", "print('script')", files={"hook/sitecustomize.py": "1 / 0\n"},
         env={"PYTHONPATH": "hook"}),
    Case("dont_write", "import sys, late; print(sys.dont_write_bytecode)", files={"late.py": ""},
         env={"PYTHONDONTWRITEBYTECODE": "1"}),
]
CASES += [
    Case("venv", "import sys, site; print(sys.prefix, sys.base_prefix, sys.executable, sys.path, sys.orig_argv)",
         prepare=make_venv, env={"PYTHON_EXEC": "venv/bin/python"}),
    Case("wrapper", "import sys, os; print(sys.argv, sys.orig_argv, sys.executable, os.environ['OF'])\n1 / 0\n",
         ("script.py", "a b"), files={"py.sh": "#!/bin/sh\nOF=wrapper exec python3 -X utf8 \"$@\"\n"},
         prepare=lambda d: os.chmod(os.path.join(d, "py.sh"), 0o755), env={"PYTHON_EXEC": "./py.sh"}),
    Case("not_python", "", files={"py.sh": "#!/bin/sh\necho \"$2\" $#\n"},
         prepare=lambda d: os.chmod(os.path.join(d, "py.sh"), 0o755), env={"PYTHON_EXEC": "./py.sh"}),
]
# These are not to be started from standbys.
PLAIN = {"isolated", "unusual_program", "shebang", "not_python"}


def normal(text):
    return re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text.decode("utf-8", "backslashreplace"))


def read_all(directory, name):
    for path, _, files in os.walk(directory):
        if name in files:
            with open(os.path.join(path, name), "rb") as file:
                return file.read()
    return b""


class Outcome:
    """What a worker did."""

    def __init__(self, muster, case, directory, logs, warm):
        port = free_port()
        base = ["--nnodes=2", "--rdzv-endpoint=127.0.0.1:%d" % port, "--grace=5s", "--rdzv-id=x"]
        words = [w.replace("DIRECTORY", directory) for w in case.words]
        verdict = os.path.join(logs, "verdict")
        options = [*base, "--log-dir", logs, "--verdict", verdict, *case.options]
        options += [] if case.piped else ["--redirects=3"]
        options += ["--warm=" + MODULES] if warm else []
        env = {"PATH": os.environ["PATH"], "HOME": directory, "LC_ALL": "C.UTF-8", **case.env}
        said = os.path.join(logs, "agent")
        with open(said, "wb") as out, subprocess.Popen(
                [muster, "run", *options, *words], cwd=directory, env=env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if case.piped else subprocess.DEVNULL, stderr=out) as agent:
            expects = b"start plainly" if case.name in PLAIN else b"standbys wait"
            until = time.time() + 60
            while warm and time.time() < until and agent.poll() is None:
                with open(said, "rb") as file:
                    if expects in file.read():
                        break
                time.sleep(0.005)
            with subprocess.Popen([muster, "run", *base, "--no-python", "true"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as second:
                out, _ = agent.communicate(case.stdin.encode(), timeout=60)
                second.wait(60)
        with open(said, "rb") as file:
            self.said = file.read().decode("utf-8", "replace")
        self.waited = not warm or expects in self.said.encode()
        with open(verdict, encoding="utf-8") as file:
            self.code = [w["exit_code"] for w in json.load(file)["workers"]]
        if case.piped:
            self.out, self.err = normal(out), ""
        else:
            self.out, self.err = (normal(read_all(logs, n)) for n in ("stdout.log", "stderr.log"))


def compare(checks, muster, case, scratch):
    directory = os.path.join(scratch, case.name)
    for name, text in case.files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text).lstrip("\n"))
    if case.prepare is not None:
        case.prepare(directory)
    both = []
    for warm in (False, True):
        logs = os.path.join(scratch, "logs", case.name, "warm" if warm else "plain")
        os.makedirs(logs)
        both.append(Outcome(muster, case, directory, logs, warm))
    plain, warm = both
    checks.ok(warm.waited and (case.name in PLAIN) == ("start plainly" in warm.said),
              case.name + ": the worker was a standby", warm.said)
    checks.equal(warm.code, plain.code, case.name + ": exit code")
    checks.equal(warm.out, plain.out, case.name + ": standard output")
    checks.equal(warm.err, plain.err, case.name + ": standard error")


def main():
    checks = Checks()
    only = option("only", "")
    cases = [c for c in CASES if only in ("", c.name)]
    with Scratch() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(compare, checks, muster_path(), c, scratch) for c in cases]:
            done.result()
    checks.ok(len(cases) >= 40 or only != "", "%d scripts" % len(cases))
    checks.done()


if __name__ == "__main__":
    main()
