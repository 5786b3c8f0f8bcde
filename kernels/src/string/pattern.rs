//! Regular expressions. Patterns are in RE2's syntax and are translated to the syntax of the `regex` crate.

use super::is_start;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Bool8, Tensor};
use parking_lot::Mutex;
use regex::bytes::{Captures, Regex, RegexBuilder};
use std::sync::Arc;

/// The memory limit of a compiled pattern, in bytes.
const LARGEST: usize = 8 << 20;

pub(super) fn static_full_match(init: &KernelInit<'_>) -> Result<Kernel> {
    let regex = compiled(&init.attr::<Bytes>("pattern")?, true)?;
    Kernel::sync(move |ctx| matches(ctx, &regex))
}

pub(super) fn full_match(_: &KernelInit<'_>) -> Result<Kernel> {
    let last = LastPattern::default();
    Kernel::sync(move |ctx| {
        let regex = last.get(scalar(ctx.input(1)?, "Pattern")?, true)?;
        matches(ctx, &regex)
    })
}

fn matches(ctx: &mut KernelContext<'_>, regex: &Regex) -> Result<()> {
    let input = ctx.input(0)?;
    let found: Vec<Bool8> = input.as_strings()?.iter().map(|s| regex.is_match(s).into()).collect();
    let out = Tensor::from_slice(&found, input.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn static_replace(init: &KernelInit<'_>) -> Result<Kernel> {
    let regex = compiled(&init.attr::<Bytes>("pattern")?, false)?;
    let rewrite = Rewrite::parse(&init.attr::<Bytes>("rewrite")?);
    let is_global = init.attr::<bool>("replace_global")?;
    Kernel::sync(move |ctx| super::mapped(ctx, |s| Ok(rewrite.apply(&regex, s, is_global))))
}

pub(super) fn replace(init: &KernelInit<'_>) -> Result<Kernel> {
    let is_global = init.attr::<bool>("replace_global")?;
    let last = LastPattern::default();
    Kernel::sync(move |ctx| {
        let regex = last.get(scalar(ctx.input(1)?, "Pattern")?, false)?;
        let rewrite = Rewrite::parse(scalar(ctx.input(2)?, "Rewrite")?);
        super::mapped(ctx, |s| Ok(rewrite.apply(&regex, s, is_global)))
    })
}

fn scalar<'a>(tensor: &'a Tensor, what: &str) -> Result<&'a Bytes> {
    match (tensor.shape().rank(), tensor.as_strings()?) {
        (0, [string]) => Ok(string),
        _ => Err(Error::invalid(format!("{what} must be scalar, but received {}", tensor.shape()))),
    }
}

/// The compiled pattern of the last run, cached because patterns rarely change.
#[derive(Default)]
struct LastPattern(Mutex<Option<(Bytes, Arc<Regex>)>>);

impl LastPattern {
    fn get(&self, pattern: &Bytes, is_whole: bool) -> Result<Arc<Regex>> {
        let mut last = self.0.lock();
        if let Some((known, regex)) = &*last
            && known == pattern
        {
            return Ok(regex.clone());
        }
        let regex = Arc::new(compiled(pattern, is_whole)?);
        *last = Some((pattern.clone(), regex.clone()));
        Ok(regex)
    }
}

fn compiled(pattern: &Bytes, is_whole: bool) -> Result<Regex> {
    let text = String::from_utf8_lossy(pattern);
    let invalid = |why: String| Error::invalid(format!("Invalid pattern: {text}, error: {why}"));
    let pattern = std::str::from_utf8(pattern).map_err(|_| invalid("invalid UTF-8".into()))?;
    let translated = translated(pattern);
    // The pattern is compiled without anchors first, because an unmatched parenthesis in it could pair with a
    // parenthesis around the anchored pattern.
    let build = |p: &str| RegexBuilder::new(p).size_limit(LARGEST).build();
    let last_line = |e: regex::Error| e.to_string().lines().last().unwrap_or_default().trim().to_owned();
    let regex = build(&translated).map_err(|e| invalid(last_line(e)))?;
    if !is_whole {
        return Ok(regex);
    }
    build(&format!(r"\A(?:{translated})\z")).map_err(|e| invalid(last_line(e)))
}

