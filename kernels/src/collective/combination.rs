//! Element-wise combination of the tensors of several members of a group.

use crate::numeric::non_temporal::{self, prefetch, should_bypass_caches, store_fence};
use crate::numeric::scalar::{Arithmetic, Number, Semiring as _};
use crate::numeric::widen::Lane;
use device::collective::{Merge, Reduction};
use device::{Error, Result};
use graph::{DType, Element};
use half::{bf16, f16};

/// The number of elements that are combined at a time; it is small, so that the prefetches of the next elements are
/// spread evenly.
const STRIP: usize = 128;

/// Combines the elements of `terms`, one slice for each member in the order of the ranks, into `out`. A mean is divided
/// by `members`. 16-bit floats are combined in `f32` and rounded once.
///
/// # Errors
/// `Internal` if the slices' lengths differ; `Unimplemented` for a dtype without reductions.
pub fn combine(
    dtype: DType,
    reduction: Reduction,
    members: usize,
    terms: &[&[u8]],
    out: &mut [u8],
) -> Result<()> {
    match dtype {
        DType::Float => fold::<f32>(reduction, members, terms, out),
        DType::Double => fold::<f64>(reduction, members, terms, out),
        DType::Half => fold::<f16>(reduction, members, terms, out),
        DType::BFloat16 => fold::<bf16>(reduction, members, terms, out),
        DType::Int32 => fold::<i32>(reduction, members, terms, out),
        DType::Int64 => fold::<i64>(reduction, members, terms, out),
        other => Err(Error::unimplemented(format!("{other} is not reduced"))),
    }
}

fn fold<T: Lane>(reduction: Reduction, members: usize, terms: &[&[u8]], out: &mut [u8]) -> Result<()>
where
    T::Wide: Number,
{
    if terms.is_empty() || terms.iter().any(|term| term.len() != out.len()) {
        return Err(Error::internal("the terms of a reduction have different lengths"));
    }
    match reduction.merge {
        Merge::Add => fold_with::<T>(terms, out, T::Wide::plus, reduction.is_mean.then_some(members)),
        Merge::Mul => fold_with::<T>(terms, out, T::Wide::times, reduction.is_mean.then_some(members)),
        Merge::Min => fold_with::<T>(terms, out, T::Wide::minimum, reduction.is_mean.then_some(members)),
        Merge::Max => fold_with::<T>(terms, out, T::Wide::maximum, reduction.is_mean.then_some(members)),
    }
}

fn fold_with<T: Lane>(
    terms: &[&[u8]],
    out: &mut [u8],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
    divisor: Option<usize>,
) -> Result<()>
where
    T::Wide: Number,
{
    let out = elements_mut::<T>(out)?;
    let bypasses_caches = should_bypass_caches::<T>(out.len());
    let mut sums = [T::Wide::ZERO; STRIP];
    let mut next = [T::Wide::ZERO; STRIP];
    let mut narrow: [T; STRIP] = bytemuck::Zeroable::zeroed();
    let terms = terms.iter().map(|term| elements::<T>(term)).collect::<Result<Vec<&[T]>>>()?;
    for (strip, out) in out.chunks_mut(STRIP).enumerate() {
        let start = strip * STRIP;
        let end = start + out.len();
        for term in &terms {
            prefetch(&term[end..term.len().min(end + STRIP)]);
        }
        let sums = &mut sums[..out.len()];
        fold_strip(terms.iter().map(|term| &term[start..end]), sums, &mut next, combine);
        if let Some(divisor) = divisor {
            sums.iter_mut().for_each(|sum| *sum = sum.over_count(divisor));
        }
        match bypasses_caches {
            false => T::narrow(sums, out),
            true => {
                T::narrow(sums, &mut narrow[..out.len()]);
                non_temporal::copy(&narrow[..out.len()], out);
            }
        }
    }
    if bypasses_caches {
        store_fence();
    }
    Ok(())
}

/// Combines the elements of all terms into `sums`. Elements that are computed in a wider type are first widened into
/// `next`.
fn fold_strip<'a, T: Lane>(
    mut terms: impl ExactSizeIterator<Item = &'a [T]>,
    sums: &mut [T::Wide],
    next: &mut [T::Wide],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    match (T::NATIVE, terms.next(), terms.len()) {
        (_, None, _) => {}
        // The first two terms are combined without a copy of the first.
        (true, Some(first), 1..) => {
            let second = terms.next().unwrap_or_default();
            for ((sum, first), second) in sums.iter_mut().zip(first).zip(second) {
                *sum = combine(first.to_wide(), second.to_wide());
            }
        }
        (_, Some(first), _) => T::widen(first, sums),
    }
    for term in terms {
        if T::NATIVE {
            sums.iter_mut().zip(term).for_each(|(sum, term)| *sum = combine(*sum, term.to_wide()));
            continue;
        }
        let next = &mut next[..term.len()];
        T::widen(term, next);
        sums.iter_mut().zip(next).for_each(|(sum, next)| *sum = combine(*sum, *next));
    }
}

fn elements<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).map_err(|e| Error::internal(format!("elements of a collective: {e}")))
}

fn elements_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|e| Error::internal(format!("elements of a collective: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::cast_slice;

    /// Returns the terms of three members, with `count` elements each; most of the tested counts end with an incomplete
    /// strip.
    fn terms(count: usize) -> Vec<Vec<f32>> {
        (0..3).map(|member| (0..count).map(|i| ((i * 7 + member * 3) % 61) as f32 - 20.0).collect()).collect()
    }

    fn combined<T: Element>(dtype: DType, reduction: Reduction, terms: &[Vec<T>]) -> Result<Vec<T>> {
        let bytes: Vec<&[u8]> = terms.iter().map(|term| cast_slice(term)).collect();
        let mut out = vec![T::zeroed(); terms[0].len()];
        combine(dtype, reduction, terms.len(), &bytes, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// For one to three members, the results equal those of a loop over single elements, with stores that bypass the
    /// caches and without.
    #[test]
    fn results_of_all_sizes_are_the_sums_in_the_order_of_the_members() -> Result<()> {
        for count in [0, 1, STRIP - 1, STRIP + 1, (16 << 20) / size_of::<f32>() + 77] {
            for members in 1..=3 {
                let terms = &terms(count)[..members];
                let sum = |i: usize| terms.iter().skip(1).fold(terms[0][i], |sum, term| sum + term[i]);
                let expected: Vec<f32> = (0..count).map(sum).collect();
                assert!(combined(DType::Float, Reduction::SUM, terms)? == expected, "{members} of {count}");
            }
        }
        Ok(())
    }

    /// Elements of 16 bits are combined as `float` and rounded once, with and without the caches.
    #[test]
    fn means_of_narrow_elements_are_rounded_once() -> Result<()> {
        for count in [5, (16 << 20) / size_of::<bf16>() + 33] {
            let wide = terms(count);
            let narrow: Vec<Vec<bf16>> =
                wide.iter().map(|term| term.iter().map(|&x| bf16::from_f32(x)).collect()).collect();
            let mean = |i: usize| bf16::from_f32((wide[0][i] + wide[1][i] + wide[2][i]) / 3.0);
            let expected: Vec<bf16> = (0..count).map(mean).collect();
            let reduction = Reduction { is_mean: true, ..Reduction::SUM };
            assert!(combined(DType::BFloat16, reduction, &narrow)? == expected, "{count}");
        }
        Ok(())
    }

    #[test]
    fn terms_of_different_lengths_are_refused() {
        let terms = [vec![1f32, 2.0], vec![1.0]];
        assert!(combined(DType::Float, Reduction::SUM, &terms).is_err());
    }
}
