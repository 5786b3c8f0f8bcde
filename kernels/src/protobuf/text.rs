//! The text form of messages: `name: value`, `name { … }`, `name: [value, …]`.

use super::budget::{Budget, Failure};
use super::descriptor::{Field, Kind, MAX_DEPTH, MessageType, Pool};
use super::escape::unescaped;
use super::message::{Message, Value};

type Result<T> = std::result::Result<T, Failure>;

/// A token of the text form.
#[derive(Clone, Debug, PartialEq)]
enum Token<'a> {
    /// A name, or another word that begins with a letter.
    Word(&'a str),
    /// A number without its sign.
    Number(&'a str),
    /// The contents of a quoted string, with escape sequences.
    Text(&'a [u8]),
    Symbol(u8),
    End,
}

/// A reader of tokens of a text, with the next token. The budget pays for the messages that are read.
struct Tokens<'a, 'b> {
    rest: &'a [u8],
    next: Token<'a>,
    budget: &'b Budget<'b>,
}

/// Reads a message in its text form.
pub(super) fn parse(pool: &Pool, of: &MessageType, text: &[u8], budget: &Budget<'_>) -> Result<Message> {
    let mut tokens = Tokens { rest: text, next: Token::End, budget };
    tokens.advance()?;
    let mut message = Message::default();
    while tokens.next != Token::End {
        tokens.field(pool, of, &mut message, 0)?;
    }
    Ok(message)
}

impl<'a> Tokens<'a, '_> {
    /// Takes the next token.
    fn advance(&mut self) -> Result<Token<'a>> {
        self.budget.step()?;
        let next = self.read()?;
        Ok(std::mem::replace(&mut self.next, next))
    }

    fn read(&mut self) -> Result<Token<'a>> {
        loop {
            match self.rest {
                [b' ' | b'\t' | b'\n' | b'\r' | 11 | 12, rest @ ..] => self.rest = rest,
                [b'#', rest @ ..] => {
                    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                    self.rest = &rest[end..];
                }
                [] => return Ok(Token::End),
                [b'a'..=b'z' | b'A'..=b'Z' | b'_', ..] => {
                    let word = self.take(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                    return std::str::from_utf8(word).map(Token::Word).map_err(|_| Failure::Malformed);
                }
                [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => return self.number(),
                [quote @ (b'"' | b'\''), rest @ ..] => {
                    let mut at = 0;
                    while *rest.get(at).ok_or(Failure::Malformed)? != *quote {
                        match rest[at] {
                            b'\n' => return Err(Failure::Malformed),
                            b'\\' => at += 2,
                            _ => at += 1,
                        }
                    }
                    self.rest = &rest[at + 1..];
                    return Ok(Token::Text(&rest[..at]));
                }
                [symbol, rest @ ..] => {
                    self.rest = rest;
                    return Ok(Token::Symbol(*symbol));
                }
            }
        }
    }

    /// Takes bytes from the front while they are of a kind.
    fn take(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !is_part(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn number(&mut self) -> Result<Token<'a>> {
        let all = self.rest;
        self.take(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        let so_far = &all[..all.len() - self.rest.len()];
        // The sign of an exponent is part of the number.
        if matches!(so_far, [b'0', b'x' | b'X', ..]) {
        } else if matches!(so_far.last(), Some(b'e' | b'E')) && matches!(self.rest.first(), Some(b'+' | b'-'))
        {
            self.rest = &self.rest[1..];
            self.take(|byte| byte.is_ascii_alphanumeric());
        }
        let number = &all[..all.len() - self.rest.len()];
        std::str::from_utf8(number).map(Token::Number).map_err(|_| Failure::Malformed)
    }

    /// Takes a symbol if it is the next token.
    fn accept(&mut self, symbol: u8) -> Result<bool> {
        let is_next = self.next == Token::Symbol(symbol);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, symbol: u8) -> Result<()> {
        if self.accept(symbol)? { Ok(()) } else { Err(Failure::Malformed) }
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.advance()? {
            Token::Word(word) => Ok(word),
            _ => Err(Failure::Malformed),
        }
    }

    /// Reads a field with its values, and the separator after it.
    fn field(&mut self, pool: &Pool, of: &MessageType, message: &mut Message, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Failure::Malformed);
        }
        if self.accept(b'[')? {
            self.bracketed(pool, of, message, depth)?;
        } else {
            let name = self.word()?;
            let field = of.field_named(name).filter(|field| !field.is_extension);
            let field = field.or_else(|| of.group_named(name)).ok_or(Failure::Malformed)?;
            self.values(pool, field, message, depth)?;
        }
        let _ = self.accept(b';')? || self.accept(b',')?;
        Ok(())
    }

    /// Reads a field after an opening bracket: an extension, or the type and the fields of an `Any`.
    fn bracketed(
        &mut self,
        pool: &Pool,
        of: &MessageType,
        message: &mut Message,
        depth: usize,
    ) -> Result<()> {
        let mut name = self.word()?.to_owned();
        while let Token::Symbol(symbol @ (b'.' | b'/' | b'-')) = self.next {
            self.advance()?;
            name.push(symbol.into());
            name.push_str(self.word()?);
        }
        self.expect(b']')?;
        let Some((_, type_name)) = name.rsplit_once('/') else {
            let field = of.field_named(&name).filter(|field| field.is_extension).ok_or(Failure::Malformed)?;
            return self.values(pool, field, message, depth);
        };
        let (Some(url), Some(value)) = (of.field(1), of.field(2)) else { return Err(Failure::Malformed) };
        if of.full_name != "google.protobuf.Any" {
            return Err(Failure::Malformed);
        }
        let inner_type = pool.message(type_name).ok_or(Failure::Malformed)?;
        self.accept(b':')?;
        let (mut inner, mut bytes) = (Message::default(), Vec::new());
        self.body(pool, inner_type, &mut inner, depth)?;
        inner.write(pool, inner_type, &mut bytes, self.budget)?;
        self.budget.take(name.len())?;
        message.add(url, Value::Bytes(name.into_bytes()), self.budget)?;
        message.add(value, Value::Bytes(bytes), self.budget)
    }

    /// Reads the value of a field after its name, or a list of values in brackets.
    fn values(&mut self, pool: &Pool, field: &Field, message: &mut Message, depth: usize) -> Result<()> {
        let is_taken =
            message.has(field.number) || field.oneof.is_some_and(|oneof| message.has_member(oneof));
        if !field.is_repeated && is_taken {
            return Err(Failure::Malformed);
        }
        let is_message = matches!(field.kind, Kind::Message | Kind::Group);
        if !self.accept(b':')? && !is_message {
            return Err(Failure::Malformed);
        }
        if !(field.is_repeated && self.accept(b'[')?) {
            return self.value(pool, field, message, depth);
        }
        if self.accept(b']')? {
            return Ok(());
        }
        loop {
            self.value(pool, field, message, depth)?;
            if self.accept(b']')? {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn value(&mut self, pool: &Pool, field: &Field, message: &mut Message, depth: usize) -> Result<()> {
        let value = match field.kind {
            Kind::Message | Kind::Group => {
                let part = message.message(field, self.budget)?;
                return self.body(pool, &pool.messages[field.of], part, depth);
            }
            Kind::String | Kind::Bytes => {
                let mut all = Vec::new();
                if !matches!(self.next, Token::Text(_)) {
                    return Err(Failure::Malformed);
                }
                while let Token::Text(part) = self.next {
                    self.advance()?;
                    self.budget.take(part.len())?;
                    all.extend(unescaped(part).ok_or(Failure::Malformed)?);
                }
                Value::Bytes(all)
            }
            _ => Value::Number(self.scalar(pool, field)?),
        };
        message.add(field, value, self.budget)
    }

    /// Reads the fields of a message in braces or angle brackets.
    fn body(&mut self, pool: &Pool, of: &MessageType, message: &mut Message, depth: usize) -> Result<()> {
        let close = if self.accept(b'<')? {
            b'>'
        } else {
            self.expect(b'{')?;
            b'}'
        };
        while !self.accept(close)? {
            self.field(pool, of, message, depth + 1)?;
        }
        Ok(())
    }

    /// Reads a number, a bool or an enum value; returns its bits.
    fn scalar(&mut self, pool: &Pool, field: &Field) -> Result<u64> {
        let is_negative = self.accept(b'-')?;
        let token = self.advance()?;
        let signed = |size: u32| -> Result<u64> {
            let Token::Number(digits) = &token else { return Err(Failure::Malformed) };
            let value = i128::from(integer(digits)?) * if is_negative { -1 } else { 1 };
            let limit = 1i128 << (size - 1);
            if (-limit..limit).contains(&value) { Ok(value as i64 as u64) } else { Err(Failure::Malformed) }
        };
        match (field.kind, &token) {
            (Kind::Double | Kind::Float, _) => {
                let value = match &token {
                    Token::Word(word) if word.eq_ignore_ascii_case("nan") => f64::NAN,
                    Token::Word(word)
                        if ["inf", "infinity"].iter().any(|name| word.eq_ignore_ascii_case(name)) =>
                    {
                        f64::INFINITY
                    }
                    Token::Number(digits) => decimal(digits)?,
                    _ => return Err(Failure::Malformed),
                };
                let value = if is_negative { -value } else { value };
                Ok(if field.kind == Kind::Double { value.to_bits() } else { (value as f32).to_bits().into() })
            }
            (Kind::Enum, Token::Word(word)) if !is_negative => {
                let of = &pool.enums[field.of];
                let found = of.number(word).ok_or(Failure::Malformed)?;
                Ok(i64::from(found) as u64)
            }
            (Kind::Enum, _) => {
                let of = &pool.enums[field.of];
                let bits = signed(32)?;
                if of.is_closed && !of.has_number(bits) { Err(Failure::Malformed) } else { Ok(bits) }
            }
            (Kind::Bool, Token::Word("true" | "True" | "t")) if !is_negative => Ok(1),
            (Kind::Bool, Token::Word("false" | "False" | "f")) if !is_negative => Ok(0),
            (Kind::Bool, Token::Number(digits)) if !is_negative => {
                Some(integer(digits)?).filter(|value| *value <= 1).ok_or(Failure::Malformed)
            }
            (Kind::Int32 | Kind::SInt32 | Kind::SFixed32, _) => signed(32),
            (Kind::Int64 | Kind::SInt64 | Kind::SFixed64, _) => signed(64),
            (Kind::UInt32 | Kind::Fixed32, Token::Number(digits)) if !is_negative => {
                Some(integer(digits)?).filter(|value| *value <= u32::MAX.into()).ok_or(Failure::Malformed)
            }
            (Kind::UInt64 | Kind::Fixed64, Token::Number(digits)) if !is_negative => integer(digits),
            _ => Err(Failure::Malformed),
        }
    }
}

/// Returns a decimal, octal or hexadecimal integer.
fn integer(digits: &str) -> Result<u64> {
    let parsed = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => u64::from_str_radix(&digits[2..], 16),
        [b'0', _, ..] => u64::from_str_radix(&digits[1..], 8),
        _ => digits.parse(),
    };
    parsed.map_err(|_| Failure::Malformed)
}

/// Returns a floating-point number, which may end in `f`. Integers are decimal.
fn decimal(digits: &str) -> Result<f64> {
    match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => integer(digits).map(|value| value as f64),
        _ => digits.trim_end_matches(['f', 'F']).parse().map_err(|_| Failure::Malformed),
    }
}
