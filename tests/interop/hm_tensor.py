#!/usr/bin/python3
"""Tensors in hivemind's encodings: what we decode is, to the bit, what NumPy makes of the same
bytes; what we encode is what NumPy would have, or as near as the encoding can be.

    hm_tensor.py RECODE

RECODE is hm_tensor_recode.c. The encodings are written here by hand, from the protocol. NumPy has
no bfloat16: such an array is its float32s, each with a fraction of seven bits.
"""
import subprocess
import sys

import numpy as np

import lib

RECODE = sys.argv[1]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "bool"]
CODES = ["UNIFORM_8BIT", "QUANTILE_8BIT", "BLOCKWISE_8BIT"]
SHAPES = [(1,), (7, 5), (2, 3, 1000), (1, 9001)]
RANDOM = np.random.default_rng(8)
CHECKS = lib.Checks()


def run(verb, compression, dtype, shape, data):
    """What RECODE makes of the bytes; None: it refused."""
    done = subprocess.run([RECODE, verb, compression, dtype, *map(str, shape)], input=data,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.stdout if done.returncode == 0 else None


def narrow(array):
    """float32 to bfloat16, as its sixteen bits: to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bytes(array, dtype):
    """The tensor's own bytes of an array of floats."""
    return (narrow(array) if dtype == "bfloat16" else array.astype(dtype)).tobytes()


def from_bytes(data, dtype, shape):
    """As float64, in which all of them are exact."""
    if dtype == "bfloat16":
        return widen(np.frombuffer(data, np.uint16)).astype(np.float64).reshape(shape)
    return np.frombuffer(data, dtype).astype(np.float64).reshape(shape)


def numpy_decode(compression, dtype, shape, data):
    """The bytes of the tensor, by the protocol's words."""
    count = int(np.prod(shape))
    if compression == "NONE":
        if dtype == "bfloat16" and len(data) == 4 * count:
            return narrow(np.frombuffer(data, np.float32)).tobytes()
        return data
    if compression == "FLOAT16":
        return np.frombuffer(data, np.float16).astype(dtype).tobytes()
    if compression == "MEANSTD_16BIT":
        rows = count // shape[-1]
        halves = np.frombuffer(data, np.float16, count).astype(dtype).reshape(rows, -1)
        means = np.frombuffer(data, np.float32, rows, 2 * count).reshape(rows, 1)
        stds = np.frombuffer(data, np.float32, rows, 2 * count + 4 * rows).reshape(rows, 1)
        scaled = (halves * stds).astype(dtype)
        return (scaled + means).astype(dtype).tobytes()
    if compression == "BLOCKWISE_8BIT":
        blocks, codes = np.frombuffer(data, np.int64, 2)
        greatest = np.frombuffer(data, np.float32, blocks, 16)
        book = np.frombuffer(data, np.float32, codes, 16 + 4 * blocks)
        index = np.frombuffer(data, np.uint8, -1, 16 + 4 * (blocks + codes))
        return to_bytes(book[index] * np.repeat(greatest, 4096)[:count], dtype)
    codes = np.frombuffer(data, np.int64, 1)[0]
    book = np.frombuffer(data, np.float32, codes, 8)
    index = np.frombuffer(data, np.uint8, -1, 8 + 4 * codes)
    return to_bytes(book[index], dtype)


def numpy_encode(compression, values):
    """Bytes of float32 values, as hivemind would have them."""
    values = values.astype(np.float32)
    if compression == "FLOAT16":
        return np.clip(values, -65504, 65504).astype(np.float16).tobytes()
    if compression == "MEANSTD_16BIT":
        means = values.mean(axis=-1, keepdims=True)
        off = values - means
        stds = np.maximum(np.sqrt((off.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)),
                          2.0 ** -23).astype(np.float32)
        return (off / stds).astype(np.float16).tobytes() + means.tobytes() + stds.tobytes()
    flat = values.reshape(-1)
    if compression == "UNIFORM_8BIT":
        scale = 6 * flat.std(ddof=1) / 256 if flat.size > 1 else 1
        index = np.clip(np.rint((flat - flat.mean()) / scale) + 128, 0, 255).astype(np.uint8)
    else:
        borders = np.quantile(flat, np.linspace(0, 1, 257))[1:-1].astype(np.float32)
        index = np.searchsorted(borders, flat).astype(np.uint8)
    sums = np.bincount(index, flat.astype(np.float64), 256)
    book = (sums / np.maximum(np.bincount(index, minlength=256), 1)).astype(np.float32)
    return np.int64(256).tobytes() + book.tobytes() + index.tobytes()


def worst(compression, values):
    """By how much a value may be off: half the distance between two codes, or what one is wide."""
    spread = float(np.abs(values).max())
    if compression == "NONE":
        return 0
    if compression in ("FLOAT16", "MEANSTD_16BIT"):
        return spread * 2e-3
    return spread if compression != "BLOCKWISE_8BIT" else spread / 64


def check_case(compression, dtype, shape):
    values = RANDOM.standard_normal(shape)
    own = to_bytes(values, dtype)
    exact = from_bytes(own, dtype, shape)
    where = f"{compression} of {dtype} {list(shape)}"
    for verb in ("encode", "encode-raw"):
        encoded = run(verb, compression, dtype, shape, own)
        CHECKS.ok(encoded is not None, f"{where}: is encoded")
        decoded = run("decode", compression, dtype, shape, encoded)
        CHECKS.ok(decoded == numpy_decode(compression, dtype, shape, encoded),
                  f"{where}: decoded as NumPy does, to the bit")
        off = np.abs(from_bytes(decoded, dtype, shape) - exact)
        CHECKS.ok(off.max() <= worst(compression, exact) + np.abs(exact).max() / 128,
                  f"{where}: no value is off by more than it may be")
        CHECKS.ok(off.size < 1000 or off.mean() < 0.02, f"{where}: nor all of them by much")
    if compression not in ("NONE", "BLOCKWISE_8BIT"):
        theirs = numpy_encode(compression, exact)
        CHECKS.ok(run("decode", compression, dtype, shape, theirs)
                  == numpy_decode(compression, dtype, shape, theirs),
                  f"{where}: what NumPy encoded is decoded, to the bit")
        CHECKS.ok(len(theirs) == len(encoded), f"{where}: as long as NumPy's")


def check_halves():
    """Every half there is, and floats of all sizes; not a number has many forms."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    got = run("decode", "FLOAT16", "float32", halves.shape, halves.tobytes())
    CHECKS.ok(np.array_equal(np.frombuffer(got, np.float32), halves.astype(np.float32),
                             equal_nan=True), "every half is widened as NumPy does")
    bits = RANDOM.integers(0, 2 ** 32, 1000000, dtype=np.uint64).astype(np.uint32)
    # More of those that a half can hold, its subnormals among them, and of ties.
    bits[:500000] = (bits[:500000] & 0x87ffffff) + 0x32000000
    bits[:100000] &= 0xfffff000
    floats = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.clip(floats, -65504, 65504).astype(np.float16)
    got = np.frombuffer(run("encode", "FLOAT16", "float32", floats.shape, floats.tobytes()),
                        np.float16)
    same = (got.view(np.uint16) == wanted.view(np.uint16)) | (np.isnan(got) & np.isnan(wanted))
    CHECKS.ok(bool(same.all()), "a million floats are narrowed as NumPy does")
    got = np.frombuffer(run("decode", "NONE", "bfloat16", floats.shape, floats.tobytes()),
                        np.uint16)
    nan = np.isnan(floats)
    CHECKS.ok(bool(((got == narrow(floats)) | nan).all()), "and to bfloat16")
    CHECKS.ok(bool(np.isnan(widen(got[nan])).all()), "what is no number stays none")


def check_refusals():
    for compression in ("FLOAT16", "MEANSTD_16BIT", *CODES):
        for dtype in INTEGERS:
            CHECKS.ok(run("encode", compression, dtype, (8,), bytes(8 * np.dtype(dtype).itemsize))
                      is None, f"{compression} is not for {dtype}")
    for compression in ("FLOAT16", "MEANSTD_16BIT"):
        CHECKS.ok(run("encode", compression, "bfloat16", (8,), bytes(16)) is None,
                  f"{compression} is not for bfloat16")
    CHECKS.ok(run("encode", "MEANSTD_16BIT", "float32", (), bytes(4)) is None,
              "MEANSTD_16BIT is not for a scalar")


def main():
    for dtype in FLOATS:
        for compression in ("NONE", "FLOAT16", "MEANSTD_16BIT", *CODES):
            if dtype == "bfloat16" and compression in ("FLOAT16", "MEANSTD_16BIT"):
                continue
            for shape in SHAPES:
                check_case(compression, dtype, shape)
    for dtype in INTEGERS:
        data = RANDOM.integers(0, 2, 24).astype(dtype).tobytes()
        CHECKS.ok(run("encode", "NONE", dtype, (4, 6), data) == data
                  and run("decode", "NONE", dtype, (4, 6), data) == data, f"NONE of {dtype}")
    check_halves()
    check_refusals()
    CHECKS.done()


main()
