#!/usr/bin/python3
"""Random cases of what members of a hivemind group must agree on, against a model of its own.

usage: model.py PROBE [--cases N] [--seed S]

The model is written from the description of the protocol, with Python's own generator and numpy,
and shares nothing with the library. The schedule of fragments is the Python module's own. All cases go to one probe (probe.c), which answers a line each.
"""
import argparse
import hashlib
import importlib.util
import os
import random
import struct
import subprocess
import sys

import numpy

FLOATS = {"float16": "<f2", "bfloat16": None, "float32": "<f4", "float64": "<f8"}
BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "int64": 64, "uint8": 8, "bool": 8}


# --- the schema hash ------------------------------------------------------------------------------

def pack_text(text):
    body = text.encode()
    if len(body) < 32:
        return bytes([0xa0 | len(body)]) + body
    if len(body) < 256:
        return b"\xd9" + bytes([len(body)]) + body
    return b"\xda" + struct.pack(">H", len(body)) + body


def schema_hash(tensors):
    count = len(tensors)
    out = bytes([0x90 | count]) if count < 16 else b"\xdc" + struct.pack(">H", count)
    for dtype, shape in tensors:
        size = "torch.Size([" + ", ".join(map(str, shape)) + "])"
        pairs = [("size", size), ("dtype", "torch." + dtype), ("layout", "torch.strided"), ("device", "cpu"),
                 ("requires_grad", "False"), ("pin_memory", "False"), ("compression", "0")]
        out += bytes([0x80 | len(pairs)])
        for key, value in pairs:
            out += pack_text(key) + pack_text(value)
    return hashlib.sha1(out).hexdigest()


def case_schema(rng):
    tensors = []
    for _ in range(rng.choice([1, 1, 2, 5, 15, 16, 40])):
        shape = [rng.choice([0, 1, 2, 7, 1000, 4294967295]) if rng.random() < .5 else rng.randrange(5000)
                 for _ in range(rng.choice([0, 1, 1, 2, 3, 6]))]
        while sum(len(str(d)) for d in shape) > 18:
            shape.pop()
        tensors.append((rng.choice(list(BITS)), shape))
    words = [t + ":" + ",".join(map(str, shape)) for t, shape in tensors]
    return "schema " + " ".join(words), schema_hash(tensors)


# --- fractions and parts --------------------------------------------------------------------------

def fractions_of(total, modes):
    scores = numpy.array([0. if m == "C" else 1. for m in modes])
    given = (total * scores / scores.sum()).astype(numpy.int64)
    while given.sum() < total:
        given[(scores / (given + 1)).argmax()] += 1
    return [int(x) for x in given]


def case_fractions(rng):
    modes = [rng.choice("NNNC") for _ in range(rng.choice([1, 2, 3, 4, 7, 16, 255, 256]))]
    total = rng.choice([0, 1, 2, 10, 22, rng.randrange(1000), rng.randrange(1 << 31), rng.randrange(1 << 40)])
    line = f"fractions {total} {','.join(modes)}"
    if "N" not in modes:
        return line, "error"
    return line, " ".join(map(str, fractions_of(total, modes)))


