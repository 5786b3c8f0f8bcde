//! Encodings of text: strings of bytes are decoded to code points. Malformed bytes are found in the units that the
//! converters of ICU report, because replacement characters and offsets depend on them.

use super::multibyte::Multibyte;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The names and the characters of the encodings with one byte per character. Each encoding has two lines: its names,
/// as [`plain_name`] writes them, and the characters of the bytes 0 to 255 in hexadecimal. `61+1a` is a run of 26
/// characters from U+0061 on; `!` is a byte without a character.
const PAGES: &str = include_str!("pages.txt");

/// A character, or a unit of malformed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// The code point; U+FFFD for malformed bytes.
    pub code: u32,
    /// The number of bytes that were read.
    pub length: usize,
    pub is_malformed: bool,
}

impl Unit {
    pub(super) fn valid(code: u32, length: usize) -> Unit {
        Unit { code, length, is_malformed: false }
    }

    pub(super) fn malformed(length: usize) -> Unit {
        Unit { code: 0xfffd, length, is_malformed: true }
    }
}

/// The code point that TensorFlow outputs for a string that consists of a byte order mark only.
const NOTHING: u32 = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Big,
    Little,
    /// The byte order of the mark with which a string begins; big-endian without a mark.
    Marked,
}

/// The characters of the bytes 0 to 255; `None` for bytes without a character.
pub(super) type Page = [Option<u32>; 256];

/// An encoding that can be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Encoding {
    Utf8,
    /// Characters of one or two units of two bytes.
    Utf16(ByteOrder),
    /// Characters of four bytes.
    Utf32(ByteOrder),
    /// Characters of one byte.
    Page(&'static Page),
    /// Characters of one to four bytes.
    Multibyte(&'static Multibyte),
}

static ALL_PAGES: LazyLock<HashMap<&'static str, Page>> = LazyLock::new(|| {
    let mut all = HashMap::new();
    let mut lines = PAGES.lines();
    while let (Some(names), Some(runs)) = (lines.next(), lines.next()) {
        let page = parse_page(runs);
        all.extend(names.split(' ').map(|name| (name, page)));
    }
    all
});

pub(super) fn parse_page(runs: &str) -> Page {
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let codes = runs.split(' ').flat_map(|run| {
        let (first, count) = run.split_once('+').unwrap_or((run, "1"));
        (0..number(count).unwrap_or(0)).map(move |i| number(first).map(|first| first + i))
    });
    let mut page = [None; 256];
    page.iter_mut().zip(codes).for_each(|(to, code)| *to = code);
    page
}

/// Returns the name in lower case, without separators and without zeros in front of numbers: two names of an encoding
/// are equal if these forms are.
pub(super) fn plain_name(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut rest = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).peekable();
    while let Some(c) = rest.next() {
        let is_leading_zero = c == '0'
            && !plain.ends_with(|last: char| last.is_ascii_digit())
            && rest.peek().is_some_and(char::is_ascii_digit);
        if !is_leading_zero {
            plain.push(c.to_ascii_lowercase());
        }
    }
    plain
}

impl Encoding {
    /// Returns the encoding of this name, or `None` if there is none.
    pub(super) fn named(name: &str) -> Option<Encoding> {
        match &*plain_name(name) {
            "utf8" | "cp1208" | "ibm1208" => Some(Encoding::Utf8),
            "utf16be" | "xutf16be" | "unicodebigunmarked" | "cp1200" | "ibm1200" => {
                Some(Encoding::Utf16(ByteOrder::Big))
            }
            "utf16le" | "xutf16le" | "unicodelittleunmarked" | "ibm1202" => {
                Some(Encoding::Utf16(ByteOrder::Little))
            }
            "utf16" | "unicode" | "csunicode" | "ucs2" | "iso10646ucs2" => {
                Some(Encoding::Utf16(ByteOrder::Marked))
            }
            "utf32be" | "ibm1232" => Some(Encoding::Utf32(ByteOrder::Big)),
            "utf32le" | "ibm1234" => Some(Encoding::Utf32(ByteOrder::Little)),
            "utf32" | "ucs4" | "csucs4" | "iso10646ucs4" => Some(Encoding::Utf32(ByteOrder::Marked)),
            plain => match ALL_PAGES.get(plain) {
                Some(page) => Some(Encoding::Page(page)),
                None => Multibyte::named(plain).map(Encoding::Multibyte),
            },
        }
    }
}

