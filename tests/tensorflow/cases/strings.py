"""Strings, values parsed from bytes, and summaries."""
import gzip
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

from . import Call, case

S = lambda *v: np.array(v, object)
I = lambda v: np.array(v, np.int32)
WORDS = S(b"hello world", b"", b"a", b"\xff\xfe", "é ß Ü".encode(), b"x" * 300, b"  pad\t\n").reshape(7)
PATTERNS = (b"a", b"[a-z ]+", b"(?i)HELLO.*", b"\\s*pad\\s*", b"\\pL.*", b"x{300}", b"", b"[[:alpha:]]*( )[^ ]+")


@case("StaticRegexFullMatch")
def static_match(c):
    for pattern in PATTERNS:
        yield Call(WORDS, pattern=pattern)


@case("RegexFullMatch")
def match(c):
    for pattern in PATTERNS:
        yield Call(WORDS, np.array(pattern, object))


REWRITES = ((b"l+", b"<\\0>"), (b"(\\w)(\\w)", b"\\2\\1"), (b"", b"-"), (b"x*", b"\\\\"), (b"\\b", b"|"), (b"o", b""))


@case("RegexReplace")
def replace(c):
    for pattern, rewrite in REWRITES:
        for everywhere in (True, False):
            yield Call(WORDS, np.array(pattern, object), np.array(rewrite, object), replace_global=everywhere)


@case("StaticRegexReplace")
def static_replace(c):
    for pattern, rewrite in REWRITES:
        yield Call(WORDS, pattern=pattern, rewrite=rewrite)


@case("StringJoin")
def join(c):
    yield Call([WORDS, np.array(b"-", object), WORDS], separator="+")
    yield Call([np.array(b"a", object)])


@case("StringSplit")
def split(c):
    for delimiter in (b" ", b"", b"lo", b"x"):
        for skip in (True, False):
            yield Call(WORDS, np.array(delimiter, object), skip_empty=skip)


@case("StringSplitV2")
def split_v2(c):
    for separator in (b" ", b"", b"lo", b"x"):
        for most in (-1, 0, 1, 2):
            yield Call(WORDS, np.array(separator, object), maxsplit=most)


@case("StringToHashBucketFast", "StringToHashBucket")
def buckets(c):
    many = S(*[b"k" * n for n in [*range(0, 300, 7), 64, 128, 192, 256, 320]])
    yield Call(WORDS, num_buckets=1 << 60)
    yield Call(many, num_buckets=997)


@case("StringToHashBucketStrong")
def strong_buckets(c):
    yield Call(S(*[b"k" * n for n in range(0, 100, 3)]), num_buckets=1 << 60, key=[7, -9])


@case("StringToNumber")
def numbers(c):
    yield Call(S(b"0", b" 12 ", b"+7", b"123456"))
    if c.is_float("out_type"):
        yield Call(S(b"1.5", b"-1e-3", b"nan", b"inf", b"-Infinity", b"1e400", b".5", b"5.", b"0x10", b"0.1", b"16777217"))


@case("AsString")
def as_string(c):
    if c.name("T") == "string":
        yield Call(WORDS, width=9, fill="-")
        return
    values = c.values((2, 5), -1000, 1000)
    yield Call(values)
    yield Call(values, width=12)
    if c.name("T") == "bool":
        return
    for fill in ("0", "-", "+", " "):
        yield Call(values, width=9, fill=fill)
    if c.is_float():
        odd = np.concatenate([c.special(), c.array([1e-7, 12345.678, 0.1]), -c.array([np.nan])])
        for attrs in ({}, {"precision": 0}, {"precision": 3}, {"scientific": True}, {"shortest": True}, {"shortest": True, "precision": 2}, {"width": 14, "fill": "0"}):
            yield Call(odd, **attrs)


@case("StringLength")
def length(c):
    for unit in ("BYTE", "UTF8_CHAR"):
        yield Call(WORDS, unit=unit)


@case("StringLower", "StringUpper")
def case_of(c):
    for encoding in ("", "utf-8"):
        yield Call(S(b"Hello", "éÉßΣ".encode(), b""), encoding=encoding)


