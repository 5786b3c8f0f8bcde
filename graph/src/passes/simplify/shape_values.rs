//! Rules for shape vectors, and for values computed from shapes, that are known before the step runs.

use super::Simplification::{Constants, Shapes};
use super::classes::keeps_shape;
use super::rule::{Input, Rewrite, Rule};
use super::site::Site;
use crate::dtype::DType;
use crate::graph::Output;
use crate::infer::integers;
use crate::ops::shape::reduced_axes;
use crate::shape::{PartialShape, resolve_axis};
use crate::tensor::Tensor;

pub(super) const RULES: &[Rule] = &[
    Rule {
        ops: &["Rank", "Shape", "ShapeN", "Size"],
        kind: Constants,
        apply: |site| Rewrite::values(known_outputs(site)?),
    },
    Rule {
        ops: &["Cast", "ConcatV2", "ExpandDims", "Pack", "Slice", "Squeeze", "StridedSlice"],
        kind: Constants,
        apply: |site| {
            let counts = matches!(site.dtype()?, DType::Int32 | DType::Int64);
            if counts { Rewrite::values(known_outputs(site)?) } else { None }
        },
    },
    Rule { ops: &["BroadcastGradientArgs"], kind: Constants, apply: axes_of_gradients },
    Rule { ops: &["Prod"], kind: Shapes, apply: product_of_sizes },
];

/// Returns the value of each output of the node, `None` for unknown values; returns `None` if all values are unknown.
fn known_outputs(site: &Site<'_>) -> Option<Vec<Option<Tensor>>> {
    let count = site.node.output_types().ok()?.len();
    let value = |index| {
        let output = Output::new(site.id, index);
        site.value(output).filter(|value| site.shape(output).accepts(value.shape()))
    };
    let values: Vec<Option<Tensor>> = (0..count).map(value).collect();
    values.iter().any(Option::is_some).then_some(values)
}

/// Rewrites a BroadcastGradientArgs node to constants: for each of two broadcast operands, the axes over which its
/// gradient is summed, if they are known. If the shapes certainly are equal, no axes are summed. If the shapes
/// certainly differ, the axes of an operand are known if the sizes of that operand are known.
fn axes_of_gradients(site: &Site<'_>) -> Option<Rewrite> {
    let (x, y) = (site.input(0)?, site.input(1)?);
    let axes = |values: &[i64]| integers(site.dtype()?, values.iter().copied());
    if is_one_shape(site, x, y) {
        return Rewrite::values(vec![axes(&[]), axes(&[])]);
    }
    if let (Some(a), Some(b)) = (site.integers(x), site.integers(y)) {
        let (first, second) = reduced_axes(&a, &b).ok()?;
        return Rewrite::values(vec![axes(&first), axes(&second)]);
    }
    let (a, b) = (site.sizes(x), site.sizes(y));
    if a.is_compatible(&b) || PartialShape::broadcast(&a, &b).is_err() {
        return None;
    }
    let rank = a.rank()?.max(b.rank()?);
    let values = [a, b].map(|own| axes(&single(&own, rank)?));
    if values.iter().all(Option::is_none) { None } else { Rewrite::values(values.to_vec()) }
}

/// Returns the axes of size 1 of the shape `own`, extended to `rank` axes by leading ones; `None` if a size is unknown.
fn single(own: &PartialShape, rank: usize) -> Option<Vec<i64>> {
    let dims = own.dims()?;
    let missing = rank - dims.len();
    let sizes: Vec<usize> = dims.iter().copied().collect::<Option<_>>()?;
    let added = (0..missing).map(|_| 1);
    Some((0..).zip(added.chain(sizes)).filter(|(_, size)| *size == 1).map(|(axis, _)| axis).collect())
}

/// Returns whether `x` and `y` are shape vectors of one tensor, or of two tensors that certainly have the same shape.
fn is_one_shape(site: &Site<'_>, x: Output, y: Output) -> bool {
    let shaped = |output| site.any_producer_of(output, &["Shape"])?.input(0);
    x == y || shaped(x).zip(shaped(y)).is_some_and(|(x, y)| site.have_same_shape(x, y))
}

/// Rewrites the product of all elements of a shape vector to `Size`, the number of elements.
fn product_of_sizes(site: &Site<'_>) -> Option<Rewrite> {
    let shape = site.producer_of(site.input(0)?, &["Shape"])?;
    let axes = site.integers(site.input(1)?)?;
    let is_whole = axes.len() == 1 && resolve_axis(axes[0], 1).is_some();
    if !is_whole || site.attr::<bool>("keep_dims")? {
        return None;
    }
    let attrs = [("T", shape.attr::<DType>("T")?.into()), ("out_type", site.dtype()?.into())];
    Some(Rewrite::other("Size", attrs, [Input::From(shape.input(0)?)])?.bypassing(&shape))
}

/// Returns whether the reduction of the gradient `summed` to the shape of its operand changes nothing, because the
/// operand was not broadcast. The reduction is a sum over `axes` and a reshape to `shape`.
pub(super) fn sums_nothing(site: &Site<'_>, summed: Output, axes: Output, shape: Output) -> bool {
    let Some(args) = site.any_producer_of(axes, &["BroadcastGradientArgs"]) else { return false };
    let (own, other) = (axes.index as usize, 1 - (axes.index as usize).min(1));
    let (Some(own), Some(other)) = (args.input(own), args.input(other)) else { return false };
    let Some(of) = site.any_producer_of(shape, &["Shape"]).and_then(|shape| shape.input(0)) else {
        return false;
    };
    let is_own = own == shape || is_one_shape(site, own, shape);
    is_own && site.have_same_shape(of, summed) && keeps_shape(&site.sizes(own), &site.sizes(other))
}
