"""Messages of protocol buffers: decoded, encoded, in binary, text and JSON form."""
import numpy as np
from google.protobuf import descriptor_pb2

from . import Call, case

S = lambda *v: np.array(v, object)
KINDS = dict(
    double=1, float=2, int64=3, uint64=4, int32=5, fixed64=6, fixed32=7, bool=8, string=9, bytes=12, uint32=13, enum=14, sfixed32=15, sfixed64=16,
    sint32=17, sint64=18,
)
# The types of tensors for each type of fields, the first of which decoding cases use.
DTYPES = dict(
    double=["float64"], float=["float32", "float64"], int64=["int64"], uint64=["uint64"], int32=["int32", "int64"], fixed64=["uint64"],
    fixed32=["uint32", "uint64"], bool=["bool"], string=["string"], bytes=["string"], uint32=["uint32", "uint64"], enum=["int32"], sfixed32=["int32", "int64"],
    sfixed64=["int64"], sint32=["int32", "int64"], sint64=["int64"],
)
PACKED = [kind for kind in KINDS if kind not in ("string", "bytes")]
FIXED = dict(double=8, float=4, fixed64=8, fixed32=4, sfixed32=4, sfixed64=8)


def descriptors():
    files = descriptor_pb2.FileDescriptorSet()
    old = files.file.add(name="old.proto", package="old.part", syntax="proto2")
    values = old.enum_type.add(name="E")
    for name, number in (("A", 3), ("B", 7), ("C", -2)):
        values.value.add(name=name, number=number)
    every = old.message_type.add(name="Every")
    for number, (prefix, kind) in enumerate(((p, k) for k in KINDS for p in ("one_", "many_", "packed_") if p != "packed_" or k in PACKED), 1):
        field = every.field.add(name=prefix + kind, number=number, type=KINDS[kind], label=1 if prefix == "one_" else 3)
        if kind == "enum":
            # Relative and full names.
            field.type_name = "E" if prefix == "one_" else ".old.part.E"
        if prefix == "packed_":
            field.options.packed = True
    every.extension_range.add(start=1000, end=2000)
    old.extension.add(name="more", number=1000, type=5, label=3, extendee=".old.part.Every")
    defaults = old.message_type.add(name="Defaults")
    given = (
        ("int32", "-5"), ("uint32", "300"), ("uint64", "70000"), ("fixed32", "4000000000"), ("string", "hi\\ä"), ("bytes", "a\\000b\\377\\n"), ("double", "inf"),
        ("float", "-1.5"), ("bool", "true"), ("enum", "B"), ("sint64", "-7"), ("enum", None), ("float", "nan"), ("float", "-inf"), ("double", "1e-3"), ("bool", None),
    )
    for i, (kind, value) in enumerate(given):
        field = defaults.field.add(name=f"d{i}", number=i + 1, type=KINDS[kind], label=1)
        if value is not None:
            field.default_value = value
        if kind == "enum":
            field.type_name = ".old.part.E"
    grouped = old.message_type.add(name="Grouped")
    grouped.nested_type.add(name="Part").field.add(name="a", number=1, type=5, label=1)
    grouped.field.add(name="part", number=1, type=10, label=3, type_name="Part")
    grouped.field.add(name="i", number=2, type=5, label=3)
    needed = old.message_type.add(name="Needed")
    needed.field.add(name="must", number=1, type=5, label=2)
    needed.field.add(name="inner", number=2, type=11, label=1, type_name="Needed")
    new = files.file.add(name="new.proto", package="new", syntax="proto3", dependency=["old.proto"])
    node = new.message_type.add(name="Node")
    node.field.add(name="numbers", number=3, type=5, label=3)
    node.field.add(name="text", number=1, type=9, label=1)
    node.field.add(name="i", number=2, type=5, label=1)
    node.field.add(name="next", number=4, type=11, label=1, type_name=".new.Node")
    node.oneof_decl.add(name="choice")
    node.field.add(name="x", number=5, type=5, label=1, oneof_index=0)
    node.field.add(name="y", number=6, type=9, label=1, oneof_index=0)
    entry = node.nested_type.add(name="PlacesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    node.field.add(name="places", number=7, type=11, label=3, type_name=".new.Node.PlacesEntry")
    node.field.add(name="unpacked", number=8, type=5, label=3).options.packed = False
    node.oneof_decl.add(name="_set")
    node.field.add(name="set", number=9, type=5, label=1, oneof_index=1, proto3_optional=True)
    # A file of an edition, whose features replace the syntax.
    late = files.file.add(name="late.proto", package="late", syntax="editions", edition=descriptor_pb2.EDITION_2023)
    closed = late.enum_type.add(name="Closed")
    closed.value.add(name="ONE", number=1)
    closed.options.features.enum_type = 2
    node = late.message_type.add(name="Node")
    node.field.add(name="explicit", number=1, type=5, label=1)
    node.field.add(name="implicit", number=2, type=5, label=1).options.features.field_presence = 2
    node.field.add(name="packed", number=3, type=5, label=3)
    node.field.add(name="expanded", number=4, type=5, label=3).options.features.repeated_field_encoding = 2
    node.field.add(name="part", number=5, type=11, label=1, type_name=".late.Node").options.features.message_encoding = 2
    node.field.add(name="closed", number=6, type=14, label=1, type_name=".late.Closed")
    node.field.add(name="text", number=7, type=9, label=1)
    return files


FILES = descriptors()
SOURCE = b"bytes://" + FILES.SerializeToString()
NUMBERS = {f.name: f.number for f in FILES.file[0].message_type[0].field}


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def tag(number, wire):
    return varint(number << 3 | wire)


def delimited(number, body):
    return tag(number, 2) + varint(len(body)) + body


def encoded(c, kind):
    """A random value of a type, without its tag."""
    if kind in FIXED:
        return c.rng.bytes(FIXED[kind]) if "float" not in kind and kind != "double" else c.rng.normal(size=1).astype("<f8" if kind == "double" else "<f4").tobytes()
    if kind in ("string", "bytes"):
        text = b"s%d" % c.rng.integers(0, 99)
        return varint(len(text)) + text
    if kind == "bool":
        return varint(int(c.rng.integers(0, 3)))
    if kind == "enum":
        return varint(int(c.rng.choice([3, 7, -2])))
    small = c.rng.integers(-100, 100) if c.rng.random() < 0.5 else c.rng.integers(-(2**62), 2**62)
    return varint(int(small))


def wire_of(kind):
    return {8: 1, 4: 5}.get(FIXED.get(kind), 2 if kind in ("string", "bytes") else 0)


def message(c, kind, singles, repeated, packed):
    """A message with values in the three fields of a type, in the order of the fields."""
    out = b"".join(tag(NUMBERS["one_" + kind], wire_of(kind)) + encoded(c, kind) for _ in range(singles))
    out += b"".join(tag(NUMBERS["many_" + kind], wire_of(kind)) + encoded(c, kind) for _ in range(repeated))
    if kind in PACKED and packed:
        out += delimited(NUMBERS["packed_" + kind], b"".join(encoded(c, kind) for _ in range(packed)))
    return out


def decoded(texts, message_type, names, dtypes, **attrs):
    return Call(texts, message_type=message_type, field_names=names, output_types=dtypes, descriptor_source=attrs.pop("descriptor_source", SOURCE), **attrs)


@case("DecodeProtoV2")
def decode(c):
    if c.name("output_types") != "float":
        return
    for kind in KINDS:
        prefixes = ["many_", "one_"] + ["packed_"] * (kind in PACKED)
        for dtype in DTYPES[kind]:
            texts = S(message(c, kind, 1, 2, 3), b"", message(c, kind, 2, 0, 1), message(c, kind, 0, 5, 0))
            for attrs in (dict(), dict(sanitize=True)):
                yield decoded(texts, "old.part.Every", [p + kind for p in prefixes], [dtype] * len(prefixes), **attrs)
            yield decoded(texts.reshape(2, 1, 2), "old.part.Every", [p + kind for p in prefixes[::-1]], [dtype] * len(prefixes))
    every = b"".join(message(c, kind, 1, 1, 2) for kind in KINDS)
    names = [p + k for p in ("one_", "packed_", "many_") for k in KINDS if p != "packed_" or k in PACKED]
    yield decoded(S(every, every[::1]), "old.part.Every", names, [DTYPES[name.split("_")[1]][0] for name in names])
    yield decoded(S(every), "old.part.Every", names, [DTYPES[name.split("_")[1]][0] for name in names], sanitize=True)
    yield decoded(S(every), "old.part.Every", ["one_int32", "one_int32"], ["int32", "int64"])
    # Fields in descending order, packed where they are not declared so, and the reverse; other wire types.
    n = NUMBERS["one_int32"]
    many, packed = NUMBERS["many_int32"], NUMBERS["packed_int32"]
    for text in (
        tag(packed, 0) + varint(-1) + tag(many, 0) + varint(2) + tag(n, 0) + varint(3), delimited(many, varint(-1) + varint(5)), delimited(n, varint(5)), delimited(n, b""),
        tag(n, 5) + b"abcd", tag(n, 3) + tag(n, 4), tag(900, 3) + tag(7, 0) + varint(5) + tag(900, 4), delimited(900, b"unknown"), tag(n, 0) + b"\xff" * 9 + b"\x01",
        delimited(packed, varint(2**40 + 3)),
    ):
        for dtype in ("int32", "int64"):
            for attrs in (dict(), dict(sanitize=True)):
                yield decoded(S(text), "old.part.Every", ["one_int32", "many_int32", "packed_int32"], [dtype] * 3, **attrs)
    yield decoded(S(tag(1000, 0) + varint(5), delimited(1000, varint(1))), "old.part.Every", ["old.part.more"], ["int32"])
    yield decoded(S(tag(1000, 0) + varint(5)), "old.part.Every", ["old.part.more"], ["int32"], sanitize=True)
    yield decoded(S(tag(NUMBERS["one_enum"], 0) + varint(100)), "old.part.Every", ["one_enum"], ["int32"], sanitize=True)
    for dtypes in (
        ["int32", "uint32", "uint64", "uint32", "string", "string", "double", "float", "bool", "int32", "int64", "int32", "float", "float", "double", "bool"],
        ["int64", "uint64", "uint64", "uint64", "string", "string", "double", "double", "bool", "int32", "int64", "int32", "double", "double", "double", "bool"],
    ):
        yield decoded(S(b""), "old.part.Defaults", [f"d{i}" for i in range(16)], dtypes)
    group = b"\x0b\x08\x05\x0c\x10\x07\x0b\x0c"
    for attrs in (dict(), dict(sanitize=True)):
        yield decoded(S(group), "old.part.Grouped", ["part", "i"], ["string", "int32"], **attrs)
        yield decoded(S(b"\x08\x05", b"\x08\x05\x12\x02\x08\x01"), "old.part.Needed", ["must", "inner"], ["int32", "string"], **attrs)
        yield decoded(S(b"\x22\x02\x10\x05\x22\x03\x0a\x01z\x4a\x00", b"\x28\x05\x32\x01a", b"\x32\x01a\x28\x05"), "new.Node", ["next", "x", "y"], ["string", "int32", "string"], **attrs)
        yield decoded(S(b"\x10\x00\x0a\x00\x48\x00\x28\x00"), "new.Node", ["i", "text", "set", "x"], ["int32", "string", "int32", "int32"], **attrs)
        yield decoded(S(b"\x3a\x05\x0a\x01a\x10\x05\x3a\x03\x0a\x01b\x3a\x00", b"\x1a\x02\x01\x02\x18\x03\x40\x05\x42\x02\x06\x07"), "new.Node", ["places", "numbers", "unpacked"], ["string", "int32", "int32"], **attrs)
        late = b"\x08\x00\x10\x00\x1a\x02\x01\x02\x20\x03\x22\x01\x04\x2b\x08\x07\x2c\x30\x01\x3a\x01a"
        names = ["explicit", "implicit", "packed", "expanded", "part", "closed", "text"]
        yield decoded(S(late, b"\x30\x05"), "late.Node", names, ["int32"] * 4 + ["string", "int32", "string"], **attrs)
    nested = [
        "i: 5 i: [6,7] part { a: 3 } Part{a:4}", "part: <a: 0x10>; i: 010, i: - 3 # end", "", "i: [] part: [{a: 1}, {}]",
    ]
    yield decoded(S(*(t.encode() for t in nested)), "old.part.Grouped", ["i", "part"], ["int32", "string"], message_format="text")
    texts = [
        "one_enum: B many_enum: [A,C] one_float: 1e3 one_bool: true one_string: 'a\\x41' \"b\"", "one_enum: 7 one_float: -inf many_bool: [0, 1, t, False]", "one_float: 1.5f one_double: .5",
        "one_float: nan one_double: -1e-5 one_string: 'ä\\u00e9\\303\\251\\U0001F600\\n'", "one_float: 5 one_double: 7 many_enum: -2", "one_double: infinity one_float: 1e39 one_bytes: '\\377\\0'",
    ]
    names, dtypes = ["one_enum", "many_enum", "one_float", "one_double", "one_bool", "many_bool", "one_string", "one_bytes"], ["int32", "int32", "float", "double", "bool", "bool", "string", "string"]
    yield decoded(S(*(t.encode() for t in texts)), "old.part.Every", names, dtypes, message_format="text")
    limits = "one_int32: -2147483648 one_int64: 9223372036854775807 one_uint32: 4294967295 one_uint64: 18446744073709551615 one_sint64: -9223372036854775808 [old.part.more]: [1, 2]"
    yield decoded(
        S(limits.encode()), "old.part.Every", ["one_int32", "one_int64", "one_uint32", "one_uint64", "one_sint64", "old.part.more"], ["int32", "int64", "uint32", "uint64", "int64", "int32"],
        message_format="text",
    )
    nodes = ["next { next { i: 3 text: 'x' } numbers: [1, 2] } places { key: 'a' value: 3 } places: {value: 4}", "i: 0 set: 0 x: 0 text: ''", "y: 'a' numbers: 1, numbers: 2; unpacked: 3"]
    yield decoded(S(*(t.encode() for t in nodes)), "new.Node", ["next", "places", "i", "set", "x", "y", "text", "numbers", "unpacked"], ["string", "string"] + ["int32"] * 3 + ["string"] * 2 + ["int32"] * 2, message_format="text")
    example = b"features { feature { key: 'a' value { float_list { value: [1, 2.5] } } } }"
    yield decoded(S(example), "tensorflow.Example", ["features"], ["string"], message_format="text", descriptor_source="local://")
    yield decoded(S(b"\x08\x03\x12\x02\x12\x00"), "tensorflow.TensorProto", ["dtype", "tensor_shape", "float_val"], ["int32", "string", "float"], descriptor_source="")


@case("EncodeProto")
def encode(c):
    if c.name("Tinput_types") != "float":
        return
    attrs = dict(message_type="old.part.Every", descriptor_source=SOURCE)
    for kind in KINDS:
        prefixes = ["packed_"] * (kind in PACKED) + ["one_", "many_"]
        for dtype in DTYPES[kind]:
            count = len(prefixes)
            values = [c.values((2, 3, 4), attr=dtype.replace("float32", "float").replace("float64", "double")) for _ in range(count)]
            sizes = c.rng.integers(0, 5, (2, 3, count)).astype(np.int32)
            yield Call(sizes, values, field_names=[p + kind for p in prefixes], **attrs)
    wide = np.array([[-1, 2**40 + 7, -(2**63), 2**31]])
    for kind in ("int32", "sint32", "sfixed32"):
        yield Call(np.array([[4, 4]], np.int32), [wide, wide], field_names=["many_" + kind, "packed_" + kind], **attrs)
    yield Call(np.array([[-1, 1]], np.int32), [np.array([[5]], np.int32), np.array([[5]], np.int32)], field_names=["many_int32", "one_int32"], **attrs)
    groups = np.array([[b"\x08\x05", b""]], object)
    yield Call(np.array([[2, 1]], np.int32), [groups, np.array([[7]], np.int32)], field_names=["part", "i"], message_type="old.part.Grouped", descriptor_source=SOURCE)
    texts = np.array([[b"\x0a\x00"], [b""]], object)
    numbers = np.array([[1, 2], [3, 4]], np.int32)
    yield Call(
        np.array([[1, 2, 2, 1], [0, 1, 1, 0]], np.int32), [texts, numbers, numbers, numbers], field_names=["next", "numbers", "unpacked", "i"], message_type="new.Node", descriptor_source=SOURCE,
    )
    yield Call(
        np.array([[1, 2, 2, 1], [0, 1, 1, 0]], np.int32), [texts, numbers, numbers, numbers], field_names=["part", "packed", "expanded", "implicit"], message_type="late.Node", descriptor_source=SOURCE,
    )
    yield Call(np.zeros((0, 1), np.int32), [np.zeros((0, 2), np.int32)], field_names=["i"], message_type="new.Node", descriptor_source=SOURCE)
    yield Call(np.array([[1]], np.int32), [np.array([[b"x"]], object)], field_names=["features"], message_type="tensorflow.Example")


def of_list(kind, values):
    return b'{"features": {"feature": {"a": {"%s": {"value": %s}}}}}' % (kind, values)


INTS = (b'[1, "12", 1e2, -5, "1e3", 9223372036854775807, "-9223372036854775808", 1.0, -0, "+5", "0x5", 9007199254740992.0]', b"[]", b"null", b"5", b'"7"', b"[null]", b"[[1, [2]], 3]", b"[1,]", b"[" * 90 + b"]" * 90)
FLOATING = (b'[1.5, "2.5", "NaN", "Infinity", "-inf", -1e3, 1e-50, 16777217, 3.4028235e38, -0.0, " 1", "0x5", null, 0.1]', b"1.5", b"[]")
BINARY = (b'["aGk=", "aGk", "-_8=", "+/8=", "", "aA==", "aGl=", "aGk\\u003d", null]', b'"aGk="')


@case("DecodeJSONExample")
def json_example(c):
    texts = [
        *(of_list(b"int64List", values) for values in INTS), *(of_list(b"float_list", values) for values in FLOATING), *(of_list(b"bytesList", values) for values in BINARY),
        b"{}", b" { }\n", b'{"features": null}', b'{"features": {},}', b'{"features": {}, "features": {}}', b"{'features': {'feature': {'a\\'b': {}}}}",
        b"{features: {feature: {a_1: {int64List: {value: [1]}}}}}", b'{"features": {"feature": {"a": null, "b": {"int64List": {}}, "": {"floatList": null, "int64List": {"value": [1], "value": [2]}}}}}',
        b'{"features": {"feature": {"\\u00e9\\ud83d\\ude00\\t\\/": {}, "a\tb\n": {}, "\xc3\xa4": {}}, "feature": {"c": {}}}}',
    ]
    yield Call(S(*texts))
    yield Call(S(*texts[:6]).reshape(3, 1, 2))
    yield Call(np.array(texts[0], object))
    yield Call(S())
