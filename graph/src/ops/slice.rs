//! Slices and their gradients, and the index arithmetic of strided slices, which shape inference and kernels share.

use super::broadcast::reduce_gradients;
use super::shape::first_only;
use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::node::Node;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Slice",
        inputs: &["input: T", "begin: Index", "size: Index"],
        outputs: &["output: T"],
        attrs: &["T: type", "Index: {int32, int64}"],
        infer: slice,
        gradient: Gradient::Defined(slice_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "StridedSlice",
        inputs: &["input: T", "begin: Index", "end: Index", "strides: Index"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "Index: {int16, int32, int64}",
            "begin_mask: int = 0",
            "end_mask: int = 0",
            "ellipsis_mask: int = 0",
            "new_axis_mask: int = 0",
            "shrink_axis_mask: int = 0",
        ],
        infer: strided_slice,
        gradient: Gradient::Defined(strided_slice_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "StridedSliceGrad",
        inputs: &["shape: Index", "begin: Index", "end: Index", "strides: Index", "dy: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "Index: {int32, int64}",
            "begin_mask: int = 0",
            "end_mask: int = 0",
            "ellipsis_mask: int = 0",
            "new_axis_mask: int = 0",
            "shrink_axis_mask: int = 0",
        ],
        infer: |infer| {
            let shape = infer.value_as_shape(0)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(strided_slice_grad_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "StridedSliceAssign",
        inputs: &["ref: Ref(T)", "begin: Index", "end: Index", "strides: Index", "value: T"],
        outputs: &["output_ref: Ref(T)"],
        ..SLICE_ASSIGNMENT
    },
    OpDef {
        name: "ResourceStridedSliceAssign",
        inputs: &["ref: resource", "begin: Index", "end: Index", "strides: Index", "value: T"],
        outputs: &[],
        infer: |_| Ok(()),
        traits: Traits::STATEFUL,
        ..SLICE_ASSIGNMENT
    },
    OpDef {
        name: "TensorStridedSliceUpdate",
        inputs: &["input: T", "begin: Index", "end: Index", "strides: Index", "value: T"],
        outputs: &["output: T"],
        gradient: Gradient::Defined(update_gradient),
        ..SLICE_ASSIGNMENT
    },
];

/// The op table row of an op that writes to a strided slice.
const SLICE_ASSIGNMENT: OpDef = OpDef {
    attrs: &[
        "T: type",
        "Index: {int32, int64}",
        "begin_mask: int = 0",
        "end_mask: int = 0",
        "ellipsis_mask: int = 0",
        "new_axis_mask: int = 0",
        "shrink_axis_mask: int = 0",
    ],
    infer: |infer| {
        infer.set(0, infer.input(0));
        Ok(())
    },
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

/// The masks of a strided slice; bit `i` of each mask applies to the `i`-th index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StridedSliceAttrs {
    /// The indices whose slice begins at the first element of the axis, in the direction of the stride.
    pub begin_mask: i64,
    /// The indices whose slice ends after the last element of the axis, in the direction of the stride.
    pub end_mask: i64,
    /// The index that stands for all axes that no other index covers.
    pub ellipsis_mask: i64,
    /// The indices that add an axis of size 1 and consume no input axis.
    pub new_axis_mask: i64,
    /// The indices that select one element and drop the axis.
    pub shrink_axis_mask: i64,
}

/// The elements of one axis that a slice selects: `size` elements from `begin` in steps of `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceAxis {
    pub begin: i64,
    pub stride: i64,
    pub size: usize,
}

/// A strided slice resolved for a known input shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// For each axis of the input, the selected elements.
    pub axes: Vec<SliceAxis>,
    /// The shape of the result, without dropped axes and with added axes.
    pub shape: Vec<usize>,
    /// For each axis of the result, the input axis that it comes from; `None` for an added axis.
    pub sources: Vec<Option<usize>>,
}

/// The largest number of indices, because the masks are 32-bit integers.
const MAX_INDICES: usize = 32;

/// The origin of one axis of a slice's result: an input axis or a new axis.
#[derive(Clone, Copy)]
enum OutputAxis {
    /// The axis holds the selected elements of the input axis with this index.
    Input(usize),
    New,
}

