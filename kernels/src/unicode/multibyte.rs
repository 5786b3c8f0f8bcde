//! Encodings with several bytes per character. The characters are those of `encoding_rs`, which are WHATWG's; a table
//! lists the sequences for which the converters of ICU have another character or none.

use super::encoding::{Page, Unit, parse_page, plain_name};
use encoding_rs::{EUC_JP, GB18030};
use std::fmt;
use std::sync::{LazyLock, OnceLock};

/// The encodings, four lines each. The first line has the names, as [`plain_name`] writes them. The second has the name
/// of the encoding of `encoding_rs` on which it is based and, for ranges of first bytes, the second bytes that belong to
/// the same unit (`81-9f,e0-fc:40-7e,80-fc`), with a character or without. The third has the characters of single
/// bytes, in the form of the table of encodings with one byte per character. The fourth has the differences from the
/// base: `815c=2014+2` maps the sequences 815c and 815d to U+2014 and U+2015, `81ca=!` is a sequence without a
/// character.
const TABLE: &str = include_str!("multibyte.txt");

/// An encoding with several bytes per character.
pub(super) struct Multibyte {
    base: &'static encoding_rs::Encoding,
    /// For each first byte of a longer sequence, the second bytes of the same unit.
    second_bytes: Vec<Option<[bool; 256]>>,
    singles: Page,
    /// Ranges of sequences, as numbers, with other characters than in the base, in ascending order.
    differences: Vec<Difference>,
}

/// The characters of `count` consecutive sequences: consecutive code points from `code` on, or none.
struct Difference {
    first: u32,
    code: Option<u32>,
    count: u32,
}

/// The lines of an encoding in the table, and the encoding once it has been used.
struct Entry {
    names: &'static str,
    lines: [&'static str; 3],
    parsed: OnceLock<Option<Multibyte>>,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let (mut entries, mut lines) = (Vec::new(), TABLE.lines());
    while let (Some(names), Some(structure), Some(singles), Some(differences)) =
        (lines.next(), lines.next(), lines.next(), lines.next())
    {
        entries.push(Entry { names, lines: [structure, singles, differences], parsed: OnceLock::new() });
    }
    entries
});