/// Translates a pattern to the syntax of the `regex` crate: Perl classes are ASCII, `\C` is any byte, `\Q` to `\E` is
/// literal, and characters that are special in a class only for `regex` are escaped.
fn translated(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    // `in_class` is true inside a character class; `at_start` is true at the start of a class, where a closing bracket
    // is literal.
    let (mut in_class, mut at_start) = (false, false);
    while let Some(c) = rest.next() {
        let was_start = std::mem::take(&mut at_start);
        match c {
            '\\' => match rest.next() {
                Some('Q') if !in_class => {
                    let mut literal = String::new();
                    while let Some(c) = rest.next() {
                        if c == '\\' && rest.peek() == Some(&'E') {
                            rest.next();
                            break;
                        }
                        literal.push(c);
                    }
                    out.push_str(&regex::escape(&literal));
                }
                Some('C') if !in_class => out.push_str("(?s-u:.)"),
                Some('b') if !in_class => out.push_str(r"(?-u:\b)"),
                Some('B') if !in_class => out.push_str(r"(?-u:\B)"),
                Some(letter @ ('d' | 'D' | 'w' | 'W' | 's' | 'S')) => {
                    let of_ascii = match letter.to_ascii_lowercase() {
                        'd' => "0-9",
                        'w' => "0-9A-Za-z_",
                        _ => r"\t\n\f\r ",
                    };
                    let negation = if letter.is_ascii_uppercase() { "^" } else { "" };
                    if in_class && negation.is_empty() {
                        out.push_str(of_ascii);
                    } else {
                        out.extend(["[", negation, of_ascii, "]"]);
                    }
                }
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            '[' if !in_class => {
                (in_class, at_start) = (true, true);
                out.push('[');
                if rest.peek() == Some(&'^') {
                    rest.next();
                    out.push('^');
                }
            }
            '[' if rest.peek() == Some(&':') => {
                // A named class such as `[:alpha:]` is copied up to its end.
                let named: String = std::iter::once('[').chain(rest.clone()).collect();
                match named
                    .find(":]")
                    .filter(|&end| named[2..end].bytes().all(|b| b.is_ascii_alphabetic() || b == b'^'))
                {
                    Some(end) => {
                        out.push_str(&named[..end + 2]);
                        rest.nth(end);
                    }
                    None => out.push_str(r"\["),
                }
            }
            '[' => out.push_str(r"\["),
            ']' if in_class && was_start => out.push_str(r"\]"),
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            other => out.push(other),
        }
    }
    out
}

/// The replacement of a match: literal parts, and references to the match's groups by number.
struct Rewrite {
    parts: Vec<RewritePart>,
    /// The highest group number in the rewrite.
    groups: usize,
}

enum RewritePart {
    Literal(Vec<u8>),
    Group(usize),
}

impl Rewrite {
    /// Parses a rewrite; the text after an invalid escape is ignored, like in RE2.
    fn parse(text: &[u8]) -> Rewrite {
        let mut rewrite = Rewrite { parts: Vec::new(), groups: 0 };
        let mut literal = Vec::new();
        let mut bytes = text.iter();
        while let Some(&byte) = bytes.next() {
            match (byte, if byte == b'\\' { bytes.next() } else { None }) {
                (b'\\', Some(&digit @ b'0'..=b'9')) => {
                    let group = usize::from(digit - b'0');
                    rewrite.parts.extend([
                        RewritePart::Literal(std::mem::take(&mut literal)),
                        RewritePart::Group(group),
                    ]);
                    rewrite.groups = rewrite.groups.max(group);
                }
                (b'\\', Some(b'\\')) => literal.push(b'\\'),
                (b'\\', _) => break,
                _ => literal.push(byte),
            }
        }
        rewrite.parts.push(RewritePart::Literal(literal));
        rewrite
    }

    /// Returns the string with its first match, or all matches, replaced; unchanged if the rewrite refers to a
    /// missing group.
    fn apply(&self, regex: &Regex, s: &Bytes, is_global: bool) -> Bytes {
        if self.groups >= regex.captures_len() {
            return s.clone();
        }
        let limit = if is_global { usize::MAX } else { 1 };
        let mut out = Vec::with_capacity(s.len());
        let mut end = 0;
        // An empty match inside a UTF-8 character is skipped.
        let is_whole = |captures: &Captures<'_>| {
            captures.get(0).is_some_and(|m| !m.is_empty() || s.get(m.start()).is_none_or(|&b| is_start(b)))
        };
        for captures in regex.captures_iter(s).filter(is_whole).take(limit) {
            let Some(whole) = captures.get(0) else { continue };
            out.extend_from_slice(&s[end..whole.start()]);
            for part in &self.parts {
                match part {
                    RewritePart::Literal(bytes) => out.extend_from_slice(bytes),
                    RewritePart::Group(i) => {
                        out.extend_from_slice(captures.get(*i).map_or(b"", |m| m.as_bytes()))
                    }
                }
            }
            end = whole.end();
        }
        out.extend_from_slice(&s[end..]);
        out.into()
    }
}
