//! `anabranch ckpt diff`: compares two checkpoints.

use super::{Fallible, names, open, shown};
use crate::command::output;
use graph::{DType, Tensor};
use std::collections::BTreeSet;
use std::path::Path;

/// Prints the differences of two checkpoints. Returns whether they are equal.
pub(super) fn run(first: &Path, second: &Path) -> Fallible<bool> {
    let (mut a, mut b) = (open(first)?, open(second)?);
    let all: BTreeSet<Vec<u8>> = names(&a).into_iter().chain(names(&b)).collect();
    let (mut text, mut differing) = (String::new(), 0);
    for name in &all {
        let difference = match (a.lookup(name).is_ok(), b.lookup(name).is_ok()) {
            (true, false) => Some(format!("only in {}", first.display())),
            (false, _) => Some(format!("only in {}", second.display())),
            (true, true) => compare(&a.read(name)?, &b.read(name)?)?,
        };
        if let Some(difference) = difference {
            differing += 1;
            text += &format!("{}: {difference}\n", shown(name));
        }
    }
    text += &format!("{differing} of {} tensors differ\n", all.len());
    output::print(&text)?;
    Ok(differing == 0)
}

/// Describes the difference of two tensors, if they differ.
fn compare(a: &Tensor, b: &Tensor) -> Fallible<Option<String>> {
    if (a.dtype(), a.shape()) != (b.dtype(), b.shape()) {
        return Ok(Some(format!("{} {} and {} {}", a.dtype(), a.shape(), b.dtype(), b.shape())));
    }
    let same = match a.dtype() {
        DType::String => a.as_strings()? == b.as_strings()?,
        _ => a.bytes()? == b.bytes()?,
    };
    if same {
        return Ok(None);
    }
    let largest = match a.dtype() {
        DType::Float => largest(a.values::<f32>()?, b.values::<f32>()?),
        DType::Double => largest(a.values::<f64>()?, b.values::<f64>()?),
        _ => None,
    };
    Ok(Some(largest.map_or("values differ".to_owned(), |by| format!("values differ by {by:e} at most"))))
}

/// Returns the largest absolute difference of two corresponding elements, or NaN if a difference is NaN.
fn largest<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> Option<f64> {
    let distance = |(a, b): (&T, &T)| ((*a).into() - (*b).into()).abs();
    a.iter().zip(b).map(distance).reduce(|most, d| if d > most || d.is_nan() { d } else { most })
}
