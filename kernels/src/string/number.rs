//! Parsing of numbers, and formatting of numbers like C's printf.

use super::is_space;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Bool8, DType, Tensor};
use std::str::FromStr;

pub(super) fn parse(init: &KernelInit<'_>) -> Result<Kernel> {
    match init.output_type(0) {
        DType::Float => parsed(|s| parse_float(s).map(|v| narrowed(v, s))),
        DType::Double => parsed(parse_float),
        DType::Int32 => parsed(parse_integer::<i32>),
        DType::Int64 => parsed(parse_integer::<i64>),
        DType::UInt32 => parsed(parse_unsigned::<u32>),
        DType::UInt64 => parsed(parse_unsigned::<u64>),
        other => Err(Error::unimplemented(format!("StringToNumber to {other}"))),
    }
}

fn parsed<T: graph::Element>(convert: fn(&str) -> Option<T>) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let number = |s: &Bytes| {
            std::str::from_utf8(s).ok().and_then(convert).ok_or_else(|| {
                let text = String::from_utf8_lossy(s);
                Error::invalid(format!("StringToNumberOp could not correctly convert string: {text}"))
            })
        };
        let numbers = input.as_strings()?.iter().map(number).collect::<Result<Vec<_>>>()?;
        let out = Tensor::from_slice(&numbers, input.shape().clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn trimmed(s: &str) -> &str {
    s.trim_matches(|c: char| u8::try_from(c).is_ok_and(is_space))
}

/// Parses a decimal or hexadecimal number, infinity or NaN, with optional surrounding white space.
pub(crate) fn parse_float(s: &str) -> Option<f64> {
    let s = trimmed(s);
    let unsigned = s.strip_prefix(['+', '-']).unwrap_or(s);
    if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        let value = hexadecimal(digits)?;
        return Some(if s.starts_with('-') { -value } else { value });
    }
    s.parse().ok()
}

/// Returns the number `value` that was parsed from `s` as `f32`; decimal text is parsed again as `f32`, so that it is
/// rounded only once.
fn narrowed(value: f64, s: &str) -> f32 {
    trimmed(s).parse().unwrap_or(value as f32)
}

fn hexadecimal(digits: &str) -> Option<f64> {
    let (mantissa, exponent) = match digits.split_once(['p', 'P']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > 300 {
        return None;
    }
    let value = whole
        .chars()
        .chain(fraction.chars())
        .try_fold(0f64, |value, c| Some(value * 16.0 + f64::from(c.to_digit(16)?)))?;
    let exponent = exponent.saturating_sub(4 * fraction.len() as i32);
    // The power of two is applied in two steps, because it could overflow by itself.
    let half = exponent / 2;
    Some(value * 2f64.powi(half) * 2f64.powi(exponent - half))
}

fn parse_integer<T: FromStr>(s: &str) -> Option<T> {
    trimmed(s).parse().ok()
}

/// Parses an unsigned number; a minus is refused, even before a zero.
fn parse_unsigned<T: FromStr>(s: &str) -> Option<T> {
    let s = trimmed(s);
    if s.starts_with('-') { None } else { s.parse().ok() }
}

/// The format of numbers and strings in AsString.
#[derive(Clone, Copy)]
struct Format {
    notation: Notation,
    /// The precision of a number, or the maximum number of bytes of a string; `None` if the attribute is not set.
    precision: Option<usize>,
    width: usize,
    fill: Fill,
}

#[derive(Clone, Copy)]
enum Notation {
    Fixed,
    Scientific,
    Shortest,
}

/// The flag of a C format: the padding of a number to the width, or the character before a number that is not negative.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// Blanks before the number.
    None,
    /// Zeros after the sign.
    Zeros,
    /// Blanks after the number.
    Left,
    /// A plus sign if the number is not negative.
    Plus,
    /// A blank if the number is not negative.
    Blank,
}

pub(super) fn format(init: &KernelInit<'_>) -> Result<Kernel> {
    /// The largest allowed width and precision.
    const WIDEST: i64 = 1 << 15;
    let dtype = init.input_type(0);
    let (scientific, shortest) = (init.attr::<bool>("scientific")?, init.attr::<bool>("shortest")?);
    let (precision, width) = (init.attr::<i64>("precision")?, init.attr::<i64>("width")?);
    let is_real = dtype.is_floating() || dtype.is_complex();
    if !is_real && dtype != DType::String && (scientific || shortest) {
        device::invalid!("scientific and shortest format not supported for datatype {dtype}");
    }
    if !is_real && dtype != DType::String && precision >= 0 {
        device::invalid!("precision not supported for datatype {dtype}");
    }
    if scientific && shortest {
        device::invalid!("Cannot select both scientific and shortest notation");
    }
    if precision > WIDEST || width > WIDEST {
        device::invalid!("precision {precision} and width {width} must be at most {WIDEST}");
    }
    let fill = init.attr::<String>("fill")?;
    let fill = match &*fill {
        "" => Fill::None,
        "0" => Fill::Zeros,
        "-" => Fill::Left,
        "+" => Fill::Plus,
        " " => Fill::Blank,
        longer if longer.len() > 1 => device::invalid!("Fill string must be one or fewer characters"),
        other => device::invalid!("Fill argument not supported: \"{other}\""),
    };
    let notation = match (scientific, shortest) {
        (true, _) => Notation::Scientific,
        (_, true) => Notation::Shortest,
        _ => Notation::Fixed,
    };
    let precision = usize::try_from(precision).ok();
    let format = Format { notation, precision, width: usize::try_from(width).unwrap_or(0), fill };
    Kernel::sync(move |ctx| formatted(ctx, format))
}

