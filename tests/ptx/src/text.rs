//! The tokens of a PTX text.

use std::iter::Peekable;
use std::str::CharIndices;

/// An error in a PTX text, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX, line {line}: {what}")]
pub struct ParseError {
    pub line: usize,
    pub what: String,
}

/// The tokens of a text: words, and punctuation of one character each. Numbers, names with their dots, and
/// opcodes are words.
#[derive(Debug)]
pub(crate) struct Tokens<'a> {
    text: &'a str,
    characters: Peekable<CharIndices<'a>>,
    line: usize,
    next: Option<&'a str>,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(text: &'a str) -> Tokens<'a> {
        let mut tokens = Tokens { text, characters: text.char_indices().peekable(), line: 1, next: None };
        tokens.next = tokens.read();
        tokens
    }

    /// Returns the next token without consuming it.
    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.next
    }

    /// Returns the number of the line that has been read last.
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// Returns an error at the current line.
    pub(crate) fn error(&self, what: impl Into<String>) -> ParseError {
        ParseError { line: self.line, what: what.into() }
    }

    /// Consumes the next token and returns it.
    ///
    /// # Errors
    /// At the end of the text.
    pub(crate) fn word(&mut self) -> Result<&'a str, ParseError> {
        let next = self.next.ok_or_else(|| self.error("the text ends early"))?;
        self.next = self.read();
        Ok(next)
    }

    /// Consumes the next token if it is `word`, and returns whether it is.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let is_next = self.next == Some(word);
        if is_next {
            self.next = self.read();
        }
        is_next
    }

    /// Consumes the next token, which must be `word`.
    ///
    /// # Errors
    /// If another token is next.
    pub(crate) fn expect(&mut self, word: &str) -> Result<(), ParseError> {
        if self.take(word) { Ok(()) } else { Err(self.error(format!("{:?} is not {word:?}", self.next))) }
    }

    /// Consumes the next token, which must be a number, and returns it.
    ///
    /// # Errors
    /// If no number is next.
    pub(crate) fn count(&mut self) -> Result<usize, ParseError> {
        let word = self.word()?;
        word.parse().map_err(|_| self.error(format!("{word:?} is no count")))
    }

    /// Reads and returns one more token of the text, or returns `None` at the end of the text.
    fn read(&mut self) -> Option<&'a str> {
        loop {
            let (start, first) = self.characters.next()?;
            match first {
                '\n' => self.line += 1,
                '/' if self.text[start..].starts_with("//") => {
                    while self.characters.next_if(|&(_, c)| c != '\n').is_some() {}
                }
                '"' => {
                    while self.characters.next_if(|&(_, c)| c != '"').is_some() {}
                    let end = self.characters.next()?.0;
                    return Some(&self.text[start..=end]);
                }
                c if c.is_whitespace() || c == '\0' => {}
                c if is_part(c) || c == '-' => {
                    while self.characters.next_if(|&(_, c)| is_part(c)).is_some() {}
                    let end = self.characters.peek().map_or(self.text.len(), |&(end, _)| end);
                    return Some(&self.text[start..end]);
                }
                c => return Some(&self.text[start..start + c.len_utf8()]),
            }
        }
    }
}

/// Returns whether the character is part of a word.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '%')
}

/// Returns the register bits of a number: an integer, or a float such as `0f3F800000`. Returns `None` for any
/// other word.
pub(crate) fn number(word: &str) -> Option<u64> {
    let hexadecimal = |digits| u64::from_str_radix(digits, 16).ok();
    match word.as_bytes() {
        [b'0', b'f' | b'F' | b'd' | b'D' | b'x' | b'X', ..] => hexadecimal(&word[2..]),
        [b'-', ..] => word.parse::<i64>().ok().map(|x| x as u64),
        _ => word.strip_suffix('U').unwrap_or(word).parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_separated_from_punctuation_and_comments() -> Result<(), ParseError> {
        let mut tokens = Tokens::new("@!%p1 bra $L_2; // there\n[%rd5+-8],{1}\"a b\"");
        let mut all = Vec::new();
        while tokens.peek().is_some() {
            all.push(tokens.word()?);
        }
        let expected =
            ["@", "!", "%p1", "bra", "$L_2", ";", "[", "%rd5", "+", "-8", "]", ",", "{", "1", "}", "\"a b\""];
        assert_eq!(all, expected);
        assert_eq!(tokens.word(), Err(ParseError { line: 2, what: "the text ends early".into() }));
        Ok(())
    }

    #[test]
    fn numbers_are_parsed_to_bits() {
        assert_eq!(number("0f3F800000"), Some(u64::from(1f32.to_bits())));
        assert_eq!(number("0d3FF0000000000000"), Some(1f64.to_bits()));
        assert_eq!(number("-1"), Some(u64::MAX));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        assert_eq!(number("%r1"), None);
    }
}
