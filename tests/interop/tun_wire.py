"""A network of one wire, in the namespace that this is started in, and all the hosts on it, by hand:
10.9.0.0/16 behind a tun device. A host refuses every TCP connection and says of every datagram that
nobody was there for it; 10.9.66.x are black holes. What is too long

    never     does not exist: all of 1500 bytes arrive
    told LIMIT    is dropped at a router that says so (ICMP: fragmentation needed)
    vanish LIMIT  is dropped, and nobody says so

usage: tun_wire.py never|told|vanish [LIMIT]
"""
import fcntl
import os
import struct
import subprocess
import sys

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
TCP, UDP, ICMP = 6, 17, 1


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def packet(protocol, source, target, payload):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0, source,
                       target)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def icmp(code, mtu, whole):
    body = struct.pack(">BBHHH", 3, code, 0, 0, mtu) + whole[:28]
    body = body[:2] + struct.pack(">H", checksum(body)) + body[4:]
    return packet(ICMP, whole[16:20], whole[12:16], body)


def refuse(whole):
    source, target, tcp = whole[16:20], whole[12:16], whole[20:]
    sport, dport, seq = struct.unpack(">HHI", tcp[:8])
    body = struct.pack(">HHIIBBHHH", dport, sport, 0, (seq + 1) & 0xffffffff, 0x50, 0x14, 0, 0, 0)
    pseudo = source + target + struct.pack(">BBH", 0, TCP, len(body))
    body = body[:16] + struct.pack(">H", checksum(pseudo + body)) + body[18:]
    return packet(TCP, source, target, body)


def main(mode, limit):
    wire = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(wire, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
    subprocess.run(["sh", "-ec", "ip addr add 10.9.0.1/16 dev wire; ip link set wire up mtu 1500"],
                   check=True)
    print("up", flush=True)
    while True:
        whole = os.read(wire, 65536)
        if whole[0] != 0x45 or whole[16:18] != b"\x0a\x09" or whole[18] == 66:
            continue
        if mode != "never" and len(whole) > limit:
            if mode == "told":
                os.write(wire, icmp(4, limit, whole))
        elif whole[9] == UDP:
            os.write(wire, icmp(3, 0, whole))
        elif whole[9] == TCP and whole[33] & 2:
            os.write(wire, refuse(whole))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
