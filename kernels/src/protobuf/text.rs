//! The text form of messages: `name: value`, `name { … }`, `name: [value, …]`.

use super::descriptor::{Field, Kind, MAX_DEPTH, MessageType, Pool};
use super::escape::unescaped;
use super::message::{Message, Value};
use checkpoint::proto::Malformed;

type Result<T> = std::result::Result<T, Malformed>;

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

/// A reader of tokens, with the next token.
struct Tokens<'a> {
    rest: &'a [u8],
    next: Token<'a>,
}

/// Reads a message in its text form.
pub(super) fn parse(pool: &Pool, of: &MessageType, text: &[u8]) -> Result<Message> {
    let mut tokens = Tokens { rest: text, next: Token::End };
    tokens.advance()?;
    let mut message = Message::default();
    while tokens.next != Token::End {
        tokens.field(pool, of, &mut message, 0)?;
    }
    Ok(message)
}

impl<'a> Tokens<'a> {
    /// Takes the next token.
    fn advance(&mut self) -> Result<Token<'a>> {
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
                    return std::str::from_utf8(word).map(Token::Word).map_err(|_| Malformed);
                }
                [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => return self.number(),
                [quote @ (b'"' | b'\''), rest @ ..] => {
                    let mut at = 0;
                    while *rest.get(at).ok_or(Malformed)? != *quote {
                        match rest[at] {
                            b'\n' => return Err(Malformed),
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
        std::str::from_utf8(number).map(Token::Number).map_err(|_| Malformed)
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
        if self.accept(symbol)? { Ok(()) } else { Err(Malformed) }
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.advance()? {
            Token::Word(word) => Ok(word),
            _ => Err(Malformed),
        }
    }

    /// Reads a field with its values, and the separator after it.
    fn field(&mut self, pool: &Pool, of: &MessageType, message: &mut Message, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        if self.accept(b'[')? {
            self.bracketed(pool, of, message, depth)?;
        } else {
            let name = self.word()?;
            let field = of.field_named(name).filter(|field| !field.is_extension);
            let is_called =
                |field: &&Field| field.kind == Kind::Group && pool.messages[field.of].name == name;
            let field = field.or_else(|| of.fields.iter().find(is_called)).ok_or(Malformed)?;
            self.values(pool, of, field, message, depth)?;
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
            let field = of.field_named(&name).filter(|field| field.is_extension).ok_or(Malformed)?;
            return self.values(pool, of, field, message, depth);
        };
        let (Some(url), Some(value)) = (of.field(1), of.field(2)) else { return Err(Malformed) };
        if of.full_name != "google.protobuf.Any" {
            return Err(Malformed);
        }
        let inner_type = pool.message(type_name).ok_or(Malformed)?;
        self.accept(b':')?;
        let (mut inner, mut bytes) = (Message::default(), Vec::new());
        self.body(pool, inner_type, &mut inner, depth)?;
        inner.write(pool, inner_type, &mut bytes);
        message.add(of, url, Value::Bytes(name.into_bytes()));
        message.add(of, value, Value::Bytes(bytes));
        Ok(())
    }

    /// Reads the value of a field after its name, or a list of values in brackets.
    fn values(
        &mut self,
        pool: &Pool,
        of: &MessageType,
        field: &Field,
        message: &mut Message,
        depth: usize,
    ) -> Result<()> {
        let is_taken = |other: &&Field| {
            other.number == field.number || field.oneof.is_some() && other.oneof == field.oneof
        };
        if !field.is_repeated && of.fields.iter().filter(is_taken).any(|other| message.has(other.number)) {
            return Err(Malformed);
        }
        let is_message = matches!(field.kind, Kind::Message | Kind::Group);
        if !self.accept(b':')? && !is_message {
            return Err(Malformed);
        }
        if !(field.is_repeated && self.accept(b'[')?) {
            return self.value(pool, of, field, message, depth);
        }
        if self.accept(b']')? {
            return Ok(());
        }
        loop {
            self.value(pool, of, field, message, depth)?;
            if self.accept(b']')? {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn value(
        &mut self,
        pool: &Pool,
        of: &MessageType,
        field: &Field,
        message: &mut Message,
        depth: usize,
    ) -> Result<()> {
        let value = match field.kind {
            Kind::Message | Kind::Group => {
                let part = message.message(of, field);
                return self.body(pool, &pool.messages[field.of], part, depth);
            }
            Kind::String | Kind::Bytes => {
                let mut all = Vec::new();
                if !matches!(self.next, Token::Text(_)) {
                    return Err(Malformed);
                }
                while let Token::Text(part) = self.next {
                    self.advance()?;
                    all.extend(unescaped(part).ok_or(Malformed)?);
                }
                Value::Bytes(all)
            }
            _ => Value::Number(self.scalar(pool, field)?),
        };
        message.add(of, field, value);
        Ok(())
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
            let Token::Number(digits) = &token else { return Err(Malformed) };
            let value = i128::from(integer(digits)?) * if is_negative { -1 } else { 1 };
            let limit = 1i128 << (size - 1);
            if (-limit..limit).contains(&value) { Ok(value as i64 as u64) } else { Err(Malformed) }
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
                    _ => return Err(Malformed),
                };
                let value = if is_negative { -value } else { value };
                Ok(if field.kind == Kind::Double { value.to_bits() } else { (value as f32).to_bits().into() })
            }
            (Kind::Enum, Token::Word(word)) if !is_negative => {
                let of = &pool.enums[field.of];
                let found = of.values.iter().find(|(name, _)| name == word).ok_or(Malformed)?;
                Ok(i64::from(found.1) as u64)
            }
            (Kind::Enum, _) => {
                let of = &pool.enums[field.of];
                let bits = signed(32)?;
                let is_known = of.values.iter().any(|(_, number)| i64::from(*number) as u64 == bits);
                if of.is_closed && !is_known { Err(Malformed) } else { Ok(bits) }
            }
            (Kind::Bool, Token::Word("true" | "True" | "t")) if !is_negative => Ok(1),
            (Kind::Bool, Token::Word("false" | "False" | "f")) if !is_negative => Ok(0),
            (Kind::Bool, Token::Number(digits)) if !is_negative => {
                Some(integer(digits)?).filter(|value| *value <= 1).ok_or(Malformed)
            }
            (Kind::Int32 | Kind::SInt32 | Kind::SFixed32, _) => signed(32),
            (Kind::Int64 | Kind::SInt64 | Kind::SFixed64, _) => signed(64),
            (Kind::UInt32 | Kind::Fixed32, Token::Number(digits)) if !is_negative => {
                Some(integer(digits)?).filter(|value| *value <= u32::MAX.into()).ok_or(Malformed)
            }
            (Kind::UInt64 | Kind::Fixed64, Token::Number(digits)) if !is_negative => integer(digits),
            _ => Err(Malformed),
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
    parsed.map_err(|_| Malformed)
}

/// Returns a floating-point number, which may end in `f`. Integers are decimal.
fn decimal(digits: &str) -> Result<f64> {
    match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => integer(digits).map(|value| value as f64),
        _ => digits.trim_end_matches(['f', 'F']).parse().map_err(|_| Malformed),
    }
}
