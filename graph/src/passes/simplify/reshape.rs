//! Rules for ops that move or repeat elements and have no effect, such as a reshape to the same shape.

use super::Simplification::{Arithmetic, Constants};
use super::rule::{Input, Rewrite, Rule};
use super::shape_values::sums_nothing;
use super::site::Site;
use crate::graph::Output;
use crate::shape::{PartialShape, resolve_axis};
use crate::tensor::Tensor;

pub(super) const RULES: &[Rule] = &[
    Rule { ops: &["Reshape"], kind: Constants, apply: reshape_to_same_shape },
    Rule { ops: &["Reshape"], kind: Constants, apply: reshape_to_equal_shape },
    Rule { ops: &["Reshape"], kind: Arithmetic, apply: reshape_of_reshape },
    Rule { ops: &["Reshape"], kind: Arithmetic, apply: gradient_reshape_of_operand },
    Rule { ops: &["Squeeze"], kind: Constants, apply: squeezes_nothing },
    Rule { ops: &["Squeeze"], kind: Arithmetic, apply: squeeze_of_expanded },
    Rule { ops: &["BroadcastTo"], kind: Constants, apply: keeps_known_shape },
    Rule { ops: &["Tile"], kind: Constants, apply: |site| if_all(site, 1, |multiple| multiple == 1) },
    Rule {
        ops: &["MirrorPad", "Pad", "PadV2"],
        kind: Constants,
        apply: |site| if_all(site, 1, |width| width == 0),
    },
    Rule { ops: &["Slice"], kind: Constants, apply: slice_of_all },
    Rule { ops: &["StridedSlice"], kind: Constants, apply: strided_slice_of_all },
    Rule { ops: &["ReverseV2"], kind: Constants, apply: reverses_nothing },
    Rule { ops: &["Pack"], kind: Constants, apply: pack_of_one },
];

/// Rewrites the node to its first input, if `is_neutral` holds for every number in the input `input`.
fn if_all(site: &Site<'_>, input: usize, is_neutral: fn(i64) -> bool) -> Option<Rewrite> {
    let numbers = site.integers(site.input(input)?)?;
    if numbers.into_iter().all(is_neutral) { Rewrite::same(site.input(0)?) } else { None }
}

/// Rewrites the node to its input, if the input's shape is fully known and equals the output's.
fn keeps_known_shape(site: &Site<'_>) -> Option<Rewrite> {
    let x = site.input(0)?;
    let shape = site.shape(x);
    let is_kept = shape.is_fully_defined() && shape == site.shape(site.output());
    if is_kept { Rewrite::same(x) } else { None }
}

/// Rewrites a reshape to the same shape. One size may be unknown: a reshape preserves the number of elements, so the
/// unknown size is equal if all other sizes are.
fn reshape_to_same_shape(site: &Site<'_>) -> Option<Rewrite> {
    let x = site.input(0)?;
    let (from, to) = (site.shape(x), site.shape(site.output()));
    let (from, to) = (from.dims()?, to.dims()?);
    let open = from.iter().zip(to).filter(|(from, to)| from.is_none() || to.is_none()).count();
    let agree = from.iter().zip(to).all(|(from, to)| match (from, to) {
        (Some(from), Some(to)) => from == to && (*from > 0 || open == 0),
        _ => true,
    });
    if from.len() == to.len() && agree && open <= 1 { Rewrite::same(x) } else { None }
}

/// Rewrites a reshape to the shape of an output that certainly has the same shape as the input.
fn reshape_to_equal_shape(site: &Site<'_>) -> Option<Rewrite> {
    let (x, like) = (site.input(0)?, site.any_producer_of(site.input(1)?, &["Shape"])?.input(0)?);
    if site.have_same_shape(x, like) { Rewrite::same(x) } else { None }
}

/// Rewrites a reshape of a reshape to one reshape, if the inner reshape certainly cannot fail.
fn reshape_of_reshape(site: &Site<'_>) -> Option<Rewrite> {
    let inner = site.producer_of(site.input(0)?, &["ExpandDims", "Reshape"])?;
    let x = inner.input(0)?;
    let fits = match inner.op() {
        "Reshape" => surely_fits(&site.shape(x), &site.sizes(inner.input(1)?)),
        _ => site.shape(inner.output()).rank().is_some(),
    };
    if !fits {
        return None;
    }
    let shape = site.input(1)?;
    let attrs = [("T", site.dtype()?.into()), ("Tshape", site.attr::<crate::DType>("Tshape")?.into())];
    Some(Rewrite::other("Reshape", attrs, [Input::From(x), Input::From(shape)])?.bypassing(&inner))
}