/// Begin, end, stride and flags of a slice for one axis of the input.
#[derive(Clone, Copy)]
struct Index {
    /// Begin and end; `None` if the values of the indices are unknown.
    bounds: Option<(i64, i64)>,
    stride: i64,
    begin_open: bool,
    end_open: bool,
    shrink: bool,
}

impl StridedSliceAttrs {
    /// Reads the masks of a node.
    pub fn of(node: &Node) -> Result<StridedSliceAttrs> {
        Ok(StridedSliceAttrs {
            begin_mask: node.attr("begin_mask")?,
            end_mask: node.attr("end_mask")?,
            ellipsis_mask: node.attr("ellipsis_mask")?,
            new_axis_mask: node.attr("new_axis_mask")?,
            shrink_axis_mask: node.attr("shrink_axis_mask")?,
        })
    }

    /// Resolves the slice for an input of these sizes.
    ///
    /// # Errors
    /// `InvalidArgument` for indices that do not fit the input.
    pub fn plan(&self, input: &[usize], begin: &[i64], end: &[i64], strides: &[i64]) -> Result<SlicePlan> {
        let (indices, output_axes) = self.assign_indices(input.len(), Some((begin, end)), strides)?;
        let mut axes = Vec::with_capacity(input.len());
        for (i, (&dim, index)) in input.iter().zip(&indices).enumerate() {
            axes.push(index.resolve(i, dim)?);
        }
        let sources: Vec<Option<usize>> = output_axes
            .iter()
            .map(|f| match *f {
                OutputAxis::Input(i) => Some(i),
                OutputAxis::New => None,
            })
            .collect();
        let shape = sources.iter().map(|source| source.map_or(1, |i| axes[i].size)).collect();
        Ok(SlicePlan { axes, shape, sources })
    }

    /// Returns the shape of a slice as far as it is known; `bounds` holds the begin and end vectors, if their values
    /// are known.
    pub fn partial_shape(
        &self,
        input: &[Dim],
        bounds: Option<(&[i64], &[i64])>,
        strides: &[i64],
    ) -> Result<PartialShape> {
        let (indices, output_axes) = self.assign_indices(input.len(), bounds, strides)?;
        let mut sizes = Vec::with_capacity(input.len());
        for (i, (&dim, index)) in input.iter().zip(&indices).enumerate() {
            index.check(i)?;
            let known = index.bounds.is_some() || (index.begin_open && index.end_open);
            sizes.push(match dim {
                _ if index.shrink && (dim.is_none() || index.bounds.is_none()) => Some(1),
                Some(dim) if known => Some(index.resolve(i, dim)?.size),
                _ => None,
            });
        }
        Ok(PartialShape::of_dims(output_axes.iter().map(|f| match *f {
            OutputAxis::Input(i) => sizes[i],
            OutputAxis::New => Some(1),
        })))
    }

    /// Assigns the indices of a slice to the axes of its input. The ellipsis (by default after the last index) covers
    /// the axes that no index names.
    fn assign_indices(
        &self,
        rank: usize,
        bounds: Option<(&[i64], &[i64])>,
        strides: &[i64],
    ) -> Result<(Vec<Index>, Vec<OutputAxis>)> {
        let count = strides.len();
        let (begins, ends) = bounds.map_or((count, count), |(b, e)| (b.len(), e.len()));
        if begins != count || ends != count || count >= MAX_INDICES {
            crate::invalid!(
                "Expected begin, end, and strides to be 1D equal size tensors, but got shapes [{begins}], [{ends}], and [{count}] instead."
            );
        }
        let bit = |mask: i64, i: usize| mask >> i & 1 != 0;
        let mut ellipses = (0..count).filter(|&i| bit(self.ellipsis_mask, i));
        // Mask bits beyond the last index are counted too, like in TensorFlow.
        if self.ellipsis_mask.count_ones() > 1 {
            crate::invalid!("Multiple ellipses in slice spec not allowed");
        }
        // Indices without an ellipsis have an implicit one after the last index.
        let ellipsis = ellipses.next().unwrap_or(count);
        let takes = |i: usize| i != ellipsis && !bit(self.new_axis_mask, i);
        let named = (0..count).filter(|&i| takes(i)).count();
        if named > rank {
            crate::invalid!("Index out of range using input dim {rank}; input has only {rank} dims");
        }
        let whole =
            Index { bounds: Some((0, 0)), stride: 1, begin_open: true, end_open: true, shrink: false };
        let (mut indices, mut output_axes) = (Vec::with_capacity(rank), Vec::with_capacity(rank + count));
        for i in 0..count.max(ellipsis + 1) {
            if i == ellipsis {
                for _ in 0..rank - named {
                    output_axes.push(OutputAxis::Input(indices.len()));
                    indices.push(whole);
                }
            } else if bit(self.new_axis_mask, i) {
                output_axes.push(OutputAxis::New);
            } else {
                let shrink = bit(self.shrink_axis_mask, i);
                if !shrink {
                    output_axes.push(OutputAxis::Input(indices.len()));
                }
                indices.push(Index {
                    bounds: bounds.map(|(b, e)| (b[i], e[i])),
                    stride: strides[i],
                    begin_open: bit(self.begin_mask, i),
                    end_open: bit(self.end_mask, i),
                    shrink,
                });
            }
        }
        Ok((indices, output_axes))
    }
}