def cut(tensors, fractions, part_bytes):
    """Parts of each member: (tensor, offset, length). Fractions are those of another vector in the phases of PowerSGD."""
    total, whole = sum(t[0] for t in tensors), sum(fractions)
    pivots, so_far = [], 0
    for f in fractions:
        so_far += f
        pivots.append(int(float(so_far) / float(whole) * float(total)) if whole else 0)
    pivots[-1] = total
    owned = [[] for _ in fractions]
    at, p = 0, 0
    for index, (elements, dtype, told, codec) in enumerate(tensors):
        ratio = {0: 1, 1: 16 / BITS[told], 2: 16 / BITS[told]}.get(codec, 8 / BITS[told])
        each = int(part_bytes / (BITS[dtype] // 8 * ratio))
        starts = range(0, elements, each) if elements else [0]
        for start in starts:
            length = min(each, elements - start)
            if at + length > pivots[p]:
                first, overlaps = p, [pivots[p] - at]
                while at + length > pivots[p]:
                    p += 1
                    overlaps.append(min(at + length, pivots[p]) - pivots[p - 1])
                owner = first + overlaps.index(max(overlaps))
            else:
                owner = p
            at += length
            owned[owner].append((index, start, length))
    return owned


def case_divide(rng):
    dtypes = list(FLOATS)
    tensors = [(rng.choice([0, 1, 5, rng.randrange(300), rng.randrange(5000)]), rng.choice(dtypes),
                rng.choice(dtypes), rng.randrange(6)) for _ in range(rng.choice([1, 1, 2, 3, 10]))]
    modes = [rng.choice("NNNC") for _ in range(rng.choice([1, 2, 3, 4, 7, 16, 64]))]
    modes[rng.randrange(len(modes))] = "N"
    total = sum(t[0] for t in tensors)
    fractions = fractions_of(total if rng.random() < .7 else max(len(modes), rng.randrange(1 << 20)), modes)
    part_bytes = rng.choice([32, 64, 100, 160, 1000, 524288])
    words = [":".join(map(str, t)) for t in tensors]
    line = f"divide {part_bytes} {','.join(map(str, fractions))} {' '.join(words)}"
    owned = cut(tensors, fractions, part_bytes)
    return line, "".join("".join("%d:%d:%d " % part for part in member) + "|" for member in owned)


# --- what PowerSGD carries as a matrix ------------------------------------------------------------

def case_matrix(rng):
    shape = [rng.choice([1, 2, 3, 3, 4, 7, 16, 64, rng.randrange(1, 3000)]) for _ in range(rng.choice([0, 1, 2, 2, 3, 4, 4, 5]))]
    rank, ratio = rng.choice([1, 1, 2, 4, 8, 64]), rng.choice([0.5, 0.5, 0.0, 0.25, 0.9])
    line = f"matrix {rank} {ratio!r} {','.join(map(str, shape))}"
    dims = list(shape)
    while len(dims) > 2:
        at = min(range(len(dims) - 1), key=lambda i: dims[i] * dims[i + 1])
        dims[at:at + 2] = [dims[at] * dims[at + 1]]
    if len(dims) < 2 or 1 - rank * sum(dims) / (dims[0] * dims[1]) < ratio:
        return line, "whole"
    return line, "%d %d" % tuple(dims)


# --- bits -----------------------------------------------------------------------------------------

def case_bits(rng):
    group_id = rng.randbytes(20)
    if rng.random() < .1:
        group_id = bytes(rng.choice([1, 4, 5, 19])) + group_id  # words of zero at its end
        group_id = group_id[:20]
    members = rng.choice([1, 2, 3, 5, 6, 7, 16, 33, 256])
    target = rng.choice([0, members, members + rng.randrange(100), 5000])
    bits = "".join(rng.choice("01") for _ in range(rng.choice([1, 2, 3, 8, 20])))
    position = rng.randrange(members)
    buckets = target or 1 << (members - 1).bit_length()
    own = random.Random(group_id).sample(range(buckets), members)[position]
    width = (buckets - 1).bit_length()
    new = bits + (f"{own:0{width}b}" if width else "")
    return f"bits {group_id.hex()} {target} {members} {position} {bits}", new[-len(bits):]


# --- codecs ---------------------------------------------------------------------------------------

def to_bytes(values, dtype):
    if dtype == "bfloat16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype(FLOATS[dtype]).tobytes()


def from_bytes(data, dtype):
    if dtype == "bfloat16":
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(data, FLOATS[dtype])


def varint(data, at):
    value, shift = 0, 0
    while True:
        value |= (data[at] & 0x7f) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def fields(data):
    out, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            out[key >> 3], at = varint(data, at)
        elif key & 7 == 1:
            out[key >> 3] = struct.unpack_from("<d", data, at)[0]
            at += 8
        else:
            length, at = varint(data, at)
            out[key >> 3] = data[at:at + length]
            at += length
    return out


def decode(codec, dtype, count, data):
    """The values of an encoding, and how much of `values` an element may be off."""
    if codec == 0:
        wide = dtype == "bfloat16" and len(data) == 4 * count
        return numpy.frombuffer(data, "<f4") if wide else from_bytes(data, dtype)
    if codec == 2:
        return numpy.frombuffer(data, "<f2").astype("f4")
    if codec == 1:
        mean, std = struct.unpack_from("<ff", data, 2 * count)
        return numpy.frombuffer(data[:2 * count], "<f2").astype("f4") * numpy.float32(std) + numpy.float32(mean)
    if codec == 5:
        blocks, codes = struct.unpack_from("<qq", data, 0)
        assert codes == 256 and blocks == -(-count // 4096)
        greatest = numpy.frombuffer(data, "<f4", blocks, 16)
        book = numpy.frombuffer(data, "<f4", 256, 16 + 4 * blocks)
        index = numpy.frombuffer(data, "u1", count, 16 + 4 * blocks + 1024)
        return book[index] * numpy.repeat(greatest, 4096)[:count]
    assert struct.unpack_from("<q", data, 0)[0] == 256
    book = numpy.frombuffer(data, "<f4", 256, 8)
    return book[numpy.frombuffer(data, "u1", count, 8 + 1024)]


def case_data(rng):
    codec = rng.randrange(6)
    dtype = rng.choice([t for t in FLOATS if t != "bfloat16" or codec not in (1, 2)])
    count = rng.choice([0, 1, 2, 5, 100, rng.randrange(1, 1000), 5000 if codec == 5 else 300])
    if count == 0 and codec == 1:
        count = 1
    npr = numpy.random.default_rng(rng.randrange(1 << 60))
    kind = rng.randrange(4)
    values = [npr.normal(0, rng.choice([1e-4, 1, 100]), count), numpy.full(count, npr.normal()),
              npr.uniform(-5, 20, count), numpy.zeros(count)][kind]
    data = to_bytes(values, dtype)
    values = from_bytes(data, dtype).astype("f8")
    weight = rng.choice([0, 1, 0.5, 17])

    def check(answer):
        message = fields(bytes.fromhex(answer))
        tensor = fields(message[4])
        assert message.get(5, 0) == weight, "weight"
        assert tensor[4].decode() == dtype and tensor.get(5, 0) == codec, "description"
        assert varint(tensor[2], 0) == (count, len(tensor[2])), "size"
        got = decode(codec, dtype, count, tensor.get(1, b"")).astype("f8")
        assert len(got) == count, "count"
        if count == 0:
            return
        span = values.max() - values.min()
        size = abs(values).max()
        if codec in (0, 2):
            exact = values if codec == 0 else values.astype("f4").astype("f2").astype("f8")
            assert (got == exact).all(), "exact"
        else:
            # 16 bits: a thousandth of the greatest; 8 bits: 1/128 of it in blocks, otherwise a bucket
            # of three deviations or between two quantiles, whatever lies outside of them.
            bound = {1: span / 1000, 3: span, 4: span, 5: size / 60}[codec] + size * 1e-5 + 1e-7
            assert (abs(got - values) <= bound).all(), "bound"
            assert abs(got.mean() - values.mean()) <= span / 100 + size * 1e-2 + 1e-7, "mean"
    return f"data {codec} {dtype} {weight!r} {data.hex()}", check


# --- sums -----------------------------------------------------------------------------------------

def case_mean(rng):
    dtype = rng.choice(list(FLOATS))
    count = rng.choice([1, 3, 8, 17, 64])
    npr = numpy.random.default_rng(rng.randrange(1 << 60))
    members = [(rng.choice([1.0, 0.5, 3.0, 17.25, 1e6, 0.1]), to_bytes(npr.normal(0, 10, count), dtype))
               for _ in range(rng.choice([1, 2, 3, 16]))]
    total, weights = numpy.zeros(count, "f4"), 0.0
    for weight, data in members:
        x = from_bytes(data, dtype)
        if dtype == "float64":
            total = (total.astype("f8") + weight * x).astype("f4")
        else:
            total = total + numpy.float32(weight) * x.astype("f4")
        weights += weight
    average = total / numpy.float32(weights)
    first = from_bytes(members[0][1], dtype)
    delta = average.astype("f8") - first if dtype == "float64" else average - first.astype("f4")
    words = [f"{weight!r}:{data.hex()}" for weight, data in members]
    return f"mean {dtype} {' '.join(words)}", average.tobytes().hex() + " " + delta.tobytes().hex()


# --- fragments ------------------------------------------------------------------------------------

def fragment_module():
    """The schedule of the Python module, which is not imported: it would load the library."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/muster/_fragment.py")
    spec = importlib.util.spec_from_file_location("fragment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FRAGMENT = fragment_module()


def case_due(rng):
    every = rng.choice([1, 8, 500, rng.randrange(1, 5000), FRAGMENT.EVERY_MAX])
    count = rng.choice([1, rng.randrange(1, 1 + min(every, FRAGMENT.COUNT_MAX))])
    # Near the steps at which something is due, and anywhere.
    step = rng.choice([rng.randrange(1, 1 << 30) * every // count + rng.randrange(3), rng.randrange(1 << 40)])
    due = FRAGMENT.due(every, count, step)
    return f"due {every} {count} {step}", "none" if due is None else str(due)


KINDS = (case_schema, case_fractions, case_divide, case_matrix, case_bits, case_data, case_mean, case_due)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("--cases", type=int, default=16000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    cases = [KINDS[i % len(KINDS)](rng) for i in range(args.cases)]
    done = subprocess.run([args.probe], input="".join(line + "\n" for line, _ in cases), text=True,
                          stdout=subprocess.PIPE, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(cases), f"{len(answers)} answers to {len(cases)} questions"
    # What was encoded is decoded by the library as the model decodes it.
    coded = [answer for (line, _), answer in zip(cases, answers) if line.startswith("data ")]
    done = subprocess.run([args.probe], input="".join(f"back {c}\n" for c in coded), text=True,
                          stdout=subprocess.PIPE, check=True)
    bad = 0
    for message, values in zip(coded, done.stdout.splitlines()):
        tensor = fields(fields(bytes.fromhex(message))[4])
        count, dtype, codec = varint(tensor[2], 0)[0], tensor[4].decode(), tensor.get(5, 0)
        want = to_bytes(decode(codec, dtype, count, tensor.get(1, b"")), dtype).hex() if count else ""
        if dtype in ("float32", "float64") and codec != 1 and values != want:
            bad += 1
            print(f"decoded otherwise: {message[:200]}\n  expected {want[:200]}\n  found    {values[:200]}")
    for (line, want), answer in zip(cases, answers):
        try:
            if callable(want):
                want(answer)
            else:
                assert answer == want, f"expected {want[:300]}"
        except (AssertionError, KeyError, IndexError, ValueError) as e:
            bad += 1
            print(f"{line[:300]}\n  found {answer[:300]}\n  {type(e).__name__}: {e}")
    print(f"{len(cases)} cases, {bad} bad")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