/// Returns whether a reshape from `from` to `to` certainly succeeds; one size of `to` may be -1, given as `None`.
fn surely_fits(from: &PartialShape, to: &PartialShape) -> bool {
    let (Some(from), Some(to)) = (from.dims(), to.dims()) else { return false };
    let known = |dims: &[Option<usize>]| dims.iter().flatten().try_fold(1usize, |n, d| n.checked_mul(*d));
    let open = |dims: &[Option<usize>]| dims.iter().filter(|d| d.is_none()).count();
    let (Some(of_from), Some(of_to)) = (known(from), known(to)) else { return false };
    match open(to) {
        0 => open(from) == 0 && of_from == of_to,
        1 => of_to > 0 && of_from % of_to == 0,
        _ => false,
    }
}

/// Removes the Sum and the Reshape that reduce a gradient to the shape of an operand, if the operand was not broadcast.
fn gradient_reshape_of_operand(site: &Site<'_>) -> Option<Rewrite> {
    let sum = site.producer_of(site.input(0)?, &["Sum"])?;
    let (gradient, axes) = (sum.input(0)?, sum.input(1)?);
    if !sums_nothing(site, gradient, axes, site.input(1)?) {
        return None;
    }
    Some(Rewrite::same(gradient)?.bypassing(&sum))
}

fn squeezes_nothing(site: &Site<'_>) -> Option<Rewrite> {
    let x = site.input(0)?;
    if site.shape(x).rank()? == site.shape(site.output()).rank()? { Rewrite::same(x) } else { None }
}

/// Removes a squeeze of the axis that an ExpandDims has added.
fn squeeze_of_expanded(site: &Site<'_>) -> Option<Rewrite> {
    let inner = site.producer_of(site.input(0)?, &["ExpandDims"])?;
    let rank = site.shape(inner.output()).rank()?;
    let [added] = site.integers(inner.input(1)?)?[..] else { return None };
    let [gone] = site.attr::<Vec<i64>>("squeeze_dims")?[..] else { return None };
    if resolve_axis(added, rank)? != resolve_axis(gone, rank)? {
        return None;
    }
    Some(Rewrite::same(inner.input(0)?)?.bypassing(&inner))
}

fn slice_of_all(site: &Site<'_>) -> Option<Rewrite> {
    let begins = site.integers(site.input(1)?)?;
    if begins.into_iter().any(|begin| begin != 0) {
        return None;
    }
    if_all(site, 2, |size| size == -1).or_else(|| keeps_known_shape(site))
}

/// Rewrites a slice to its input, if all strides are 1 and the slice has as many elements as the input.
fn strided_slice_of_all(site: &Site<'_>) -> Option<Rewrite> {
    let strides = site.integers(site.input(3)?)?;
    if strides.into_iter().any(|stride| stride != 1) { None } else { keeps_known_shape(site) }
}

fn reverses_nothing(site: &Site<'_>) -> Option<Rewrite> {
    let x = site.input(0)?;
    let axes = site.integers(site.input(1)?)?;
    if axes.is_empty() {
        return Rewrite::same(x);
    }
    let shape = site.shape(x);
    let mut seen = Vec::with_capacity(axes.len());
    for axis in axes {
        let at = resolve_axis(axis, shape.rank()?)?;
        if shape.dim(at) != Some(1) || seen.contains(&at) {
            return None;
        }
        seen.push(at);
    }
    Rewrite::same(x)
}

/// Rewrites a Pack of one tensor to ExpandDims, which does not copy the elements.
fn pack_of_one(site: &Site<'_>) -> Option<Rewrite> {
    let &[x]: &[Output] = site.inputs.as_slice() else { return None };
    let axis = i32::try_from(site.attr::<i64>("axis")?).ok()?;
    let attrs = [("T", site.dtype()?.into()), ("Tdim", crate::DType::Int32.into())];
    Rewrite::other("ExpandDims", attrs, [Input::From(x), Input::Constant(Tensor::scalar(axis))])
}
