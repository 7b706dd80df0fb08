#!/usr/bin/python3
"""Peers of ours and of go-libp2p speak to each other, each as dialler and as listener.

    go_libp2p.py MUSTER [--short] [--only=TEXT] [--bytes=1073741824] [--streams=1000]
"""
from peers_lib import Peer, program
import libp2p_suite


libp2p_suite.run(lambda *flags: Peer([program("go-libp2p", "gopeer"), *flags]))
