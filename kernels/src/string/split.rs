//! Splits of strings into pieces, returned as a sparse matrix with one row per string.

use super::is_space;
use bytes::Bytes;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Shape, Tensor};

/// Makes the kernel of StringSplit, which splits at each byte of the delimiter; with an empty delimiter, each byte is a
/// piece.
pub(super) fn split(init: &KernelInit<'_>) -> Result<Kernel> {
    let skip_empty = init.attr::<bool>("skip_empty")?;
    Kernel::sync(move |ctx| {
        let delimiters = ctx.input(1)?;
        if delimiters.shape().rank() != 0 {
            device::invalid!("delimiter must be a scalar, got shape: {}", delimiters.shape());
        }
        let delimiters = delimiters.as_strings()?[0].clone();
        pieces(ctx, |s| {
            if s.is_empty() {
                return Vec::new();
            }
            if delimiters.is_empty() {
                return (0..s.len()).map(|i| s.slice(i..i + 1)).collect();
            }
            let parts = s.split(|b| delimiters.contains(b));
            parts.filter(|part| !skip_empty || !part.is_empty()).map(|part| s.slice_ref(part)).collect()
        })
    })
}

/// Makes the kernel of StringSplitV2, which splits at each separator, at most `maxsplit` times; an empty separator
/// splits at white space and strips it from both ends.
pub(super) fn split_v2(init: &KernelInit<'_>) -> Result<Kernel> {
    let most = usize::try_from(init.attr::<i64>("maxsplit")?).unwrap_or(usize::MAX);
    Kernel::sync(move |ctx| {
        let separator = ctx.input(1)?;
        if separator.shape().rank() != 0 {
            device::invalid!("sep must be a scalar, got shape: {}", separator.shape());
        }
        let separator = separator.as_strings()?[0].clone();
        pieces(ctx, |s| match (most, separator.is_empty()) {
            (0, _) => vec![s.clone()],
            (_, true) => words(s, most),
            (_, false) => parts(s, &separator, most),
        })
    })
}

/// Returns the pieces of a string between white space, after at most `most` splits. Like in TensorFlow, the rest after
/// the last split is a piece too, even if it is empty.
fn words(s: &Bytes, most: usize) -> Vec<Bytes> {
    let after_space = |rest: &[u8]| rest.iter().position(|&b| !is_space(b)).unwrap_or(rest.len());
    let mut out = Vec::new();
    let mut rest = &s[after_space(s)..];
    while !rest.is_empty() {
        let end = rest.iter().position(|&b| is_space(b)).unwrap_or(rest.len());
        out.push(s.slice_ref(&rest[..end]));
        rest = &rest[end..];
        rest = &rest[after_space(rest)..];
        if out.len() == most {
            out.push(if rest.is_empty() { Bytes::new() } else { s.slice_ref(rest) });
            break;
        }
    }
    out
}

fn parts(s: &Bytes, separator: &[u8], most: usize) -> Vec<Bytes> {
    let mut out = Vec::new();
    let mut rest = &s[..];
    while out.len() < most {
        let Some(at) = rest.windows(separator.len()).position(|window| window == separator) else { break };
        out.push(s.slice_ref(&rest[..at]));
        rest = &rest[at + separator.len()..];
    }
    out.push(s.slice_ref(rest));
    out
}

fn pieces(ctx: &mut KernelContext<'_>, cut: impl Fn(&Bytes) -> Vec<Bytes>) -> Result<()> {
    let input = ctx.input(0)?;
    if input.shape().rank() != 1 {
        device::invalid!("input must be a vector, got shape: {}", input.shape());
    }
    let (mut indices, mut values, mut widest) = (Vec::new(), Vec::new(), 0);
    let rows = input.num_elements();
    for (row, s) in input.as_strings()?.iter().enumerate() {
        let cut = cut(s);
        widest = widest.max(cut.len());
        indices.extend((0..cut.len()).flat_map(|column| [row as i64, column as i64]));
        values.extend(cut);
    }
    let count = values.len();
    ctx.set_output(0, Tensor::from_slice(&indices, Shape::new(&[count, 2])?)?);
    ctx.set_output(1, Tensor::strings(values, Shape::new(&[count])?)?);
    ctx.set_output(2, Tensor::vector(&[rows as i64, widest as i64])?);
    Ok(())
}
