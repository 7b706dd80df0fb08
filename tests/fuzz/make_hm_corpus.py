#!/usr/bin/python3
"""Writes the seeds of fuzz_hm_tensor and fuzz_hm_state: usage: make_hm_corpus.py [CORPUS]"""
import os
import struct
import sys

CORPUS = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "corpus")
# Numbers of enum mu_hm_compression and, less one, of enum mu_dtype.
NONE, MEANSTD, FLOAT16, QUANTILE, UNIFORM, BLOCKWISE = range(6)
BOOL, U8, F16, BF16, F32, I64, F64 = 0, 1, 8, 9, 12, 13, 15
VALUES = struct.pack("<4f", 1, -2, .5, 3)
METADATA = b"\x81\xa5epoch\x05"


def write(target, name, data):
    os.makedirs(os.path.join(CORPUS, target), exist_ok=True)
    with open(os.path.join(CORPUS, target, name), "wb") as file:
        file.write(data)


def tensor(name, compression, dtype, shape, encoded):
    head = struct.pack("<BBB", compression, dtype, len(shape))
    write("hm_tensor", name, head + struct.pack("<%dH" % len(shape), *shape) + encoded)


def codebook(codes, *index):
    book = [float(i) for i in range(codes)]
    return struct.pack("<q%df" % codes, codes, *book) + bytes(index)


def varint(value):
    out = b""
    while value > 0x7f:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    if isinstance(data, int):
        return varint(number << 3) + varint(data)
    return varint(number << 3 | 2) + varint(len(data)) + data


def first(dtype, shape, chunk, chunks, compression=0, metadata=b""):
    body = field(1, chunk) if chunk else b""
    body += field(2, b"".join(map(varint, shape))) if shape else b""
    body += field(4, dtype)
    body += field(5, compression) if compression else b""
    body += field(6, chunks) if chunks else b""
    return (field(1, metadata) if metadata else b"") + field(2, body)


def further(chunk):
    return field(2, field(1, chunk))


def state(name, *messages):
    write("hm_state", name, b"".join(struct.pack("<H", len(m)) + m for m in messages))


def main():
    tensor("none", NONE, F32, (2, 2), VALUES)
    tensor("none-scalar", NONE, I64, (), bytes(8))
    tensor("none-empty", NONE, F64, (0, 3), b"")
    tensor("none-bool", NONE, BOOL, (3,), b"\0\1\1")
    tensor("bfloat16-wide", NONE, BF16, (2,), struct.pack("<2f", 1, 2.5))
    tensor("bfloat16-raw", 0x80 + 6 * 8, BF16, (2,), bytes.fromhex("803f2040"))
    tensor("float16", FLOAT16, F32, (2, 2), bytes.fromhex("003c00c000380042"))
    tensor("float16-short", FLOAT16, F64, (2, 2), bytes.fromhex("003c00c00038"))
    tensor("meanstd", MEANSTD, F16, (2, 2),
           bytes.fromhex("003c00bc00bc003c000000bf0000e03f0000c03f0000a03f"))
    tensor("uniform", UNIFORM, F32, (2, 2), codebook(256, 0x88, 0x4a, 0x7d, 0xb1))
    tensor("quantile", QUANTILE, BF16, (4,), codebook(256, 0xaa, 0, 0x55, 0xff))
    tensor("codebook-small", UNIFORM, F32, (2,), codebook(2, 0, 1))
    tensor("codebook-passed", UNIFORM, F32, (2,), codebook(2, 0, 2))
    tensor("blockwise", BLOCKWISE, F32, (3,),
           struct.pack("<qqf2f", 1, 2, 3.0, -1, 1) + b"\0\1\1")
    tensor("blockwise-wrong", BLOCKWISE, F16, (3,), struct.pack("<qq", 1 << 62, 256))

    one = first(b"float32", (2, 2), VALUES, 1, metadata=METADATA)
    state("one", one)
    state("two", one, first(b"int64", (), bytes(8), 1))
    state("chunks", first(b"float32", (2, 2), VALUES[:8], 2, metadata=METADATA),
          further(VALUES[8:]))
    state("cut-off", first(b"float32", (2, 2), VALUES[:8], 2, metadata=METADATA))
    state("empty-tensor", first(b"float32", (0,), b"", 0, metadata=METADATA))
    state("empty-meanstd", first(b"float64", (0, 2), b"", 0, MEANSTD, METADATA))
    state("bfloat16", first(b"bfloat16", (4,), VALUES, 1, metadata=METADATA))
    state("uniform", first(b"float64", (2,), codebook(2, 0, 1), 1, UNIFORM, METADATA))
    state("meanstd", first(b"float32", (1, 2), bytes(12), 1, MEANSTD, METADATA))
    state("metadata-alone", field(1, METADATA))
    state("no-metadata", first(b"uint8", (3,), b"abc", 1))
    state("nobody", b"")
    state("too-early", further(b"abc"))
    state("too-large", first(b"float64", (2 ** 31, 2 ** 31), b"a", 1, metadata=METADATA))
    state("strange", first(b"float8_e4m3fn", (2,), b"ab", 1, metadata=METADATA),
          first(b"F4", (2,), b"a", 1))


main()
