#!/usr/bin/python3
"""etcd 3.5: all of docs/etcd.md, the rendezvous in etcd, `etcd:` stores and `muster doctor etcd`.

    etcd_3_5.py MUSTER [--short]"""
from etcd_lines import main

main("etcd-3.5")