/// Decodes the strings of a tensor, one after the other. The byte order that a mark gives is kept for the strings that
/// follow, by the rules of ICU's converters; see [`Wide::decode`].
#[derive(Debug)]
pub(super) enum Decoder {
    Utf8,
    Page(&'static Page),
    Multibyte(&'static Multibyte),
    Wide(Wide),
}

impl Decoder {
    pub(super) fn new(encoding: Encoding) -> Decoder {
        match encoding {
            Encoding::Utf8 => Decoder::Utf8,
            Encoding::Page(page) => Decoder::Page(page),
            Encoding::Multibyte(encoding) => Decoder::Multibyte(encoding),
            Encoding::Utf16(order) => Decoder::Wide(Wide {
                given: order,
                order,
                marks: [&[0xfe, 0xff], &[0xff, 0xfe]],
                next: utf16_unit,
            }),
            Encoding::Utf32(order) => Decoder::Wide(Wide {
                given: order,
                order,
                marks: [&[0, 0, 0xfe, 0xff], &[0xff, 0xfe, 0, 0]],
                next: utf32_unit,
            }),
        }
    }

    /// Calls `each` for all characters and malformed units of a string.
    pub(super) fn decode(&mut self, bytes: &[u8], mut each: impl FnMut(Unit)) {
        match self {
            Decoder::Utf8 => decode_utf8(bytes, each),
            Decoder::Page(page) => bytes.iter().for_each(|&byte| {
                each(page[usize::from(byte)].map_or(Unit::malformed(1), |code| Unit::valid(code, 1)));
            }),
            Decoder::Multibyte(encoding) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let unit = encoding.unit(rest);
                    rest = &rest[unit.length..];
                    each(unit);
                }
            }
            Decoder::Wide(wide) => wide.decode(bytes, each),
        }
    }
}

fn decode_utf8(bytes: &[u8], mut each: impl FnMut(Unit)) {
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| each(Unit::valid(c.into(), c.len_utf8())));
        if !chunk.invalid().is_empty() {
            each(Unit::malformed(chunk.invalid().len()));
        }
    }
}

/// The decoder of an encoding with units of several bytes.
#[derive(Debug)]
pub(super) struct Wide {
    /// The byte order of the encoding.
    given: ByteOrder,
    /// The byte order of the next string.
    order: ByteOrder,
    /// The byte order marks, big-endian and little-endian.
    marks: [&'static [u8]; 2],
    /// Returns the first unit of a string that is not empty; the flag is set for little-endian bytes.
    next: fn(&[u8], bool) -> Unit,
}

impl Wide {
    /// Calls `each` for all units of a string. The byte order of its mark holds for the next strings too, unless the
    /// string is a single unit below U+10000 or ends with a malformed one.
    fn decode(&mut self, bytes: &[u8], mut each: impl FnMut(Unit)) {
        let (mut rest, mut mark, is_first) = (bytes, 0, self.order == ByteOrder::Marked);
        if is_first && !bytes.is_empty() {
            let [is_big, is_little] = self.marks.map(|mark| bytes.starts_with(mark));
            self.order = if is_little { ByteOrder::Little } else { ByteOrder::Big };
            if is_big || is_little {
                mark = self.marks[0].len();
                rest = &bytes[mark..];
            }
            if rest.is_empty() {
                each(Unit::valid(NOTHING, mark));
                self.order = self.given;
            }
        }
        let mut count = 0;
        while !rest.is_empty() {
            let unit = (self.next)(rest, self.order == ByteOrder::Little);
            rest = &rest[unit.length..];
            each(Unit { length: unit.length + std::mem::take(&mut mark), ..unit });
            count += 1;
            if rest.is_empty() && (unit.is_malformed || is_first && count == 1 && unit.code < 0x10000) {
                self.order = self.given;
            }
        }
    }
}

fn utf16_unit(rest: &[u8], is_little: bool) -> Unit {
    let word = |at: usize| {
        let pair = [*rest.get(at)?, *rest.get(at + 1)?];
        Some(u32::from(if is_little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) }))
    };
    match (word(0), word(2)) {
        (None, _) => Unit::malformed(rest.len()),
        (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
            Unit::valid(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), 4)
        }
        // The string ends within the pair.
        (Some(0xd800..=0xdbff), None) => Unit::malformed(rest.len()),
        (Some(0xd800..=0xdfff), _) => Unit::malformed(2),
        (Some(code), _) => Unit::valid(code, 2),
    }
}

fn utf32_unit(rest: &[u8], is_little: bool) -> Unit {
    let Some(&word) = rest.first_chunk::<4>() else { return Unit::malformed(rest.len()) };
    let code = if is_little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) };
    if char::from_u32(code).is_some() { Unit::valid(code, 4) } else { Unit::malformed(4) }
}