impl Index {
    fn check(&self, axis: usize) -> Result<()> {
        if self.stride == 0 {
            crate::invalid!("strides[{axis}] must be non-zero");
        }
        if self.shrink && self.stride < 0 {
            crate::invalid!("only stride 1 allowed on non-range indexing.");
        }
        Ok(())
    }

    fn resolve(&self, axis: usize, dim: usize) -> Result<SliceAxis> {
        self.check(axis)?;
        let dim = i64::try_from(dim).map_err(|_| Error::invalid(format!("dimension {axis} is too large")))?;
        let (begin, end) = self.bounds.unwrap_or((0, 0));
        let from_front = |x: i64| if x < 0 { x.saturating_add(dim) } else { x };
        if self.shrink {
            // An index that selects a single element ignores the begin and end masks.
            let at = from_front(begin);
            if at < 0 || at >= dim {
                crate::invalid!("slice index {at} of dimension {axis} out of bounds.");
            }
            return Ok(SliceAxis { begin: at, stride: 1, size: 1 });
        }
        let (low, high) = if self.stride > 0 { (0, dim) } else { (-1, dim - 1) };
        let (first, last) = if self.stride > 0 { (low, high) } else { (high, low) };
        let begin = if self.begin_open { first } else { from_front(begin).clamp(low, high) };
        let end = if self.end_open { last } else { from_front(end).clamp(low, high) };
        let distance = if self.stride > 0 { end - begin } else { begin - end };
        let size = if distance <= 0 { 0 } else { (distance as u64).div_ceil(self.stride.unsigned_abs()) };
        Ok(SliceAxis { begin, stride: self.stride, size: size as usize })
    }
}

