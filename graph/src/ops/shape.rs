//! Ops that return shapes, and ops that change the shape of a tensor without changing its elements.

use super::constant::scalar;
use super::identity::FORWARDS_REFERENCE;
use super::{Gradient, GradientFn, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape, resolve_axis};

/// The gradient of an op that changes only the shape: the gradient reshaped to the first input's shape.
const RESHAPE_BACK: GradientFn = |scope, forward, dz| {
    let mut grads = vec![None; forward.inputs.len()];
    grads[0] = dz[0].map(|dz| scope.reshape_like(dz, forward.input(0)));
    Ok(grads)
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Shape",
        inputs: &["input: T"],
        outputs: &["output: out_type"],
        attrs: &["T: type", "out_type: {int32, int64} = int32"],
        infer: ranks,
        gradient: Gradient::Leaf,
        traits: Traits::METADATA,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShapeN",
        inputs: &["input: N * T"],
        outputs: &["output: N * out_type"],
        attrs: &["N: int >= 1", "T: type", "out_type: {int32, int64} = int32"],
        infer: ranks,
        gradient: Gradient::Leaf,
        traits: Traits::METADATA,
        ..OpDef::NEW
    },
    OpDef {
        name: "Size",
        inputs: &["input: T"],
        outputs: &["output: out_type"],
        attrs: &["T: type", "out_type: {int32, int64} = int32"],
        infer: scalar_output,
        gradient: Gradient::Leaf,
        traits: Traits::METADATA,
        ..OpDef::NEW
    },
    OpDef {
        name: "Rank",
        inputs: &["input: T"],
        outputs: &["output: int32"],
        attrs: &["T: type"],
        infer: scalar_output,
        gradient: Gradient::Leaf,
        traits: Traits::METADATA,
        ..OpDef::NEW
    },
    OpDef {
        name: "Reshape",
        inputs: &["tensor: T", "shape: Tshape"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tshape: {int32, int64} = int32"],
        infer: reshape,
        gradient: Gradient::Defined(RESHAPE_BACK),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExpandDims",
        inputs: &["input: T", "dim: Tdim"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tdim: {int32, int64} = int32"],
        infer: expand_dims,
        gradient: Gradient::Defined(RESHAPE_BACK),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "Squeeze",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "squeeze_dims: list(int) >= 0 = []"],
        infer: squeeze,
        gradient: Gradient::Defined(RESHAPE_BACK),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "BroadcastTo",
        inputs: &["input: T", "shape: Tidx"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tidx: {int32, int64} = int32"],
        infer: broadcast_to,
        gradient: Gradient::Defined(|scope, forward, dz| {
            Ok(vec![dz[0].map(|dz| scope.sum_to_shape_of(dz, forward.input(0))), None])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "BroadcastArgs",
        inputs: &["s0: T", "s1: T"],
        outputs: &["r0: T"],
        attrs: &["T: {int32, int64} = int32"],
        infer: |infer| {
            let (a, b) = (infer.input_of_rank(0, 1)?.dim(0), infer.input_of_rank(1, 1)?.dim(0));
            infer.set(0, PartialShape::vector(a.zip(b).map(|(a, b)| a.max(b))));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "BroadcastGradientArgs",
        inputs: &["s0: T", "s1: T"],
        outputs: &["r0: T", "r1: T"],
        attrs: &["T: {int32, int64} = int32"],
        infer: |infer| {
            infer.input_of_rank(0, 1)?;
            infer.input_of_rank(1, 1)?;
            infer.set_all(PartialShape::vector(None));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "EnsureShape",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["shape: shape", "T: type"],
        infer: |infer| {
            let shape: PartialShape = infer.attr("shape")?;
            let shape = infer.input(0).merge(&shape)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|_, _, dz| Ok(vec![dz[0]])),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
];

fn ranks(infer: &mut Infer<'_>) -> Result<()> {
    for i in 0..infer.num_inputs() {
        let rank = infer.input(i).rank();
        infer.set(i, PartialShape::vector(rank));
    }
    Ok(())
}

fn scalar_output(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}

pub(super) fn reshape(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let wanted = infer.value_as_shape(1)?;
    let (Some(dims), Some(elements)) = (wanted.dims(), input.num_elements()) else {
        infer.set(0, wanted);
        return Ok(());
    };
    let known = dims.iter().flatten().try_fold(1usize, |n, &d| n.checked_mul(d));
    let open = dims.iter().filter(|d| d.is_none()).count();
    let mismatch =
        || Error::invalid(format!("Cannot reshape a tensor with {elements} elements to shape {wanted}"));
    let shape = match (open, known.ok_or_else(mismatch)?) {
        (0, known) if known != elements => return Err(mismatch()),
        (1, known) if known > 0 => {
            if elements % known != 0 {
                return Err(mismatch());
            }
            PartialShape::of_dims(dims.iter().map(|d| d.or(Some(elements / known))))
        }
        // If there are no elements, a size of -1 in a known shape input stands for 1; a size that is unknown before the
        // step stays unknown.
        (1, 0) if elements == 0 && infer.value(1).is_some() => {
            PartialShape::of_dims(dims.iter().map(|d| d.or(Some(1))))
        }
        _ => wanted,
    };
    infer.set(0, shape);
    Ok(())
}

fn expand_dims(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let (Some(dims), axis) = (input.dims(), scalar(infer, 1)?) else { return Ok(()) };
    let Some(axis) = axis else {
        infer.set(0, PartialShape::of_rank(dims.len() + 1));
        return Ok(());
    };
    let Some(at) = resolve_axis(axis, dims.len() + 1) else {
        crate::invalid!("Tried to expand dim index {axis} for tensor with {} dimensions.", dims.len());
    };
    let mut out = dims.to_vec();
    out.insert(at, Some(1));
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

/// Returns for each axis whether `Squeeze` drops it: the named axes, or if none is named, all axes of size 1.
///
/// # Errors
/// `InvalidArgument` for an axis out of range.
pub fn squeezed_axes(rank: usize, squeeze_dims: &[i64]) -> Result<Vec<bool>> {
    let mut dropped = vec![false; rank];
    for &axis in squeeze_dims {
        match resolve_axis(axis, rank) {
            Some(at) => dropped[at] = true,
            None => crate::invalid!("Tried to squeeze dim index {axis} for tensor with {rank} dimensions."),
        }
    }
    Ok(dropped)
}

fn squeeze(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let Some(dims) = input.dims() else { return Ok(()) };
    let named: Vec<i64> = infer.attr("squeeze_dims")?;
    if named.is_empty() {
        // If a size is unknown, the axis may or may not be removed, so the output's rank is unknown.
        if dims.iter().all(Option::is_some) {
            infer.set(0, PartialShape::of_dims(dims.iter().copied().filter(|&d| d != Some(1))));
        }
        return Ok(());
    }
    let dropped = squeezed_axes(dims.len(), &named)?;
    let mut out: Vec<Dim> = Vec::new();
    for (i, (&d, &drop)) in dims.iter().zip(&dropped).enumerate() {
        match d {
            Some(size) if drop && size != 1 => {
                crate::invalid!("Can not squeeze dim[{i}], expected a dimension of 1, got {size}")
            }
            _ if drop => {}
            d => out.push(d),
        }
    }
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

/// Returns the pairs of sizes of two shapes, aligned at the last axis; the shorter shape is padded with ones.
///
/// # Errors
/// `InvalidArgument` if the shapes cannot be broadcast together.
pub fn pairs(a: &[i64], b: &[i64]) -> Result<Vec<(i64, i64)>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[i64], i: usize| {
        let pad = rank - dims.len();
        if i < pad { 1 } else { dims[i - pad] }
    };
    let both: Vec<_> = (0..rank).map(|i| (at(a, i), at(b, i))).collect();
    if both.iter().any(|&(x, y)| x != y && x != 1 && y != 1) {
        let shape = |dims: &[i64]| dims.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        crate::invalid!("Incompatible shapes: [{}] vs. [{}]", shape(a), shape(b));
    }
    Ok(both)
}

/// Returns the axes of the broadcast shape over which the gradients of the two operands are summed. Equal shapes need
/// no sum. Otherwise axes of size 1 in both operands are included, because an operand may lack the axis.
///
/// # Errors
/// The errors of [`pairs`].
pub fn reduced_axes(a: &[i64], b: &[i64]) -> Result<(Vec<i64>, Vec<i64>)> {
    if a == b {
        return Ok((Vec::new(), Vec::new()));
    }
    let both = pairs(a, b)?;
    let ones = |pick: fn(&(i64, i64)) -> i64| -> Vec<i64> {
        (0..).zip(&both).filter(|(_, pair)| pick(pair) == 1).map(|(i, _)| i).collect()
    };
    Ok((ones(|p| p.0), ones(|p| p.1)))
}

fn broadcast_to(infer: &mut Infer<'_>) -> Result<()> {
    let (input, wanted) = (infer.input(0), infer.value_as_shape(1)?);
    if let (Some(from), Some(to)) = (input.dims(), wanted.dims()) {
        if from.len() > to.len() {
            crate::invalid!(
                "Rank of input ({}) must be no greater than rank of output shape ({}).",
                from.len(),
                to.len()
            );
        }
        for (f, t) in from.iter().rev().zip(to.iter().rev()) {
            if let (Some(f), Some(t)) = (f, t)
                && *f != 1
                && f != t
            {
                crate::invalid!("Incompatible shapes: {input} vs. {wanted}");
            }
        }
    }
    infer.set(0, wanted);
    Ok(())
}

impl Scope {
    /// Reshapes `x` to the shape of `like`.
    pub(crate) fn reshape_like(&self, x: Output, like: Output) -> Output {
        match self.shape(like).as_shape() {
            Some(shape) if self.shape(x).as_shape().as_ref() == Some(&shape) => x,
            Some(shape) => {
                let dims: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
                self.reshape(x, &dims)
            }
            None => self.op("Reshape").input(x).input(self.shape_of(like)).output(),
        }
    }

    /// Sums `dz` over the axes along which a tensor of the shape of `like` was broadcast to the shape of `dz`.
    pub(crate) fn sum_to_shape_of(&self, dz: Output, like: Output) -> Output {
        if let (Some(from), Some(to)) = (self.shape(dz).as_shape(), self.shape(like).as_shape())
            && from == to
        {
            return dz;
        }
        let (shape, broadcast) = (self.shape_of(like), self.shape_of(dz));
        let axes = self.op("BroadcastGradientArgs").input(shape).input(broadcast).outputs();
        let Some(&axes) = axes.first() else { return dz };
        let summed = self.op("Sum").input(dz).input(axes).output();
        self.op("Reshape").input(summed).input(shape).output()
    }

    /// Returns the sum of all elements of `dz`, a scalar.
    pub(crate) fn sum_to_scalar(&self, dz: Output) -> Output {
        let axes = match self.shape(dz).rank() {
            Some(rank) => self.constant_vector(&(0..rank as i32).collect::<Vec<_>>()),
            None => {
                let rank = self.op("Rank").input(dz).output();
                let (zero, one) = (self.constant(0i32), self.constant(1i32));
                self.op("Range").input(zero).input(rank).input(one).output()
            }
        };
        self.op("Sum").input(dz).input(axes).output()
    }
}

/// Returns the gradients of all inputs: `dx` for the first input, `None` for the other inputs.
pub(super) fn first_only(forward: &Forward, dx: Option<Output>) -> Vec<Option<Output>> {
    let mut grads = vec![None; forward.inputs.len()];
    if let Some(first) = grads.first_mut() {
        *first = dx;
    }
    grads
}
