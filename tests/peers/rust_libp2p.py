#!/usr/bin/python3
"""Peers of ours and of rust-libp2p speak to each other, each as dialler and as listener.

    rust_libp2p.py MUSTER [--short] [--only=TEXT] [--bytes=1073741824] [--streams=1000]
"""
import os
import subprocess
import tempfile

from peers_lib import Peer, program
import libp2p_suite


def theirs(*flags):
    with tempfile.TemporaryDirectory() as folder:
        if "-key=rsa" in flags:  # rust-libp2p makes no RSA keys
            key = os.path.join(folder, "key")
            subprocess.run("openssl genpkey -algorithm RSA 2>/dev/null | openssl pkcs8 -topk8 -nocrypt -outform DER "
                           "-out " + key, shell=True, check=True)
            flags += ("-pkcs8=" + key,)
        return Peer([program("rust-libp2p", "rustpeer"), *flags])


# Its identify signs records with words of its own (libp2p-routing-state), and passes over others.
# libp2p-stream has no room for a stream that nobody waits for at that moment, and drops it.
libp2p_suite.run(theirs, signed=False, bursts=False)
