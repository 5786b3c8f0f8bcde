//! `DecodeJSONExample`: `tf.train.Example` messages in the JSON form of protocol buffers. The parser takes what protocol
//! buffers' own parser takes: also names without quotes, single quotes, and commas before closing brackets.

use super::budget::Budget;
use super::escape::unit;
use super::wire::{put_bytes, put_number, put_tag};
use super::{Kind, descriptor::WireType};
use device::{Error, Result};
use rustc_hash::FxHashSet;

/// The deepest nesting of values.
const MAX_DEPTH: usize = 100;

/// The largest integer that may be written as a fraction or with an exponent: larger doubles are not exact.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A JSON value.
enum Json<'a> {
    Null,
    Bool,
    /// A number as it is written.
    Number(&'a str),
    Text(String),
    List(Vec<Json<'a>>),
    Object(Vec<(String, Json<'a>)>),
}

/// A reader of JSON values.
struct Parser<'a, 'b> {
    text: &'a str,
    at: usize,
    /// The limits of the values that are read.
    budget: &'b Budget<'b>,
}

/// The kinds of a feature's values: the names of the field, its number, and the type of the values.
const LISTS: [(&str, &str, u32, Kind); 3] = [
    ("bytesList", "bytes_list", 1, Kind::Bytes),
    ("floatList", "float_list", 2, Kind::Float),
    ("int64List", "int64_list", 3, Kind::Int64),
];

/// Returns the encoded example for a JSON text. The budget pays for the bytes of the example.
///
/// # Errors
/// `InvalidArgument` for other texts; the errors of the budget.
pub(super) fn example(text: &[u8], budget: &Budget<'_>) -> Result<Vec<u8>> {
    budget.check_cancelled()?;
    let out = budget.lend(|| encoded(text, budget))?;
    budget.take(out.len())?;
    Ok(out)
}

fn encoded(text: &[u8], budget: &Budget<'_>) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(text).map_err(|_| invalid("the text is not UTF-8"))?;
    let mut parser = Parser { text, at: 0, budget };
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(invalid("extraneous characters after end of JSON object"));
    }
    let mut out = Vec::new();
    for (name, features) in fields(&value, "Example")? {
        if name != "features" {
            return Err(unknown_field(name, "Example"));
        }
        if !matches!(features, Json::Null) {
            let mut inner = Vec::new();
            write_features(features, &mut inner, budget)?;
            put_message(&mut out, 1, &inner);
        }
    }
    Ok(out)
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("Error while parsing JSON: {what}"))
}

fn unknown_field(name: &str, of: &str) -> Error {
    invalid(format!("{of} has no field {name}"))
}

/// Returns the fields of an object.
fn fields<'a, 'b>(value: &'b Json<'a>, of: &str) -> Result<&'b [(String, Json<'a>)]> {
    match value {
        Json::Object(fields) => Ok(fields),
        _ => Err(invalid(format!("{of} is not an object"))),
    }
}

fn put_message(out: &mut Vec<u8>, number: u32, message: &[u8]) {
    put_tag(out, number, WireType::Delimited);
    put_bytes(out, message);
}

fn write_features(value: &Json<'_>, out: &mut Vec<u8>, budget: &Budget<'_>) -> Result<()> {
    for (name, features) in fields(value, "Features")? {
        if name != "feature" {
            return Err(unknown_field(name, "Features"));
        }
        if matches!(features, Json::Null) {
            continue;
        }
        let mut names = FxHashSet::default();
        for (name, feature) in fields(features, "feature")? {
            budget.step()?;
            if !names.insert(name) {
                return Err(invalid(format!("the feature {name} is there twice")));
            }
            let mut entry = Vec::new();
            put_message(&mut entry, 1, name.as_bytes());
            if !matches!(feature, Json::Null) {
                let mut inner = Vec::new();
                write_feature(feature, &mut inner, budget)?;
                put_message(&mut entry, 2, &inner);
            }
            put_message(out, 1, &entry);
        }
    }
    Ok(())
}

fn write_feature(value: &Json<'_>, out: &mut Vec<u8>, budget: &Budget<'_>) -> Result<()> {
    let mut has_list = false;
    for (name, list) in fields(value, "Feature")? {
        let found = LISTS.iter().find(|(camel, snake, ..)| name == camel || name == snake);
        let Some((.., number, kind)) = found else { return Err(unknown_field(name, "Feature")) };
        if matches!(list, Json::Null) {
            continue;
        }
        if std::mem::replace(&mut has_list, true) {
            return Err(invalid("a feature has several lists"));
        }
        let mut inner = Vec::new();
        for (name, values) in fields(list, "a list")? {
            if name != "value" {
                return Err(unknown_field(name, "a list"));
            }
            if !matches!(values, Json::Null) {
                write_values(values, *kind, &mut inner, budget)?;
            }
        }
        put_message(out, *number, &inner);
    }
    Ok(())
}