@case("StringStrip")
def strip(c):
    yield Call(WORDS)


@case("Substr")
def substr(c):
    words = S(b"hello", "wörld".encode(), b"abc")
    for unit in ("BYTE", "UTF8_CHAR"):
        yield Call(words, c.array(1), c.array(2), unit=unit)
        yield Call(words, c.array(-3), c.array(100), unit=unit)
        yield Call(words, c.array([0, 1, 2]), c.array([1, 2, 0]), unit=unit)
    yield Call(np.array(b"hello", object), c.array([0, 1]), c.array([1, 2]))
    yield Call(words, c.array([[0], [1]]), c.array([[1], [2]]))


@case("ReduceJoin")
def reduce_join(c):
    cube = c.values((2, 3, 2), attr="string")
    for axes in (0, -1, [0, 2], [2, 0], [], [0, 1, 2]):
        for keep in (False, True):
            yield Call(cube, I(axes), keep_dims=keep, separator=".")


@case("UnsortedSegmentJoin")
def segment_join(c):
    yield Call(S(b"a", b"b", b"c"), c.array([2, 0, 2], "Tindices"), c.array(4, "Tnumsegments"), separator="+")
    yield Call(c.values((3, 2), attr="string"), c.array([1, 0, 1], "Tindices"), c.array(2, "Tnumsegments"))


@case("EncodeBase64")
def encode(c):
    for pad in (False, True):
        yield Call(WORDS, pad=pad)


@case("DecodeBase64")
def decode(c):
    yield Call(S(b"aGVsbG8", b"aGVsbG8=", b"_-7-", b"", b"aa=="))


@case("DecodeRaw")
def raw(c):
    for little in (True, False):
        # Small bytes, so that no float is NaN.
        yield Call(S(bytes(range(16)), bytes(range(16, 32))), little_endian=little)


@case("DecodePaddedRaw")
def padded_raw(c):
    for little in (True, False):
        yield Call(S(bytes(range(16)), bytes(range(5)), b""), I(16), little_endian=little)


@case("DecodeCSV")
def csv(c):
    kind = c.name("OUT_TYPE")
    default = np.array([b"d"], object) if kind == "string" else np.array([7], c.dtype("OUT_TYPE"))
    yield Call(S(b"1,2", b"3,", b",\"4\""), [default, default])
    yield Call(S(b"1;9;2", b"NA;9;6"), [default, default], field_delim=";", na_value="NA", select_cols=[0, 2])


@case("DecodeCompressed")
def decompress(c):
    texts = (b"abc", b"", b"x" * 10000)
    yield Call(S(*texts))
    yield Call(S(*[zlib.compress(t) for t in texts]), compression_type="ZLIB")
    yield Call(S(*[gzip.compress(t) for t in texts]), compression_type="GZIP")


@case("SerializeTensor")
def serialize(c):
    for shape in ((), (2, 3), (0, 2)):
        yield Call(c.values(shape))


@case("ParseTensor")
def parse(c):
    for value in (c.values((2, 3), attr="out_type"), c.values((), attr="out_type"), np.full((4, 4), c.values((), attr="out_type"))):
        proto = tf.make_tensor_proto(value, c.name("out_type"))
        yield Call(np.array(proto.SerializeToString(), object))


@case("ScalarSummary")
def scalar_summary(c):
    yield Call(np.array(b"tag", object), c.values(()))
    yield Call(S(b"a", b"b"), c.values((2,)))


@case("HistogramSummary")
def histogram_summary(c):
    yield Call(np.array(b"tag", object), c.values((50,)))
    yield Call(np.array(b"tag", object), c.values((0,)))


@case("AudioSummary")
def audio_summary(c):
    yield Call(np.array(b"tag", object), c.values((2, 30), -1, 1, "float"), sample_rate=8000.0, max_outputs=1)


@case("AudioSummaryV2")
def audio_summary_v2(c):
    yield Call(np.array(b"tag", object), c.values((4, 30), -2, 2, "float"), np.float32(8000.5))
    yield Call(np.array(b"tag", object), c.values((1, 30, 2), -1, 1, "float"), np.float32(44100), max_outputs=1)


