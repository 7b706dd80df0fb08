#!/usr/bin/env python3
"""Writes the seeds of fuzz_stacks_report, fuzz_stacks_answer, fuzz_stacks_elf and fuzz_stacks_maps: whole ones, and some that
are cut or wrong. Those of fuzz_stacks_python are recorded (tests/interop/stacks_images.py)."""
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def report(threads=(), texts=(b"", b"note", b"3.11.2", b"main", b"/job/train.py", b"futex"), kind=1, stride=12,
           more=b"", version=1):
    places, body = [], b""
    for text in texts:
        places.append(len(body))
        body += struct.pack("<H", len(text)) + text
    made = b""
    for frames in threads:
        one = struct.pack("<QBBIIII", 7, ord("S"), 3, places[3], places[5], 0, len(frames))
        for line in frames:
            one += struct.pack("<III", places[3], places[4], line) + bytes(stride - 12)
        made += struct.pack("<I", len(one + more)) + one + more
    head = struct.pack("<BIIIIIQQII", kind, places[0], places[1], places[2], 3, 1, 4711, 2, 0, len(threads)) + more
    return (struct.pack("<BB", version, stride) + struct.pack("<I", len(head)) + head + struct.pack("<I", len(body))
            + body + struct.pack("<I", len(made)) + made + more)


def answer(reports=(), node=b"node3", more=b"", version=1):
    head = struct.pack("<IIIIH", len(reports), 0, 0, 16, len(node)) + node + more
    return struct.pack("<BI", version, len(head)) + head + b"".join(struct.pack("<I", len(r)) + r for r in reports)


def elf(symbols=((b"_PyRuntime", 0x5000, 4096), (b"Py_Version", 0x4000, 8)), kind=3, table=11, section=None,
        base=0, bits=2, count=None):
    """An executable with one segment and the sections of its names, its symbols and their names."""
    names = b"\0.names\0.texts\0.symbols\0.PyRuntime\0"
    texts, made = b"\0", bytes(24)
    for name, value, size in symbols:
        made += struct.pack("<IBBHQQ", len(texts), 0x11, 0, 1, value, size)
        texts += name + b"\0"
    at = [64 + 56, 64 + 56 + len(names), 64 + 56 + len(names) + len(texts)]
    end = at[2] + len(made)

    def header(name, of, addr, offset, size, link=0):
        return struct.pack("<IIQQQQIIQQ", names.index(name), of, 0, addr, offset, size, link, 0, 1, 24)

    sections = [header(b"\0", 0, 0, 0, 0), header(b".names", 3, 0, at[0], len(names)),
                header(b".texts", 3, 0, at[1], len(texts)),
                header(b".symbols", table, 0, at[2], len(made) if count is None else count * 24, 2)]
    if section is not None:
        sections.append(header(b".PyRuntime", 1, section, 0, 4096))
    head = (b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
            + struct.pack("<HHIQQQIHHHHHH", kind, 62, 1, 0, 64, end, 0, 64, 56, 1, 64, len(sections), 1))
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 4096, 4096, 4096)
    return head + segment + names + texts + made + b"".join(sections)


MAPS = b"""/usr/bin/python3.11
55d0c0a00000-55d0c0a28000 r--p 00000000 fe:01 1234                       /usr/bin/python3.11
55d0c0a28000-55d0c0c00000 r-xp 00028000 fe:01 1234                       /usr/bin/python3.11
7f0000000000-7f0000200000 r--p 00000000 fe:01 99                         /opt/my python/lib/libpython3.12.so.1.0
7f0000300000-7f0000400000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
"""


def write(target, seeds):
    for name, data in seeds.items():
        path = CORPUS / target / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def main():
    whole = report([[1, 2, 3], [9]])
    write("stacks_report", {
        "empty": report(), "other": report(kind=2), "kind": report(kind=9), "threads": whole,
        "later": report([[1], [2]], stride=16, more=b"later"), "cut": whole[:-5], "version": report(version=2),
        "stride": report([[1]], stride=12)[:1] + b"\4" + report([[1]])[2:], "deep": report([list(range(128))]),
        "deeper": report([list(range(129))]), "many": report([[1]] * 256), "more": report([[1]] * 257),
        "place": whole.replace(struct.pack("<I", 1), struct.pack("<I", 0xffffff00)),
    })
    write("stacks_answer", {
        "none": answer(), "one": answer([whole]), "several": answer([whole, report(), report(kind=2)]),
        "later": answer([whole], more=b"later"), "cut": answer([whole])[:-5], "head": answer()[:9],
        "version": answer(version=2), "bad": answer([whole, b"bad", whole]), "name": answer(node=b"x" * 256),
        "longest": answer(node=b"x" * 255), "deep": answer([report([list(range(128)), [1]])] * 2),
        "empty": answer([b""]), "long": answer([report([[1]] * 256)] * 9), "length": answer() + b"\xff\xff\xff\xff",
    })
    write("stacks_elf", {
        "shared": elf(), "fixed": elf(kind=2, base=0x400000), "symtab": elf(table=2), "section": elf((), section=0x7000),
        "none": elf(()), "bits": elf(bits=1), "cut": elf()[:-30], "long": elf(count=1 << 40), "empty": b"",
        "small": elf(((b"_PyRuntime", 0x5000, 8),)), "others": elf([(b"name%d" % i, i, 8) for i in range(300)]),
    })
    write("stacks_maps", {
        "plain": b"\xff" + MAPS, "pieces": b"\0" + MAPS, "cut": b"\7" + MAPS[:100], "deleted": b"\x0f" + MAPS.replace(
            b"3.11", b"3.11 (deleted)"), "numbers": b"\3" + MAPS.replace(b"7f", b"ffffffffffffffffff"),
        "long": b"\xff" + b"x" * 5000 + b"\n" + MAPS, "none": b"\1",
        "stat": b"\1" + b"4711 (a) b)) S 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 0 0",
        "status": b"\1" + b"Name:\tx\nNSpid:\t4711\t12\nVmPeak: 1\n", "syscall": b"\1" + b"202 0x7f 0x80 0x0\n",
    })


main()