/// Writes the values of a list; lists in lists are joined, and a value without a list is a list of one value.
fn write_values(value: &Json<'_>, kind: Kind, out: &mut Vec<u8>, budget: &Budget<'_>) -> Result<()> {
    budget.step()?;
    if let Json::List(values) = value {
        return values.iter().try_for_each(|value| write_values(value, kind, out, budget));
    }
    let bits = match (kind, value) {
        (Kind::Bytes, Json::Null) => {
            put_message(out, 1, &[]);
            return Ok(());
        }
        (Kind::Bytes, Json::Text(text)) => {
            let bytes = of_base64(text).ok_or_else(|| invalid("invalid base64"))?;
            put_message(out, 1, &bytes);
            return Ok(());
        }
        (_, Json::Null) => Some(0),
        (Kind::Float, Json::Number(text)) => float(text),
        (Kind::Float, Json::Text(text)) => float(text.trim_matches(|c: char| c.is_ascii_whitespace())),
        (Kind::Int64, Json::Number(text)) => integer(text),
        (Kind::Int64, Json::Text(text)) => integer(text),
        _ => None,
    };
    let bits = bits.ok_or_else(|| invalid(format!("invalid value of type {}", kind.name())))?;
    put_tag(out, 1, kind.wire_type());
    put_number(out, kind, bits);
    Ok(())
}

/// Returns the double that a text stands for: a decimal or hexadecimal number, an infinity, or NaN.
fn double(text: &str) -> Option<f64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()? as f64
        }
        Some(_) => return None,
        None if digits.starts_with(['+', '-']) => return None,
        None => digits.parse::<f64>().ok()?,
    };
    Some(if is_negative { -value } else { value })
}

fn float(text: &str) -> Option<u64> {
    let value = double(text)?;
    let is_finite = !text.trim_start_matches(['+', '-']).starts_with(['i', 'I', 'n', 'N']);
    if is_finite && value.abs() > f64::from(f32::MAX) {
        // 3.4028235e38 is the shortest form of the largest float, though it is a little larger.
        return Some(value)
            .filter(|value| value.abs() <= 3.402_823_5e38)
            .map(|value| f32::to_bits(value as f32).into());
    }
    Some((value as f32).to_bits().into())
}

fn integer(text: &str) -> Option<u64> {
    if let Ok(value) = text.parse::<i64>() {
        return Some(value as u64);
    }
    if text.starts_with(|c: char| c.is_ascii_whitespace())
        || text.ends_with(|c: char| c.is_ascii_whitespace())
    {
        return None;
    }
    let value = double(text)?;
    let is_exact = value.fract() == 0.0 && value.abs() <= MAX_EXACT;
    is_exact.then_some(value as i64 as u64)
}

