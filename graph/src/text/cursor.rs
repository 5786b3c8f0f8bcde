//! The tokenizer of the text format, for one line.

use super::is_name_byte;
use crate::error::{Error, Result};

/// One line of the text, and the position of its next token.
pub(super) struct Cursor<'a> {
    line: usize,
    whole: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: usize, whole: &'a str) -> Cursor<'a> {
        Cursor { line, whole, at: 0 }
    }

    /// Returns an error that names the line.
    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::Text { line: self.line, message: message.into() }
    }

    /// Returns an error that names the expected token and shows the text found instead.
    pub(super) fn expected<T>(&mut self, what: &str) -> Result<T> {
        self.skip_space();
        let found: String = self.rest().chars().take(20).collect();
        Err(match found.is_empty() {
            true => self.error(format!("expected {what}, the line ends")),
            false => self.error(format!("expected {what}, found '{found}'")),
        })
    }

    fn rest(&self) -> &'a str {
        &self.whole[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// Returns whether only spaces or a comment follow.
    pub(super) fn is_done(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty() || self.rest().starts_with('#')
    }

    /// Consumes the token if it comes next; returns whether it did.
    pub(super) fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let there = self.rest().starts_with(token);
        if there {
            self.at += token.len();
        }
        there
    }

    /// Returns whether the token comes next.
    pub(super) fn is_next(&mut self, token: &str) -> bool {
        self.skip_space();
        self.rest().starts_with(token)
    }

    /// Consumes the token, or returns an error if it does not come next.
    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.take(token) { Ok(()) } else { self.expected(&format!("'{token}'")) }
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.bytes().position(|b| !accept(b)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Consumes a plain or quoted name.
    pub(super) fn name(&mut self) -> Result<String> {
        self.skip_space();
        if self.is_next("\"") {
            let bytes = self.string()?;
            return String::from_utf8(bytes).map_err(|_| self.error("a name must be UTF-8"));
        }
        match self.take_while(is_name_byte) {
            "" => self.expected("a name"),
            name => Ok(name.to_owned()),
        }
    }

    /// Consumes and returns a possibly empty word of letters, digits and underscores.
    pub(super) fn word(&mut self) -> &'a str {
        self.skip_space();
        self.take_while(|b| b.is_ascii_alphanumeric() || b == b'_')
    }

    /// Consumes the characters of a number.
    pub(super) fn number(&mut self) -> &'a str {
        self.skip_space();
        self.take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.' | b':'))
    }

    /// Returns the position, for a later [`Cursor::rewind`].
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn rewind(&mut self, position: usize) {
        self.at = position;
    }

    /// Consumes and parses a number; `what` describes it in the error message.
    pub(super) fn parse<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        self.skip_space();
        let start = self.at;
        match self.number().parse() {
            Ok(value) => Ok(value),
            Err(_) => {
                self.at = start;
                self.expected(what)
            }
        }
    }

    /// Consumes a quoted string and returns its bytes without escapes.
    pub(super) fn string(&mut self) -> Result<Vec<u8>> {
        self.expect("\"")?;
        let mut out = Vec::new();
        loop {
            let text = self.take_while(|b| b != b'"' && b != b'\\');
            out.extend_from_slice(text.as_bytes());
            let mut next = self.rest().chars();
            match (next.next(), next.next()) {
                (Some('"'), _) => {
                    self.at += 1;
                    return Ok(out);
                }
                (Some('\\'), Some('x')) => {
                    let byte = self.rest().get(2..4).and_then(|d| u8::from_str_radix(d, 16).ok());
                    match byte {
                        Some(byte) => out.push(byte),
                        None => return self.expected("an escape '\\x00'"),
                    }
                    self.at += 4;
                }
                (Some('\\'), Some(c)) => {
                    out.push(match c {
                        'n' => b'\n',
                        't' => b'\t',
                        '"' | '\\' => c as u8,
                        _ => return self.expected("an escape"),
                    });
                    self.at += 2;
                }
                _ => return Err(self.error("the string has no end")),
            }
        }
    }

    /// Consumes `0x` and two hexadecimal digits per byte.
    pub(super) fn hex(&mut self) -> Result<Vec<u8>> {
        self.expect("0x")?;
        let digits = self.take_while(|b| b.is_ascii_hexdigit()).as_bytes();
        let (pairs, odd) = digits.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(self.error("an odd number of hexadecimal digits"));
        }
        let value = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
        Ok(pairs.iter().map(|[high, low]| value(*high) << 4 | value(*low)).collect())
    }
}
