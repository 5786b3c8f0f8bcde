"""Text as code points: decoding, encoding, the change of encodings, scripts; n-grams."""
import numpy as np

from . import Call, case

S = lambda *v: np.array(v, object)
TEXTS = {
    "UTF-8": S("hä€😀".encode(), b"", b"a\xff\x01b", b"\xed\xa0\x80\xe4\x80", b"\xf0\x9f\x98", b"\xef\xbb\xbfx\x00", b"\xc0\x80\xf5\x80"),
    "utf_16be": S("hä€😀".encode("utf-16-be"), b"", b"\xd8\x3d\x00a", b"\xde\x00\x00\x02\x00", b"\xd8\x3d\xde"),
    "UTF-16LE": S("hä€😀".encode("utf-16-le"), b"\xff\xfea\x00", b"a\xdc"),
    # A byte order mark is that of the strings after it too, except for some.
    "UTF-16": S(b"\xff\xfea\x00b\x00", b"a\x00", b"\xfe\xff", b"a\x00\xde", b"\x00a\x00b", b"\xfe\xff", b"\xff\xfe"),
    "UTF-32-BE": S("hä€😀".encode("utf-32-be"), b"\x00\x00\xd8\x00\x00\x11\x00\x00", b"\x00\x00\x00"),
    "UTF-32LE": S("hä€😀".encode("utf-32-le"), b"a\x00\x00"),
    "UTF-32": S(b"\xff\xfe\x00\x00a\x00\x00\x00b\x00\x00\x00", b"a\x00\x00\x00", b"\x00\x00\xfe\xff"),
    "US-ASCII": S(b"ab\x80\x7f"),
    "latin1": S(bytes(range(256))),
    "ISO-8859-7": S(bytes(range(256))),
    "windows-1252": S(bytes(range(256))),
    "cp037": S(bytes(range(256))),
    "KOI8-R": S(bytes(range(256)), b"\xf0\xd2"),
    "ibm-00866": S(bytes(range(256))),
    "x-mac-cyrillic": S(bytes(range(256))),
}
ERRORS = (dict(errors="replace"), dict(errors="ignore"), dict(errors="replace", replacement_char=33, replace_control_characters=True), dict(errors="ignore", replace_control_characters=True))


# Encodings with several bytes per character, by the names of ICU's converters and by some of their aliases.
MULTIBYTE = (
    "Shift_JIS", "windows-31j", "cp943", "ibm-942", "EUC-JP", "ujis", "ibm-33722", "IBM-eucJP", "ibm-954", "GBK", "ibm-1386", "EUC-CN", "GB18030",
    "Big5", "cp950", "Big5-HKSCS", "ibm-1373", "MS950_HKSCS", "EUC-KR", "KS_C_5601-1987", "cp1363", "ibm-1363", "cp949", "cp949c",
)


def sequences(c):
    """Random sequences, of which many are characters of these encodings and many are malformed or cut off."""
    ranges = ((0, 256), (0x80, 256), (0xA1, 0xFF), (0x30, 0x80))
    made = [b"".join(bytes([c.rng.integers(*ranges[c.rng.integers(4)])]) for _ in range(c.rng.integers(1, 40))) for _ in range(60)]
    pairs = [bytes([first, second]) for first in range(0x80, 256, 5) for second in range(c.rng.integers(0x30, 0x36), 256, 3)]
    return S(*made, *pairs, bytes(range(256)), b"\x8f", b"\x8f\xb0", b"\x8f\xb0\xa1", b"\x81\x30\x81", b"\x90\x30\x81\x30", b"")


@case("UnicodeDecode", "UnicodeDecodeWithOffsets")
def decode(c):
    for encoding, texts in TEXTS.items():
        for attrs in ERRORS:
            yield Call(texts, input_encoding=encoding, **attrs)
    yield Call(TEXTS["UTF-8"][:2].reshape(2, 1), input_encoding="UTF-8", errors="strict")
    yield Call(S(b"a\n"), input_encoding="UTF-8", errors="strict", replace_control_characters=True)
    yield Call(S(), input_encoding="UTF-8")
    for encoding in MULTIBYTE:
        yield Call(sequences(c), input_encoding=encoding)
        yield Call(sequences(c), input_encoding=encoding, errors="ignore", replace_control_characters=True)


@case("UnicodeTranscode")
def transcode(c):
    for encoding, texts in TEXTS.items():
        for output in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
            for attrs in (*ERRORS, dict(replacement_char=0xD83D)):
                yield Call(texts, input_encoding=encoding, output_encoding=output, **attrs)
    yield Call(TEXTS["UTF-8"][:2].reshape(2, 1), input_encoding="UTF-8", output_encoding="UTF-16-BE", errors="strict")
    for encoding in MULTIBYTE:
        yield Call(sequences(c), input_encoding=encoding, output_encoding="UTF-8")


@case("UnicodeEncode")
def encode(c):
    codes = np.array([97, 0xD800, 98, 0x10FFFF, 0x110000, -1, 0xFFFE, 0x1F600, 0xE4, 0], np.int32)
    for output in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
        for attrs in (dict(), dict(errors="ignore"), dict(replacement_char=33), dict(replacement_char=0xD801)):
            yield Call(codes, c.array([0, 2, 5, 5, 10], "Tsplits"), output_encoding=output, **attrs)
        yield Call(codes[6:], c.array([0, 3, 4], "Tsplits"), output_encoding=output, errors="strict")
    yield Call(codes[:0], c.array([0], "Tsplits"), output_encoding="UTF-8")


@case("UnicodeScript")
def script(c):
    for plane in range(17):
        yield Call(np.arange(plane << 16, (plane + 1) << 16, dtype=np.int32))
    yield Call(np.array([-1, 0x110000, 2**31 - 1, -(2**31), 0xD800], np.int32))


@case("StringNGrams")
def ngrams(c):
    data = S(b"a", b"b", b"", b"long", b"e", b"f")
    for splits in ([0, 4, 6], [0, 4, 4, 6], [0, 0, 6]):
        for widths in ([2], [3], [3, 2, 1], [5], [9, 7], []):
            for left, right, pad in (("", "", 0), ("L", "RR", -1), ("L", "R", 1), ("<", "", 2), ("L", "R", 100)):
                for short in (False, True) if widths or pad >= 0 else (False,):
                    attrs = dict(separator="-", ngram_widths=widths, left_pad=left, right_pad=right, pad_width=pad, preserve_short_sequences=short)
                    yield Call(data, c.array(splits, "Tsplits"), **attrs)
    attrs = dict(separator=" ", ngram_widths=[2], left_pad="", right_pad="", pad_width=0, preserve_short_sequences=False)
    for splits in ([], [0, 6]):
        yield Call(data, c.array(splits, "Tsplits"), **attrs)
    yield Call(S(), c.array([0, 0], "Tsplits"), **attrs)
    yield Call(S(), c.array([], "Tsplits"), **attrs)