fn slice(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let (begin, sizes) = (infer.value(1), infer.value(2));
    let wanted = match &sizes {
        Some(sizes) => sizes.to_i64s()?.into_iter().map(Some).collect::<Vec<_>>(),
        None => match infer.value_as_shape(2)?.dims() {
            Some(dims) => dims.iter().map(|d| d.map(|d| d as i64)).collect(),
            None => {
                let rank = input.rank().or(infer.input(1).dim(0));
                infer.set(0, rank.map_or(PartialShape::unknown(), PartialShape::of_rank));
                return Ok(());
            }
        },
    };
    let input = input.with_rank(wanted.len())?;
    let begin = begin.map(|b| b.to_i64s()).transpose()?;
    if begin.as_ref().is_some_and(|b| b.len() != wanted.len()) {
        crate::invalid!("Expected begin and size arguments to be 1-D tensors of size {}", wanted.len());
    }
    let mut out = Vec::with_capacity(wanted.len());
    for (i, &size) in wanted.iter().enumerate() {
        let from = begin.as_ref().map(|b| b[i]);
        let dim = input.dim(i).map(|d| d as i64);
        out.push(match (size, from, dim) {
            (Some(-1), Some(from), Some(dim)) => usize::try_from(dim - from).ok(),
            (Some(-1), ..) | (None, ..) => None,
            (Some(size), from, dim) => {
                let from = from.unwrap_or(0);
                if let Some(dim) = dim
                    && (from < 0 || size < 0 || from.checked_add(size).is_none_or(|end| end > dim))
                {
                    crate::invalid!("Expected size[{i}] in [0, {}], but got {size}", dim - from);
                }
                usize::try_from(size).ok()
            }
        });
    }
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn strided_slice(infer: &mut Infer<'_>) -> Result<()> {
    let attrs = StridedSliceAttrs::of(infer.node())?;
    let input = infer.input(0);
    let (Some(dims), Some(strides)) = (input.dims(), infer.value(3)) else { return Ok(()) };
    let (begin, end) = (infer.value(1), infer.value(2));
    let bounds = match (&begin, &end) {
        (Some(begin), Some(end)) => Some((begin.to_i64s()?, end.to_i64s()?)),
        _ => None,
    };
    let bounds = bounds.as_ref().map(|(b, e)| (b.as_slice(), e.as_slice()));
    let shape = attrs.partial_shape(dims, bounds, &strides.to_i64s()?)?;
    infer.set(0, shape);
    Ok(())
}

/// Gradient of Slice: `dz` padded with zeros.
fn slice_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let index = forward.attr::<DType>("Index")?;
    let begin = forward.input(1);
    let before = scope.expand_dims(begin, 1);
    let input = scope.shape_of_as(forward.input(0), index);
    let taken = scope.shape_of_as(forward.output(0), index);
    let rest = scope.op("Sub").input(input).input(taken).output();
    let rest = scope.op("Sub").input(rest).input(begin).output();
    let after = scope.expand_dims(rest, 1);
    let paddings = scope.concat(&[before, after], 1);
    Ok(first_only(forward, Some(scope.op("Pad").input(dz).input(paddings).output())))
}

/// Casts the inputs begin, end and strides of a strided slice, which start at input `from`, to an index type that all
/// ops on slices accept, and returns that type and the cast inputs.
fn indices(scope: &Scope, forward: &Forward, from: usize) -> Result<(DType, Vec<Output>)> {
    let given = forward.attr::<DType>("Index")?;
    let wanted = if given == DType::Int64 { DType::Int64 } else { DType::Int32 };
    let convert = |i| {
        let index = forward.input(i);
        if given == wanted {
            return index;
        }
        scope.op("Cast").input(index).attr("SrcT", given).attr("DstT", wanted).output()
    };
    Ok((wanted, (from..from + 3).map(convert).collect()))
}

const MASKS: [&str; 5] = ["begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"];

fn strided_slice_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let (index, indices) = indices(scope, forward, 1)?;
    let mut call = scope.op("StridedSliceGrad").input(scope.shape_of_as(forward.input(0), index));
    for i in indices {
        call = call.input(i);
    }
    for mask in MASKS {
        call = call.attr(mask, forward.attr::<i64>(mask)?);
    }
    Ok(first_only(forward, Some(call.input(dz).output())))
}

fn strided_slice_grad_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(vec![None; 5]) };
    let mut call = scope.op("StridedSlice").input(dz);
    for i in 1..4 {
        call = call.input(forward.input(i));
    }
    for mask in MASKS {
        call = call.attr(mask, forward.attr::<i64>(mask)?);
    }
    Ok(vec![None, None, None, None, Some(call.output())])
}

/// Gradient of a strided slice update: zero for the overwritten elements; for the written value, the slice of `dz`,
/// summed where the value was broadcast.
fn update_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(vec![None; 5]) };
    let sliced = |op: &str, last: Option<Output>| {
        let mut call = scope.op(op).input(dz);
        for input in (1..4).map(|i| forward.input(i)).chain(last) {
            call = call.input(input);
        }
        for mask in MASKS {
            call = call.attr(mask, forward.attr::<i64>(mask)?);
        }
        Ok::<_, Error>(call.output())
    };
    let value = forward.input(4);
    let kept = sliced("TensorStridedSliceUpdate", Some(scope.zeros_like(value)))?;
    let taken = sliced("StridedSlice", None)?;
    let written = reduce_gradients(scope, [value, taken], [Some(taken), None])?[0];
    Ok(vec![Some(kept), None, None, None, written])
}
