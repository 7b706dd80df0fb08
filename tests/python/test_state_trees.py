"""States without a network: msgpack, trees, and files, with bytes that nobody should trust."""

import json
import math
import os
import random
import struct
from typing import Any, List

import harness
from muster import _msgpack, _safetensors, _tree, errors, state

checks = harness.checks
ROUNDS = harness.option("rounds", 3000)


def deep(count: int) -> Any:
    value: Any = 1
    for _ in range(count):
        value = [value]
    return value


def test_msgpack_round_trips() -> None:
    values: List[Any] = [
        None, True, False, 0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63,
        2**64 - 1, -1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63),
        0.0, -1.5, math.pi, math.inf, "", "a", "ä" * 31, "x" * 255, "x" * 65536, b"", b"b" * 256,
        b"b" * 70000, [], [1, [2, [3]]], list(range(20)), list(range(70000)), {}, {"a": {"b": []}},
        {i: i for i in range(20)}, {str(i): i for i in range(70000)}, deep(90),
    ]  # fmt: skip
    wrong = [v for v in values if _msgpack.decode(_msgpack.encode(v)) != v]
    checks.equal(wrong, [], "every kind of value comes back as it was")
    checks.ok(math.isnan(_msgpack.decode(_msgpack.encode(math.nan))), "also NaN")
    checks.equal(_msgpack.encode({"a": [1, -1, "x", b"y", None, 1.0]}).hex(),
                 "81a1619601ffa178c40179c0cb3ff0000000000000", "the bytes are those of the format")
    for value in (2**64, -(2**63) - 1, deep(200), "\ud800"):
        checks.raises(ValueError, lambda v=value: _msgpack.encode(v),
                      "what does not fit is refused")
    checks.raises(TypeError, lambda: _msgpack.encode({"a": object()}), "so are other types")


def test_msgpack_refuses_what_is_wrong() -> None:
    cases = {
        "nothing": b"", "an unknown kind": b"\xc1", "an extension": b"\xd4\x01\x02",
        "something after the end": b"\x01\x02", "a text that ends early": b"\xa5ab",
        "an array that claims 4 billion": b"\xdd\xff\xff\xff\xff\x01",
        "a map that claims 4 billion": b"\xdf\xff\xff\xff\xff\x01\x01",
        "bytes that claim 4 billion": b"\xc6\xff\xff\xff\xff",
        "text that is no UTF-8": b"\xa2\xff\xfe", "two equal keys": b"\x82\x01\x02\x01\x03",
        "a key that is a list": b"\x81\x91\x01\x02", "a depth of 10,000": b"\x91" * 10000 + b"\x01",
        "two million values": b"\xdd\x00\x1e\x84\x80" + b"\x01" * 2000000,
    }  # fmt: skip
    for what, raw in cases.items():
        checks.raises(ValueError, lambda raw=raw: _msgpack.decode(raw), "refused: " + what)


