//! A text as words and signs.

use std::iter::Peekable;
use std::str::CharIndices;

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX, line {line}: {what}")]
pub struct Wrong {
    pub line: usize,
    pub what: String,
}

/// The words of a text, and signs of one character. Numbers, names with their dots, and opcodes are words.
#[derive(Debug)]
pub(crate) struct Words<'a> {
    text: &'a str,
    places: Peekable<CharIndices<'a>>,
    line: usize,
    next: Option<&'a str>,
}

impl<'a> Words<'a> {
    pub(crate) fn new(text: &'a str) -> Words<'a> {
        let mut words = Words { text, places: text.char_indices().peekable(), line: 1, next: None };
        words.next = words.read();
        words
    }

    /// The next word, which stays.
    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.next
    }

    pub(crate) fn line(&self) -> usize {
        self.line
    }

    pub(crate) fn wrong(&self, what: impl Into<String>) -> Wrong {
        Wrong { line: self.line, what: what.into() }
    }

    /// # Errors
    /// At the end.
    pub(crate) fn word(&mut self) -> Result<&'a str, Wrong> {
        let next = self.next.ok_or_else(|| self.wrong("the text ends early"))?;
        self.next = self.read();
        Ok(next)
    }

    /// The next word, if it is this one.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let is_next = self.next == Some(word);
        if is_next {
            self.next = self.read();
        }
        is_next
    }

    /// # Errors
    /// If another word is next.
    pub(crate) fn expect(&mut self, word: &str) -> Result<(), Wrong> {
        if self.take(word) { Ok(()) } else { Err(self.wrong(format!("{:?} is not {word:?}", self.next))) }
    }

    /// # Errors
    /// If no number is next.
    pub(crate) fn count(&mut self) -> Result<usize, Wrong> {
        let word = self.word()?;
        word.parse().map_err(|_| self.wrong(format!("{word:?} is no count")))
    }

    fn read(&mut self) -> Option<&'a str> {
        loop {
            let (start, first) = self.places.next()?;
            match first {
                '\n' => self.line += 1,
                '/' if self.text[start..].starts_with("//") => {
                    while self.places.next_if(|&(_, c)| c != '\n').is_some() {}
                }
                '"' => {
                    while self.places.next_if(|&(_, c)| c != '"').is_some() {}
                    let end = self.places.next()?.0;
                    return Some(&self.text[start..=end]);
                }
                c if c.is_whitespace() || c == '\0' => {}
                c if is_part(c) || c == '-' => {
                    while self.places.next_if(|&(_, c)| is_part(c)).is_some() {}
                    let end = self.places.peek().map_or(self.text.len(), |&(end, _)| end);
                    return Some(&self.text[start..end]);
                }
                c => return Some(&self.text[start..start + c.len_utf8()]),
            }
        }
    }
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '%')
}

/// What a number stands for in a register: of integers the bits of 64, of `0f3F800000` those of a `float`.
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
    fn words_are_told_from_signs_and_comments() -> Result<(), Wrong> {
        let mut words = Words::new("@!%p1 bra $L_2; // there\n[%rd5+-8],{1}\"a b\"");
        let mut all = Vec::new();
        while words.peek().is_some() {
            all.push(words.word()?);
        }
        let expected =
            ["@", "!", "%p1", "bra", "$L_2", ";", "[", "%rd5", "+", "-8", "]", ",", "{", "1", "}", "\"a b\""];
        assert_eq!(all, expected);
        assert_eq!(words.word(), Err(Wrong { line: 2, what: "the text ends early".into() }));
        Ok(())
    }

    #[test]
    fn numbers_are_bits() {
        assert_eq!(number("0f3F800000"), Some(u64::from(1f32.to_bits())));
        assert_eq!(number("0d3FF0000000000000"), Some(1f64.to_bits()));
        assert_eq!(number("-1"), Some(u64::MAX));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        assert_eq!(number("%r1"), None);
    }
}
