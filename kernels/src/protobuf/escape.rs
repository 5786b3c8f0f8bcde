//! Escape sequences of C, in the text form of messages and in default values of descriptors.

/// Returns the bytes that a text with escape sequences stands for; `None` for an invalid sequence.
pub(super) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first()?;
        rest = after;
        match escape {
            b'a' => out.push(7),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'\\' | b'\'' | b'"' | b'?' => out.push(escape),
            b'0'..=b'7' => {
                let more = digits(&mut rest, 8, 2).unwrap_or_default();
                let octal = more.iter().fold(u32::from(escape - b'0'), |all, digit| all * 8 + digit);
                out.push(octal as u8);
            }
            b'x' | b'X' => {
                let hex = digits(&mut rest, 16, 2)?;
                out.push(hex.iter().fold(0, |all, digit| all * 16 + digit) as u8);
            }
            b'u' => push_char(&mut out, unit(&mut rest)?, &mut rest)?,
            b'U' => {
                let code = digits(&mut rest, 16, 8).filter(|all| all.len() == 8)?;
                let code = code.iter().fold(0u32, |all, digit| all.wrapping_mul(16) + digit);
                push_char(&mut out, code, &mut rest)?;
            }
            _ => return None,
        }
    }
    Some(out)
}

/// Takes one to `most` digits from the front; `None` if there is none.
fn digits(rest: &mut &[u8], base: u32, most: usize) -> Option<Vec<u32>> {
    let all: Vec<u32> = rest.iter().take(most).map_while(|byte| char::from(*byte).to_digit(base)).collect();
    *rest = &rest[all.len()..];
    Some(all).filter(|all| !all.is_empty())
}

/// Takes the four hexadecimal digits of a UTF-16 unit.
pub(super) fn unit(rest: &mut &[u8]) -> Option<u32> {
    let all = digits(rest, 16, 4).filter(|all| all.len() == 4)?;
    Some(all.iter().fold(0, |all, digit| all * 16 + digit))
}

/// Appends a character; a high surrogate is joined with the low surrogate of the escape sequence that follows.
fn push_char(out: &mut Vec<u8>, code: u32, rest: &mut &[u8]) -> Option<()> {
    let mut code = code;
    if (0xd800..0xdc00).contains(&code) {
        *rest = rest.strip_prefix(b"\\u")?;
        let low = unit(rest).filter(|low| (0xdc00..0xe000).contains(low))?;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    let character = char::from_u32(code)?;
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Some(())
}