fn number(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

/// Returns the bytes in ranges such as `81-9f,e0-fc`.
fn parse_bytes(ranges: &str) -> Option<impl Iterator<Item = usize>> {
    let bounds = |range: &str| {
        let (first, last) = range.split_once('-')?;
        Some(number(first)? as usize..=(number(last)? as usize).min(255))
    };
    Some(ranges.split(',').map(bounds).collect::<Option<Vec<_>>>()?.into_iter().flatten())
}

fn parse_difference(text: &str) -> Option<Difference> {
    let (first, rest) = text.split_once('=')?;
    let (code, count) = rest.split_once('+').unwrap_or((rest, "1"));
    Some(Difference { first: number(first)?, code: number(code), count: number(count)? })
}

impl Multibyte {
    /// Returns the encoding of this name, which is in the form of [`plain_name`], or `None` if there is none.
    pub(super) fn named(plain: &str) -> Option<&'static Multibyte> {
        debug_assert_eq!(plain, plain_name(plain));
        let entry = ENTRIES.iter().find(|entry| entry.names.split(' ').any(|name| name == plain))?;
        entry.parsed.get_or_init(|| Multibyte::parse(entry.lines)).as_ref()
    }

    fn parse([structure, singles, differences]: [&str; 3]) -> Option<Multibyte> {
        let mut parts = structure.split(' ');
        let base = encoding_rs::Encoding::for_label(parts.next()?.as_bytes())?;
        let mut second_bytes = vec![None; 256];
        for part in parts {
            let (firsts, seconds) = part.split_once(':')?;
            let mut is_second = [false; 256];
            parse_bytes(seconds)?.for_each(|byte| is_second[byte] = true);
            parse_bytes(firsts)?.for_each(|byte| second_bytes[byte] = Some(is_second));
        }
        let differences = differences.split_terminator(' ').map(parse_difference).collect::<Option<_>>()?;
        Some(Multibyte { base, second_bytes, singles: parse_page(singles), differences })
    }

    /// Returns the first unit of a string that is not empty. A sequence that no character can begin with is malformed
    /// up to the first byte that may begin another.
    pub(super) fn unit(&self, rest: &[u8]) -> Unit {
        let first = rest[0];
        let Some(is_second) = &self.second_bytes[usize::from(first)] else {
            return match self.singles[usize::from(first)] {
                Some(code) => Unit::valid(code, 1),
                None => Unit::malformed(1),
            };
        };
        let Some(&second) = rest.get(1) else { return Unit::malformed(1) };
        if !is_second[usize::from(second)] {
            return Unit::malformed(1);
        }
        let is_graphic = |byte: u8| (0xa1..=0xfe).contains(&byte);
        let more: &[fn(u8) -> bool] = if self.base == GB18030 && second.is_ascii_digit() {
            &[|byte| (0x81..=0xfe).contains(&byte), |byte| byte.is_ascii_digit()]
        } else if self.base == EUC_JP && first == 0x8f && is_graphic(second) {
            &[|byte| (0xa1..=0xfe).contains(&byte)]
        } else {
            &[]
        };
        for (i, is_next) in more.iter().enumerate() {
            match rest.get(2 + i) {
                None => return Unit::malformed(2 + i),
                Some(&byte) if !is_next(byte) => return Unit::malformed(1),
                Some(_) => {}
            }
        }
        let sequence = &rest[..2 + more.len()];
        self.code(sequence).map_or(Unit::malformed(sequence.len()), |code| Unit::valid(code, sequence.len()))
    }

    /// Returns the character of a whole sequence.
    fn code(&self, sequence: &[u8]) -> Option<u32> {
        let number = sequence.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let at = self.differences.partition_point(|difference| difference.first <= number);
        if let Some(difference) = at.checked_sub(1).map(|at| &self.differences[at])
            && number - difference.first < difference.count
        {
            return difference.code.map(|code| code + (number - difference.first));
        }
        let text = self.base.decode_without_bom_handling_and_without_replacement(sequence)?;
        let mut characters = text.chars();
        characters.next().filter(|_| characters.next().is_none()).map(u32::from)
    }
}

impl fmt::Debug for Multibyte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Multibyte({})", self.base.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_of_the_table_is_parsed() {
        assert_eq!(ENTRIES.len(), 22);
        for entry in ENTRIES.iter() {
            for name in entry.names.split(' ') {
                assert!(Multibyte::named(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn malformed_sequences_end_where_a_character_may_begin() {
        let units = |name: &str, bytes: &[u8]| {
            let Some(encoding) = Multibyte::named(name) else { return Vec::new() };
            let (mut rest, mut units) = (bytes, Vec::new());
            while !rest.is_empty() {
                let unit = encoding.unit(rest);
                units.push((unit.code, unit.length));
                rest = &rest[unit.length..];
            }
            units
        };
        assert_eq!(units("sjis", b"\x82\xa0a\x81"), [(0x3042, 2), (0x61, 1), (0xfffd, 1)]);
        assert_eq!(
            units("eucjp", b"\x8f\xb0\xa1\x8f\xa1A"),
            [(0x4e02, 3), (0xfffd, 1), (0xfffd, 1), (0x41, 1)]
        );
        assert_eq!(units("gb18030", b"\x90\x30\x81\x30"), [(0x10000, 4)]);
        assert_eq!(
            units("gb18030", b"\x81\x30A\x81\x30\x81"),
            [(0xfffd, 1), (0x30, 1), (0x41, 1), (0xfffd, 3)]
        );
        assert_eq!(units("gbk", b"\xa2\xe3\x80"), [(0xe76c, 2), (0x20ac, 1)]);
    }
}