def test_random_bytes_are_msgpack_or_a_value_error() -> None:
    rng = random.Random(7)
    good = _msgpack.encode({"a": [1, 2.0, "three", b"four", None, {"b": [[]] * 5}], "c": -9})
    odd: List[Any] = []
    for _ in range(ROUNDS):
        raw = bytearray(good if rng.random() < 0.7 else bytes(rng.choices(range(256),
                                                                          k=rng.randrange(64))))
        for _ in range(rng.randrange(4)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            value = _msgpack.decode(bytes(raw))
            if _msgpack.decode(_msgpack.encode(value)) != value and "nan" not in repr(value):
                odd.append(bytes(raw))
        except ValueError:
            pass
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            odd.append((bytes(raw), error))
    checks.equal(odd, [], f"{ROUNDS} inputs are a value that encodes again, or a ValueError")


def test_descriptions_are_not_trusted() -> None:
    plan = _tree.Plan({"a": bytearray(4), "b": [bytearray(2), 5, ("x", bytearray(1))], "c": 2**70})
    names = [it.name for it in plan.slots]
    checks.equal(names, ["a", "b/0", "b/2/1"], "tensors are named by their paths, in order")
    raw = _tree.encode(plan, {"lr": 0.5})
    described, rest = _tree.decode(raw, names)
    checks.equal(rest, {"lr": 0.5}, "the caller's metadata comes beside the description")
    checks.equal(described and described.build(lambda ref: f"<{ref.number}>"),
                 {"a": "<0>", "b": ["<1>", 5, ("x", "<2>")], "c": 2**70}, "the tree is the same")
    node = ["d", "a", ["a", 0], "b", ["l", ["a", 1], 5, ["u", "x", ["a", 2]]]]
    cases = {
        "a tensor twice": ["d", "a", ["a", 0], "b", ["a", 0]],
        "a tensor that is missing": ["d", "a", ["a", 0]],
        "a number beyond the last": ["d", "a", ["a", 99]],
        "a negative number": ["d", "a", ["a", -1]],
        "True for a number": ["d", "a", ["a", True]],
        "a tensor at another path": ["d", "z", ["a", 0]],
        "an unknown kind": ["q", 1], "no kind": [], "a map": {"a": 1},
        "a key without a value": ["d", "a"], "a key that is a list": ["d", [1], 2],
        "two equal keys": ["d", "k", 1, "k", 2], "an unknown mark": ["d", "a", ["a", 0, "x"]],
        "digits that are none": ["i", "12x"], "endless digits": ["i", "1" * 10000],
    }  # fmt: skip
    for what, value in cases.items():
        top = _msgpack.encode({_tree.KEY: [1, value]})
        checks.raises(errors.Corrupt, lambda top=top: _tree.decode(top, names), "refused: " + what)
    top = _msgpack.encode({_tree.KEY: [2, node]})
    checks.raises(errors.Corrupt, lambda: _tree.decode(top, names), "refused: another version")
    checks.equal(_tree.decode(b"\xc1", names), (None, {}), "metadata that is no msgpack is none")
    checks.equal(_tree.decode(_msgpack.encode({"x": 1}), names), (None, {"x": 1}),
                 "metadata without a description is the caller's")
    odd: List[Any] = []
    rng = random.Random(8)
    for _ in range(ROUNDS):
        broken = bytearray(raw)
        for _ in range(rng.randrange(1, 5)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            _tree.decode(bytes(broken), names)
        except errors.Corrupt:
            pass
        except BaseException as error:  # noqa: BLE001
            odd.append((bytes(broken), error))
    checks.equal(odd, [], f"{ROUNDS} broken descriptions are Corrupt, or another tree")


def test_trees_that_cannot_be_shared() -> None:
    cycle: List[Any] = []
    cycle.append(cycle)
    cases = [
        (TypeError, "model/x", {"model": {"x": object()}}), (TypeError, "set", {1, 2}),
        (TypeError, "a key", {(1, 2): 3}), (ValueError, "nested", cycle),
        (ValueError, "two tensors", {"a": {"b": bytearray(1)}, "a/b": bytearray(1)}),
        (ValueError, "two tensors", {0: bytearray(1), "0": bytearray(2)}),
        (ValueError, "65535", {"x" * 65536: bytearray(1)}),
        (ValueError, "zero byte", {"x\0y": bytearray(1)}),
        (TypeError, "format", {"x": memoryview(bytearray(16)).cast("P")}),
    ]  # fmt: skip
    for kind, text, value in cases:
        checks.raises(kind, lambda v=value: _tree.Plan(v), f"{kind.__name__} says {text!r}", text)
    checks.equal(_tree.Plan({"x" * 65535: bytearray(1)}).slots[0].nbytes, 1,
                 "65535 bytes is a name")


def test_files_round_trip() -> None:
    tree = {"a": state.Array("F32", (2, 3), bytearray(os.urandom(24))), "b": [bytearray(b"xyz"), 7],
            "empty": state.Array("BF16", (0, 4)), "point": state.Array("F64", (), bytearray(8)),
            "deep": {"k" * 300: state.Array("C64", (1,), bytearray(8)), "t": (1, None, "s")}}
    with harness.Scratch() as scratch:
        path = os.path.join(scratch, "x.safetensors")
        state.save(path, tree, metadata={"lr": 1})
        again = state.read(path)
        checks.equal(again["a"], tree["a"], "a tensor comes back")
        checks.equal(bytes(again["b"][0].data), b"xyz", "so does a buffer")
        checks.equal((again["deep"]["t"], again["b"][1]), ((1, None, "s"), 7),
                     "and what is no tensor")
        checks.equal(again["empty"].shape, (0, 4), "and a tensor without elements")
        into = {"a": state.Array("F32", (2, 3)), "b": [bytearray(3), 0],
                "empty": state.Array("BF16", (0, 4)), "point": state.Array("F64", ()),
                "deep": {"k" * 300: state.Array("C64", (1,)), "t": ()}}
        state.read(path, into)
        checks.equal((into["a"], into["b"], into["deep"]["t"]),  # type: ignore[index]
                     (tree["a"], tree["b"], (1, None, "s")), "it is read into a tree that is there")
        own = os.path.join(scratch, "own.safetensors")
        plan = _tree.Plan(tree)
        file = _safetensors.MappedFile(own)
        file.write(plan.slots, _tree.encode(plan, None))
        checks.equal(state.read(own)["a"], tree["a"], "what the module writes, the library reads")
        tree["a"].data[0] ^= 255  # type: ignore[attr-defined]
        file.write(plan.slots, _tree.encode(plan, {"longer": "x" * 9000}))
        checks.equal(state.read(own)["a"], tree["a"], "also when it is written again")
        file.close()
        tree["a"].data[0] ^= 255  # type: ignore[attr-defined]
        into["a"] = state.Array("F32", (3, 2))
        before = bytes(into["b"][0])  # type: ignore[index]
        checks.raises(state.Mismatch, lambda: state.read(path, into), "another shape is refused",
                      "a has shape [3, 2], in the state [2, 3]")
        checks.equal(bytes(into["b"][0]), before, "and nothing was written")  # type: ignore[index]
        checks.raises(FileNotFoundError, lambda: state.read(path + "x"), "a file that is missing")


def test_files_are_not_trusted() -> None:
    def head(top: Any, data: bytes = b"") -> bytes:
        text = top if isinstance(top, bytes) else json.dumps(top).encode()
        return struct.pack("<Q", len(text)) + text + data

    row = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    cases = {
        "empty": b"", "short": b"abc", "a long head": struct.pack("<Q", 2**60) + b"{}",
        "no JSON": head(b"{"), "a list": head([1]), "a row that is none": head({"a": 1}),
        "a byte too many": head({"a": row}, b"abc"), "a byte too few": head({"a": row}, b"a"),
        "a gap": head({"a": dict(row, data_offsets=[1, 3])}, b"abc"),
        "two at one place": head({"a": row, "b": row}, b"ab"),
        "a negative number": head({"a": dict(row, shape=[-2])}, b"ab"),
        "True for a number": head({"a": dict(row, shape=[True])}, b"a"),
        "a shape of another size": head({"a": dict(row, shape=[3])}, b"ab"),
        "no base64": head({"a": row, "__metadata__": {"muster_metadata": "***"}}, b"ab"),
        "metadata that is no text": head({"a": row, "__metadata__": {"x": 1}}, b"ab"),
        "a depth of 100,000": head(b"[" * 100000),
    }  # fmt: skip
    with harness.Scratch() as scratch:
        path = os.path.join(scratch, "x")
        for what, raw in cases.items():
            with open(path, "wb") as file:
                file.write(raw)
            checks.raises(errors.Corrupt, lambda: state.read(path), "refused: " + what)
        good = head({"a": row, "__metadata__": {"x": "y"}}, b"ab")
        rng = random.Random(9)
        odd: List[Any] = []
        for _ in range(ROUNDS // 5):
            broken = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            with open(path, "wb") as file:
                file.write(broken)
            try:
                state.read(path)
            except (errors.Corrupt, errors.InvalidArgument):
                pass
            except BaseException as error:  # noqa: BLE001
                odd.append((bytes(broken), error))
        checks.equal(odd, [], "broken files are Corrupt, InvalidArgument, or another file")


harness.main(globals())