fn formatted(ctx: &mut KernelContext<'_>, format: Format) -> Result<()> {
    let input = ctx.input(0)?;
    macro_rules! each {
        ($t:ty, $write:expr) => {
            input.values::<$t>()?.iter().map($write).collect()
        };
    }
    let strings: Vec<Bytes> = match input.dtype() {
        DType::Float => each!(f32, |v| format.real(f64::from(*v)).into()),
        DType::Double => each!(f64, |v| format.real(*v).into()),
        DType::Half => each!(half::f16, |v| format.real(f64::from(*v)).into()),
        DType::BFloat16 => each!(half::bf16, |v| format.real(f64::from(*v)).into()),
        DType::Int8 => each!(i8, |v| format.integer(*v < 0, v.unsigned_abs().into()).into()),
        DType::Int16 => each!(i16, |v| format.integer(*v < 0, v.unsigned_abs().into()).into()),
        DType::Int32 => each!(i32, |v| format.integer(*v < 0, v.unsigned_abs().into()).into()),
        DType::Int64 => each!(i64, |v| format.integer(*v < 0, v.unsigned_abs()).into()),
        DType::UInt8 => each!(u8, |v| format.unsigned((*v).into()).into()),
        DType::UInt16 => each!(u16, |v| format.unsigned((*v).into()).into()),
        DType::UInt32 => each!(u32, |v| format.unsigned((*v).into()).into()),
        DType::UInt64 => each!(u64, |v| format.unsigned(*v).into()),
        DType::Bool => each!(Bool8, |v| Bytes::from_static(if v.get() { b"true" } else { b"false" })),
        DType::Complex64 => {
            let (parts, _) = input.bytes()?.as_chunks::<4>();
            let parts: Vec<f64> = parts.iter().map(|p| f32::from_le_bytes(*p).into()).collect();
            parts.chunks_exact(2).map(|p| format.complex(p[0], p[1]).into()).collect()
        }
        DType::Complex128 => {
            let (parts, _) = input.bytes()?.as_chunks::<8>();
            let parts: Vec<f64> = parts.iter().map(|p| f64::from_le_bytes(*p)).collect();
            parts.chunks_exact(2).map(|p| format.complex(p[0], p[1]).into()).collect()
        }
        DType::String => input.as_strings()?.iter().map(|s| format.string(s)).collect(),
        other => return Err(Error::unimplemented(format!("AsString of {other}"))),
    };
    let out = Tensor::strings(strings, input.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

impl Format {
    fn integer(&self, is_negative: bool, magnitude: u64) -> String {
        self.filled(is_negative, &magnitude.to_string(), true)
    }

    /// Formats an unsigned number, for which the flags of the sign have no effect.
    fn unsigned(&self, value: u64) -> String {
        let fill = if matches!(self.fill, Fill::Plus | Fill::Blank) { Fill::None } else { self.fill };
        Format { fill, ..*self }.integer(false, value)
    }

    fn real(&self, value: f64) -> String {
        let (is_negative, precision) = (value.is_sign_negative(), self.precision.unwrap_or(6));
        let magnitude = value.abs();
        if !value.is_finite() {
            return self.filled(is_negative, if value.is_nan() { "nan" } else { "inf" }, false);
        }
        let digits = match self.notation {
            Notation::Fixed => format!("{magnitude:.precision$}"),
            Notation::Scientific => scientific(magnitude, precision),
            Notation::Shortest => shortest(magnitude, precision),
        };
        self.filled(is_negative, &digits, true)
    }

    fn complex(&self, real: f64, imaginary: f64) -> String {
        format!("({},{})", self.real(real), self.real(imaginary))
    }

    /// Truncates the string to the precision if a width or fill is given, and pads it to the width.
    fn string(&self, s: &Bytes) -> Bytes {
        let is_cut = self.width > 0 || self.fill != Fill::None;
        let kept = self.precision.filter(|_| is_cut).map_or(s.len(), |most| most.min(s.len()));
        let s = &s.slice(..kept);
        let Some(missing) = self.width.checked_sub(s.len()).filter(|&n| n > 0) else { return s.clone() };
        let blanks = vec![b' '; missing];
        if self.fill == Fill::Left {
            [s, &blanks[..]].concat().into()
        } else {
            [&blanks[..], s].concat().into()
        }
    }

    fn filled(&self, is_negative: bool, digits: &str, may_have_zeros: bool) -> String {
        let sign = match (is_negative, self.fill) {
            (true, _) => "-",
            (false, Fill::Plus) => "+",
            (false, Fill::Blank) => " ",
            _ => "",
        };
        let missing = self.width.saturating_sub(sign.len() + digits.len());
        match self.fill {
            Fill::Zeros if may_have_zeros => format!("{sign}{}{digits}", "0".repeat(missing)),
            Fill::Left => format!("{sign}{digits}{}", " ".repeat(missing)),
            _ => format!("{}{sign}{digits}", " ".repeat(missing)),
        }
    }
}

/// Formats like `%e`: the exponent has a sign and at least two digits.
fn scientific(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

/// Formats like `%g`: `precision` significant digits without trailing zeros, in decimal or exponent notation.
fn shortest(magnitude: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let text = scientific(magnitude, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent_number: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if exponent_number < -4 || exponent_number >= precision as i32 {
        return format!("{}e{exponent}", without_zeros(digits));
    }
    let decimals = (precision as i32 - 1 - exponent_number).max(0) as usize;
    without_zeros(&format!("{magnitude:.decimals$}"))
}