@case("TensorSummary")
def tensor_summary(c):
    yield Call(c.values((2, 3)))


@case("TensorSummaryV2")
def tensor_summary_v2(c):
    metadata = tf.SummaryMetadata(display_name="shown").SerializeToString()
    yield Call(np.array(b"tag", object), c.values((2, 3)), np.array(metadata, object))


@case("MergeSummary")
def merge_summary(c):
    one = lambda tag: np.array(tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=1.5)]).SerializeToString(), object)
    yield Call([one("a"), one("b")])


def feature(values):
    values = np.asarray(values)
    if values.dtype.kind in "OS":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=list(values)))
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def examples(*all_features):
    made = [tf.train.Example(features=tf.train.Features(feature={k: feature(v) for k, v in f.items()})) for f in all_features]
    return S(*[m.SerializeToString() for m in made])


def of_kind(c, attr, count):
    return {"string": np.array([b"v%d" % i for i in range(count)], object), "float": np.arange(count) / 4.0}.get(c.name(attr), np.arange(count))


def default_of(c, count=1):
    return np.full(count, b"d", object) if c.name("Tdense") == "string" else np.full(count, 9, c.dtype("Tdense"))


@case("ParseExample")
def parse_example(c):
    batch = examples({"s": of_kind(c, "sparse_types", 3), "d": of_kind(c, "Tdense", 2)}, {"d": of_kind(c, "Tdense", 2)}, {"s": of_kind(c, "sparse_types", 1)})
    key = lambda k: np.array(k, object)
    sparse = [c.name("sparse_types")]
    yield Call(batch, S(), [key(b"s")], [key(b"d")], [default_of(c, 2)], dense_shapes=[[2]], sparse_types=sparse)
    yield Call(batch, S(b"x", b"y", b"z"), [key(b"s")], [key(b"d")], [default_of(c).reshape(())], dense_shapes=[[None]], sparse_types=sparse)


@case("ParseSingleExample")
def parse_single_example(c):
    one = examples({"s": of_kind(c, "sparse_types", 3), "d": of_kind(c, "Tdense", 2)})[0]
    one = np.array(one, object)
    yield Call(one, [default_of(c, 2)], num_sparse=1, sparse_keys=["s"], dense_keys=["d"], dense_shapes=[[2]], sparse_types=[c.name("sparse_types")])
    yield Call(one, [default_of(c, 3)], num_sparse=1, sparse_keys=["none"], dense_keys=["none"], dense_shapes=[[3]], sparse_types=[c.name("sparse_types")])


@case("ParseExampleV2")
def parse_example_v2(c):
    batch = examples(
        {"s": of_kind(c, "sparse_types", 3), "d": of_kind(c, "Tdense", 4), "r": of_kind(c, "ragged_value_types", 2)},
        {"d": of_kind(c, "Tdense", 2), "r": of_kind(c, "ragged_value_types", 5)},
        {"s": of_kind(c, "sparse_types", 1)},
    )
    keys = (S(b"s"), S(b"d"), S(b"r"))
    lists = {name: [c.name(name)] for name in ("sparse_types", "ragged_value_types", "ragged_split_types")}
    yield Call(batch, S(), *keys, [default_of(c).reshape(())], num_sparse=1, dense_shapes=[[None, 2]], **lists)
    yield Call(np.array(batch[0], object), S(), *keys, [default_of(c, 4)], num_sparse=1, dense_shapes=[[4]], **lists)


def sequences(*parts):
    """Serialized sequence examples, each of a dict of context values and a dict of lists of values."""
    made = []
    for context, lists in parts:
        message = tf.train.SequenceExample(context=tf.train.Features(feature={k: feature(v) for k, v in context.items()}))
        for key, steps in lists.items():
            message.feature_lists.feature_list[key].feature.extend([feature(v) for v in steps])
        made.append(message)
    return S(*[m.SerializeToString() for m in made])