/// Returns the bytes of a base64 text of either alphabet, with or without padding.
fn of_base64(text: &str) -> Option<Vec<u8>> {
    let bare = text.trim_end_matches('=');
    let padding = text.len() - bare.len();
    if padding > 0 && (!text.len().is_multiple_of(4) || padding > 2) || bare.len() % 4 == 1 {
        return None;
    }
    let (mut out, mut bits, mut count) = (Vec::with_capacity(bare.len() / 4 * 3 + 2), 0u32, 0);
    for byte in bare.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(digit), count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

impl<'a> Parser<'a, '_> {
    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn skip_space(&mut self) {
        let space = self.rest().iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        self.at += space.count();
    }

    /// Returns the next byte that is not a space.
    fn peek(&mut self) -> Result<u8> {
        self.skip_space();
        self.rest().first().copied().ok_or_else(|| invalid("unexpected EOF"))
    }

    fn accept(&mut self, byte: u8) -> Result<bool> {
        let is_next = self.peek()? == byte;
        if is_next {
            self.at += 1;
        }
        Ok(is_next)
    }

    fn value(&mut self, depth: usize) -> Result<Json<'a>> {
        // Lists grow to twice the number of their values.
        self.budget.take(2 * size_of::<(String, Json<'_>)>())?;
        match self.peek()? {
            b'{' | b'[' if depth >= MAX_DEPTH => Err(invalid("JSON content was too deeply nested")),
            b'{' => {
                let mut fields = Vec::new();
                self.elements(b'}', |parser| {
                    let name = parser.name()?;
                    if !parser.accept(b':')? {
                        return Err(invalid("expected ':'"));
                    }
                    fields.push((name, parser.value(depth + 1)?));
                    Ok(())
                })?;
                Ok(Json::Object(fields))
            }
            b'[' => {
                let mut values = Vec::new();
                self.elements(b']', |parser| {
                    values.push(parser.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Json::List(values))
            }
            b'"' | b'\'' => self.quoted().map(Json::Text),
            b'-' | b'0'..=b'9' => self.number().map(Json::Number),
            _ => match self.word() {
                "null" => Ok(Json::Null),
                "true" | "false" => Ok(Json::Bool),
                _ => Err(invalid("invalid value")),
            },
        }
    }

    /// Reads elements between commas, from an opening bracket to the closing one; the last may have a comma.
    fn elements(&mut self, close: u8, mut read: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.at += 1;
        while !self.accept(close)? {
            read(self)?;
            if !self.accept(b',')? && self.peek()? != close {
                return Err(invalid("expected ','"));
            }
        }
        Ok(())
    }

    /// Reads the name of a field, with or without quotes.
    fn name(&mut self) -> Result<String> {
        match self.peek()? {
            b'"' | b'\'' => self.quoted(),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => match self.word() {
                "null" | "true" | "false" => Err(invalid("expected a name")),
                word => Ok(word.to_owned()),
            },
            _ => Err(invalid("expected a name")),
        }
    }

    fn word(&mut self) -> &'a str {
        let start = self.at;
        let word = self.rest().iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
        self.at += word.count();
        &self.text[start..self.at]
    }

    /// Reads a number in JSON's form.
    fn number(&mut self) -> Result<&'a str> {
        let start = self.at;
        let digits = |parser: &mut Self| {
            let count = parser.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
            parser.at += count;
            if count == 0 { Err(invalid("invalid number")) } else { Ok(()) }
        };
        if self.rest().first() == Some(&b'-') {
            self.at += 1;
        }
        let whole = self.at;
        digits(self)?;
        if self.at - whole > 1 && self.text.as_bytes()[whole] == b'0' {
            return Err(invalid("number cannot have extraneous leading zero"));
        }
        if self.rest().first() == Some(&b'.') {
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.rest().first(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.rest().first(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            digits(self)?;
        }
        Ok(&self.text[start..self.at])
    }

    fn quoted(&mut self) -> Result<String> {
        let quote = self.rest()[0];
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let byte = *self.rest().first().ok_or_else(|| invalid("unexpected EOF"))?;
            self.at += 1;
            if byte == quote {
                break;
            }
            if byte != b'\\' {
                out.push(byte);
                continue;
            }
            let escape = *self.rest().first().ok_or_else(|| invalid("unexpected EOF"))?;
            self.at += 1;
            match escape {
                b'"' | b'\'' | b'\\' | b'/' => out.push(escape),
                b'b' => out.push(8),
                b'f' => out.push(12),
                b'n' => out.push(b'\n'),
                b'r' => out.push(b'\r'),
                b't' => out.push(b'\t'),
                b'u' => out.extend_from_slice(self.character()?.encode_utf8(&mut [0; 4]).as_bytes()),
                _ => return Err(invalid("invalid escape char")),
            }
        }
        String::from_utf8(out).map_err(|_| invalid("the text is not UTF-8"))
    }

    /// Reads the digits of an escaped character, which is one UTF-16 unit or a pair of surrogates.
    fn character(&mut self) -> Result<char> {
        let wrong = || invalid("invalid Unicode escape");
        let mut rest = self.rest();
        let mut code = unit(&mut rest).ok_or_else(wrong)?;
        if (0xd800..0xdc00).contains(&code) {
            rest = rest.strip_prefix(b"\\u").ok_or_else(wrong)?;
            let low = unit(&mut rest).filter(|low| (0xdc00..0xe000).contains(low)).ok_or_else(wrong)?;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        self.at = self.text.len() - rest.len();
        char::from_u32(code).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::cancel::Cancellation;
    use graph::Code;

    #[test]
    fn examples_of_texts_that_share_their_bytes_are_bounded_by_the_memory_limit() {
        let cancellation = Cancellation::new();
        let value = "AAAA".repeat(1_000);
        let text = format!(r#"{{"features":{{"feature":{{"a":{{"bytesList":{{"value":["{value}"]}}}}}}}}}}"#);
        let budget = Budget::new(100_000, &cancellation);
        let made = (0..100).map_while(|_| example(text.as_bytes(), &budget).ok()).count();
        assert!((20..34).contains(&made), "{made}");
    }

    #[test]
    fn a_cancelled_step_ends_the_reading_of_a_text() {
        let cancellation = Cancellation::new();
        cancellation.cancel(Error::new(Code::Cancelled, "the client left"));
        let budget = Budget::new(u64::MAX, &cancellation);
        let text = format!("[{}]", "1,".repeat(10_000));
        assert_eq!(encoded(text.as_bytes(), &budget).expect_err("an error").code(), Code::Cancelled);
    }
}
