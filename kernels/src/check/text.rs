//! Text of tensors in the two formats that TensorFlow uses: for assertions and `Print`, and for `StringFormat`.

use crate::objects::escape::escape;
use graph::{Bool8, DType, Tensor};
use half::{bf16, f16};

/// Formats the first `limit` elements (all if negative) in nested brackets, without the outermost: `1 2 3`, `[1
/// 2][3 4]`, `[1 2][3...]...`.
pub(super) fn summary(value: &Tensor, limit: i64) -> String {
    let total = value.num_elements();
    let limit = usize::try_from(limit).map_or(total, |l| l.min(total));
    let mut out = String::new();
    match value.shape().dims() {
        [] => {
            if limit > 0 {
                out.push_str(&element(value, 0));
            }
        }
        dims => {
            let mut next = 0;
            summarize_axis(value, dims, 0, limit, &mut next, &mut out);
        }
    }
    if total > limit {
        out.push_str("...");
    }
    out
}

/// Formats axis `axis`; `next` is the index of the next element. The recursion is as deep as the tensor's rank, which
/// is bounded.
fn summarize_axis(
    value: &Tensor,
    dims: &[usize],
    axis: usize,
    limit: usize,
    next: &mut usize,
    out: &mut String,
) {
    let last = axis + 1 == dims.len();
    for i in 0..dims[axis] {
        if *next >= limit {
            if last && axis > 0 {
                out.push_str("...");
            }
            return;
        }
        if last {
            if i > 0 {
                out.push(' ');
            }
            out.push_str(&element(value, *next));
            *next += 1;
        } else {
            out.push('[');
            summarize_axis(value, dims, axis + 1, limit, next, out);
            out.push(']');
        }
    }
}

/// Formats the first and last `ends` elements of each axis (all if negative) with brackets and line breaks: `[1 2 ... 8
/// 9]`. Strings are quoted; bytes beyond ASCII are copied unchanged.
pub(super) fn layout(value: &Tensor, ends: i64) -> Vec<u8> {
    let total = value.num_elements();
    let ends = usize::try_from(ends).map_or(total, |ends| ends.min(total));
    let mut out = Vec::new();
    match (ends, value.dtype(), value.shape().rank()) {
        (0, DType::Bool, _) => {}
        (0, _, 0) => out.extend_from_slice(b"..."),
        _ => layout_axis(value, 0, 0, ends, &mut out),
    }
    out
}

fn layout_axis(value: &Tensor, axis: usize, start: usize, ends: usize, out: &mut Vec<u8>) {
    let dims = value.shape().dims();
    if axis == dims.len() {
        match value.as_strings().ok().and_then(|v| v.get(start)) {
            Some(s) => quote(s, out),
            None => out.extend_from_slice(element(value, start).as_bytes()),
        }
        return;
    }
    let (count, stride) = (dims[axis], value.shape().strides()[axis]);
    let separate = |out: &mut Vec<u8>| {
        if axis + 1 == dims.len() {
            out.push(b' ');
        } else {
            out.extend(std::iter::repeat_n(b'\n', dims.len() - axis - 1));
            out.extend(std::iter::repeat_n(b' ', axis + 1));
        }
    };
    out.push(b'[');
    let tail = ends.max(count.saturating_sub(ends));
    for i in 0..ends.min(count) {
        if i > 0 {
            separate(out);
        }
        layout_axis(value, axis + 1, start + i * stride, ends, out);
    }
    if count > ends.saturating_mul(2) {
        separate(out);
        out.extend_from_slice(b"...");
    }
    for i in tail..count {
        separate(out);
        layout_axis(value, axis + 1, start + i * stride, ends, out);
    }
    out.push(b']');
}

/// Appends a quoted string. ASCII characters are escaped where needed; bytes beyond ASCII are copied.
fn quote(s: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for part in s.chunk_by(|a, b| a.is_ascii() == b.is_ascii()) {
        match part.is_ascii() {
            true => out.extend_from_slice(escape(part).as_bytes()),
            false => out.extend_from_slice(part),
        }
    }
    out.push(b'"');
}

