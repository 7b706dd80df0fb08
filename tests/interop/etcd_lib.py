"""Real etcd servers on loopback for tests: one or several members, with certificates or passwords.
"""
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import lib


class Certificates:
    """A certificate authority and what it signs, made with openssl in a directory."""

    def __init__(self, path):
        self.path = path
        self.ca = self.authority("ca")

    def file(self, name):
        return os.path.join(self.path, name)

    def openssl(self, *args, faketime=None):
        subprocess.run(["openssl"] + list(args), check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.PIPE)

    def authority(self, name):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                     "-nodes", "-days", "2", "-subj", "/CN=muster test " + name, "-keyout",
                     self.file(name + ".key"), "-out", self.file(name + ".pem"))
        return name

    def issue(self, name, authority="ca", expired=False):
        """A certificate for loopback, for both ends of a connection."""
        with open(self.file(name + ".ext"), "w") as out:
            out.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n"
                      "extendedKeyUsage=serverAuth,clientAuth\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                     "-subj", "/CN=" + name, "-keyout", self.file(name + ".key"), "-out",
                     self.file(name + ".csr"))
        if not expired:
            self.openssl("x509", "-req", "-in", self.file(name + ".csr"), "-CA",
                         self.file(authority + ".pem"), "-CAkey", self.file(authority + ".key"),
                         "-CAcreateserial", "-days", "2", "-extfile", self.file(name + ".ext"),
                         "-out", self.file(name + ".pem"))
        else:
            self.issue_expired(name, authority)
        return name

    def issue_expired(self, name, authority):
        """`openssl x509` cannot date back, `openssl ca` can."""
        config = self.file(name + ".cnf")
        with open(config, "w") as out:
            out.write("[ca]\ndefault_ca=d\n[d]\nnew_certs_dir=%s\ndatabase=%s\nserial=%s\n"
                      "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
                      % (self.path, self.file("index"), self.file("serial")))
        open(self.file("index"), "w").close()
        with open(self.file("serial"), "w") as out:
            out.write("1000\n")
        self.openssl("ca", "-batch", "-notext", "-config", config, "-in", self.file(name + ".csr"),
                     "-cert", self.file(authority + ".pem"), "-keyfile",
                     self.file(authority + ".key"), "-startdate", "20200101000000Z", "-enddate",
                     "20200201000000Z", "-extfile", self.file(name + ".ext"), "-out",
                     self.file(name + ".pem"))


def has_v2():
    """Whether this etcd has API v2: 3.6 and later do not know the option --enable-v2 any more."""
    said = subprocess.run(["etcd", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(int(n) for n in said.split()[2].split(".")[:2]) < (3, 6)


def need_v2():
    """Ends a program that is about API v2 as skipped, where there is none."""
    if not has_v2():
        print("skip this etcd has no API v2")
        sys.exit(lib.SKIP)


class Etcd:
    """A cluster of `count` members; a context manager. `v2`: with API v2 if this etcd has it."""

    def __init__(self, count=1, v2=True, tls=None, server="server", client_auth=True, more=()):
        self.scratch = lib.Scratch()
        self.tls = tls
        self.server = server
        self.client_auth = client_auth
        self.v2 = v2 and has_v2()
        self.more = list(more)  # options of the server
        self.ports = [lib.free_port() for _ in range(2 * count)]
        self.count = count
        self.members = [None] * count

    def url(self, i=0):
        return "%s://%s:%d" % ("https" if self.tls else "http", lib.HOST, self.ports[2 * i])

    def authority(self):
        return ",".join("%s:%d" % (lib.HOST, self.ports[2 * i]) for i in range(self.count))

    def start(self, i, new=True):
        peer = "http://%s:%d" % (lib.HOST, self.ports[2 * i + 1])
        args = ["etcd", "--logger", "zap", "--name", "m%d" % i, "--data-dir",
                os.path.join(self.scratch.path, "m%d" % i),
                "--listen-client-urls", self.url(i), "--advertise-client-urls", self.url(i),
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", ",".join("m%d=http://%s:%d" % (k, lib.HOST,
                                                                    self.ports[2 * k + 1])
                                              for k in range(self.count)),
                "--initial-cluster-state", "new",
                "--heartbeat-interval", "50", "--election-timeout", "500"]
        args += self.more
        if self.v2:
            args.append("--enable-v2")
        if self.tls:
            args += ["--cert-file", self.tls.file(self.server + ".pem"), "--key-file",
                     self.tls.file(self.server + ".key")]
            if self.client_auth:
                args += ["--client-cert-auth", "--trusted-ca-file", self.tls.file("ca.pem")]
        log = open(os.path.join(self.scratch.path, "log%d" % i), "a")
        self.members[i] = subprocess.Popen(args, stdout=log, stderr=log,
                                           preexec_fn=lib.die_with_parent)
        log.close()

    def kill(self, i):
        self.members[i].kill()
        self.members[i].wait()

    def listens(self, i):
        if self.members[i].poll() is not None:
            with open(os.path.join(self.scratch.path, "log%d" % i)) as log:
                raise AssertionError("etcd has ended: " + log.read()[-800:])
        try:
            socket.create_connection((lib.HOST, self.ports[2 * i]), 1).close()
        except OSError:
            return False
        if self.tls:
            return True
        try:
            with urllib.request.urlopen(self.url(i) + "/health", timeout=2) as reply:
                return json.load(reply)["health"] == "true"
        except OSError:
            return False

    def call(self, path, request, token=None):
        """A request of v3, by another client than muster's."""
        headers = {"Authorization": token} if token else {}
        query = urllib.request.Request(self.url() + path, json.dumps(request).encode(), headers)
        with urllib.request.urlopen(query, timeout=10) as reply:
            return json.load(reply)

    def __enter__(self):
        for i in range(self.count):
            self.start(i)
        for i in range(self.count):
            lib.wait_until(lambda: self.listens(i), "etcd %d to be there" % i)
        return self

    def __exit__(self, *_):
        for member in self.members:
            if member is not None and member.poll() is None:
                member.kill()
                member.wait()
        self.scratch.__exit__()


def kv(url, *args, timeout=10000, connect=5000):
    """The times are in milliseconds."""
    return lib.run_muster("kv", "--store", url, "--timeout", "%dms" % timeout, "--connect",
                          "%dms" % connect, *args, patience=lib.PATIENCE + timeout / 1000)