def frames(c):
    """Three sequence examples of 3, 1 and 0 steps, with the types of an op that parses them."""
    context = lambda n, ragged: {"s": of_kind(c, "context_sparse_types", n), "d": of_kind(c, "Tcontext_dense", 2)} | ({"r": of_kind(c, "context_ragged_value_types", ragged)} if "context_ragged_value_types" in c.types else {})
    lists = lambda counts: {"s": [of_kind(c, "feature_list_sparse_types", n) for n in counts], "d": [of_kind(c, "feature_list_dense_types", 2) for _ in counts]} | (
        {"r": [of_kind(c, "feature_list_ragged_value_types", n) for n in counts]} if "feature_list_ragged_value_types" in c.types else {})
    return sequences((context(3, 1), lists([1, 0, 2])), (context(0, 4), lists([3])), ({}, {"d": []}))


def context_default(c, count=2):
    return np.full(count, b"d", object) if c.name("Tcontext_dense") == "string" else np.full(count, 9, c.dtype("Tcontext_dense"))


def kinds_of(c):
    """The attributes of an op that parses sequence examples which hold lists of types, one type each."""
    return {name: [value] for name, value in c.types.items() if name != "Tcontext_dense"}


@case("ParseSingleSequenceExample")
def parse_single_sequence(c):
    key = lambda k: np.array(k, object)
    for message in frames(c):
        keys = [[key(b"s")], [key(b"d")], [key(b"s")], [key(b"d")]]
        yield Call(np.array(message, object), S(), *keys, [context_default(c)], key(b"name"), context_dense_shapes=[[2]], feature_list_dense_shapes=[[2]], **kinds_of(c))
        yield Call(np.array(message, object), S(b"none"), *keys[:3], [key(b"none")], [context_default(c)], key(b""), context_dense_shapes=[[2]], feature_list_dense_shapes=[[1, 2]], **kinds_of(c))


@case("ParseSequenceExample")
def parse_sequence(c):
    keys = dict(context_sparse_keys=["s"], context_dense_keys=["d"], feature_list_sparse_keys=["s"])
    counts = dict(Ncontext_sparse=1, Ncontext_dense=1, Nfeature_list_sparse=1, Nfeature_list_dense=1)
    for names in (S(), S(b"x", b"y", b"z")):
        yield Call(frames(c), names, [context_default(c)], context_dense_shapes=[[2]], feature_list_dense_keys=["d"], feature_list_dense_missing_assumed_empty=[], feature_list_dense_shapes=[[2]], **keys, **counts, **kinds_of(c))
    yield Call(frames(c)[:2], S(), [context_default(c)], context_dense_shapes=[[2]], feature_list_dense_keys=["none"], feature_list_dense_missing_assumed_empty=["none"], feature_list_dense_shapes=[[2]], **keys, **counts, **kinds_of(c))


@case("ParseSequenceExampleV2")
def parse_sequence_v2(c):
    counts = dict(Ncontext_sparse=1, Nfeature_list_sparse=1, Nfeature_list_dense=1)
    shapes = dict(context_dense_shapes=[[2]], feature_list_dense_shapes=[[1, 2]])
    keys = [S(b"s"), S(b"d"), S(b"r")]
    yield Call(frames(c), S(), *keys, *keys, np.array([False]), [context_default(c)], **counts, **shapes, **kinds_of(c))
    yield Call(frames(c), S(b"x", b"y", b"z"), *keys, S(b"none"), S(b"no"), S(b"never"), np.array([True]), [context_default(c)], **counts, **shapes, **kinds_of(c))
    # The splits of the context's ragged feature, and the outer splits of the list's, are not initialised by the peer.
    one = np.array(frames(c)[0], object)
    yield Call(one, S(), *keys, *keys, np.array([False]), [context_default(c)], unset=(5, 12), **counts, **shapes, **kinds_of(c))


@case("Fingerprint")
def fingerprint(c):
    method = np.array(b"farmhash64", object)
    for shape in ((3,), (2, 3), (2, 3, 2), (0, 2)):
        yield Call(c.values(shape), method)
    if c.name("T") == "string":
        yield Call(np.array([b"x" * n for n in range(0, 300, 7)] + [b"y" * 128, b"z" * 192, b"z" * 256], object), method)