/// Formats element `i` of a tensor: a number, 0 or 1 for a boolean, or an escaped string.
fn element(value: &Tensor, i: usize) -> String {
    macro_rules! at {
        ($t:ty) => {
            value.values::<$t>().ok().and_then(|v| v.get(i)).copied()
        };
    }
    let text = match value.dtype() {
        DType::Float => at!(f32).map(float),
        DType::Half => at!(f16).map(|v| float(v.to_f32())),
        DType::BFloat16 => at!(bf16).map(|v| float(v.to_f32())),
        DType::Double => at!(f64).map(double),
        DType::Bool => at!(Bool8).map(|v| if v.get() { "1" } else { "0" }.to_owned()),
        DType::String => value.as_strings().ok().and_then(|v| v.get(i)).map(|v| escape(v)),
        _ => Some(value.element_text(i)),
    };
    text.unwrap_or_else(|| "?".to_owned())
}

/// Formats a number like C's `%g`, with the smaller of two precisions from whose text the same number can be parsed.
fn float(value: f32) -> String {
    let short = general(value.into(), 6);
    if short.parse() == Ok(value) { short } else { general(value.into(), 9) }
}

fn double(value: f64) -> String {
    let short = general(value, 15);
    if short.parse() == Ok(value) { short } else { general(value, 17) }
}

/// Formats a number like C's `%.{precision}g`.
fn general(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let scientific = format!("{value:.*e}", precision - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let strip = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", strip(mantissa), exponent.unsigned_abs());
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    strip(&format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Result;

    #[test]
    fn numbers_are_formatted_with_the_shortest_exact_precision() {
        let cases: [(f32, &str); 8] = [
            (1.0, "1"),
            (2.5, "2.5"),
            (3e10, "3e+10"),
            (1e-7, "1e-07"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.333333343"),
            (123456.0, "123456"),
            (f32::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
        assert_eq!(double(0.1), "0.1");
        assert_eq!(float(f16::from_f32(1.0 / 3.0).to_f32()), "0.333251953");
    }

    #[test]
    fn summary_ends_at_the_limit() -> Result<()> {
        let m = Tensor::try_from([[1i32, 2], [3, 4]])?;
        let cube = Tensor::vector(&[0i64, 1, 2, 3, 4, 5, 6, 7])?.reshaped([2, 2, 2].try_into()?)?;
        for (value, limit, text) in [
            (&m, 3, "[1 2][3...]..."),
            (&m, 2, "[1 2]..."),
            (&m, 10, "[1 2][3 4]"),
            (&m, 0, "..."),
            (&cube, 3, "[[0 1][2...]]..."),
            (&cube, 2, "[[0 1]]..."),
            (&cube, -1, "[[0 1][2 3]][[4 5][6 7]]"),
            (&Tensor::vector::<f32>(&[])?, 3, ""),
            (&Tensor::from("x = y\n'q'"), 3, "x = y\\n\\'q\\'"),
            (&Tensor::from("x"), 0, "..."),
            (&Tensor::bools(&[true, false], [2].try_into()?)?, 3, "1 0"),
        ] {
            assert_eq!(summary(value, limit), text);
        }
        Ok(())
    }

    #[test]
    fn layout_abbreviates_long_axes() -> Result<()> {
        let m = Tensor::vector(&(0..100).collect::<Vec<i32>>())?.reshaped([10, 10].try_into()?)?;
        let cube = Tensor::vector(&[0i32, 1, 2, 3, 4, 5, 6, 7])?.reshaped([2, 2, 2].try_into()?)?;
        let rows = "[[0 1 ... 8 9]\n [10 11 ... 18 19]\n ...\n [80 81 ... 88 89]\n [90 91 ... 98 99]]";
        let layout = |value: &Tensor, ends| String::from_utf8_lossy(&layout(value, ends)).into_owned();
        assert_eq!(layout(&m, 2), rows);
        assert_eq!(layout(&cube, 2), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
        assert_eq!(layout(&Tensor::from(3.5f32), -1), "3.5");
        let words = Tensor::strings(vec!["a".into(), "b".into()], [2].try_into()?)?;
        assert_eq!(layout(&words, 3), "[\"a\" \"b\"]");
        assert_eq!(layout(&Tensor::from("\u{e9}\n\u{1}"), 3), "\"\u{e9}\\n\\001\"");
        assert_eq!(layout(&words, 0), "[ ...]");
        assert_eq!(layout(&Tensor::from(2), 0), "...");
        assert_eq!(layout(&Tensor::from(true), 0), "");
        let nothing = Tensor::vector::<f32>(&[])?;
        assert_eq!(layout(&nothing.clone().reshaped([0, 2].try_into()?)?, -1), "[]");
        assert_eq!(layout(&nothing.reshaped([2, 0].try_into()?)?, -1), "[\n ...]");
        Ok(())
    }
}
