//! Symbolic sizes of axes: names for unknown sizes, by which two sizes can be proved equal. Examples are the batch size
//! throughout a model, and the numbers of rows after equal windows.

use super::classes::ShapeClasses;
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::shape::{PartialShape, resolve_axis};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The known or symbolic size of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Size {
    /// A known size.
    Known(usize),
    /// The unknown size of the axis with this index of this output.
    OfAxis(Output, usize),
    /// The number of positions of a sliding window on an axis: `(size - reach) / stride + 1`, rounded down, where
    /// `size` is the index of the axis's size in [`Windows`].
    Windows { size: u32, stride: i64, reach: i64 },
}

/// The size of each axis of an output.
pub(super) type Sizes = SmallVec<[Size; 4]>;

/// A table that numbers the sizes of the axes on which windows slide.
#[derive(Debug, Default)]
pub(super) struct Windows {
    sizes: Vec<Size>,
    numbers: FxHashMap<Size, u32>,
}

impl Windows {
    /// Returns the number of positions of a window on an axis of the given size. `stride` is the distance between
    /// positions, `reach` the width of the window less the padding. Returns `None` on overflow.
    fn count(&mut self, size: Size, stride: i64, reach: i64) -> Option<Size> {
        if stride == 1 && reach == 1 {
            return Some(size);
        }
        // A window that slides over the positions of a window of stride 1 is equal to one wider window on the original
        // axis.
        if let Size::Windows { size, stride: 1, reach: inner } = size {
            return Some(self.windows_over(size, stride, reach.checked_add(inner)?.checked_sub(1)?));
        }
        let next = self.sizes.len() as u32;
        let number = *self.numbers.entry(size).or_insert(next);
        if number == next {
            self.sizes.push(size);
        }
        Some(self.windows_over(number, stride, reach))
    }

    fn windows_over(&self, size: u32, stride: i64, reach: i64) -> Size {
        match (stride, reach, self.sizes.get(size as usize)) {
            (1, 1, Some(size)) => *size,
            _ => Size::Windows { size, stride, reach },
        }
    }
}

/// A node with the shapes and the integer values of its inputs.
pub(super) struct NodeFacts<'a> {
    pub(super) id: NodeId,
    pub(super) node: &'a Node,
    pub(super) inputs: &'a [Output],
    pub(super) shape: &'a dyn Fn(Output) -> PartialShape,
    pub(super) integers: &'a dyn Fn(Output) -> Option<Vec<i64>>,
}

impl NodeFacts<'_> {
    /// Returns the sizes of the node's outputs, which are equal for all outputs; `None` if no sizes can be derived from
    /// the inputs.
    pub(super) fn sizes(&self, classes: &ShapeClasses, windows: &mut Windows) -> Option<Sizes> {
        match self.node.op.name() {
            "Conv2D" | "DepthwiseConv2dNative" => {
                let filter = self.shape_of(1)?;
                self.images(classes, windows, [filter.dim(0), filter.dim(1)])
            }
            "AvgPool" | "MaxPool" => {
                let size = self.node.attr::<Vec<i64>>("ksize").ok()?;
                let [rows, columns] = self.spatial_axes()?;
                let size = |axis: usize| usize::try_from(*size.get(axis)?).ok();
                let mut sizes = self.images(classes, windows, [size(rows), size(columns)])?;
                let channels = (1..4).find(|axis| ![rows, columns].contains(axis))?;
                sizes[channels] = self.of_rank(classes, 0, 4)?[channels];
                Some(sizes)
            }
            "MatMul" => {
                let [a, b] = [self.of_rank(classes, 0, 2)?, self.of_rank(classes, 1, 2)?];
                let flips = ["transpose_a", "transpose_b"].map(|name| self.node.attr::<bool>(name));
                let [Ok(a_is_flipped), Ok(b_is_flipped)] = flips else { return None };
                Some(SmallVec::from_slice(&[
                    *a.get(usize::from(a_is_flipped))?,
                    *b.get(usize::from(!b_is_flipped))?,
                ]))
            }
            "BatchMatMul" | "BatchMatMulV2" => self.products(classes),
            "All" | "Any" | "Max" | "Mean" | "Min" | "Prod" | "Sum" => self.reduced(classes),
            "ConcatV2" => {
                let mut sizes = self.of_input(classes, 0)?;
                let axis = self.axis(self.inputs.len() - 1, sizes.len())?;
                sizes[axis] = self.own(axis);
                Some(sizes)
            }
            "ExpandDims" => {
                let mut sizes = self.of_input(classes, 0)?;
                let axis = self.axis(1, sizes.len() + 1)?;
                sizes.insert(axis, Size::Known(1));
                Some(sizes)
            }
            "GatherV2" => self.gathered(classes),
            "MirrorPad" | "Pad" | "PadV2" => {
                let pads = self.integers_of(1)?;
                let mut sizes = self.of_rank(classes, 0, pads.len() / 2)?;
                for (axis, size) in sizes.iter_mut().enumerate() {
                    let pad = pads.get(2 * axis)?.checked_add(*pads.get(2 * axis + 1)?)?;
                    *size = match self.own(axis) {
                        Size::Known(known) => Size::Known(known),
                        _ => windows.count(*size, 1, 1i64.checked_sub(pad)?)?,
                    };
                }
                Some(sizes)
            }
            "Reshape" => self.reshaped(classes),
            "Split" => {
                let mut sizes = self.of_input(classes, 1)?;
                let axis = self.axis(0, sizes.len())?;
                sizes[axis] = self.own(axis);
                Some(sizes)
            }
            "Squeeze" => {
                let (mut sizes, axes) =
                    (self.of_input(classes, 0)?, self.node.attr::<Vec<i64>>("squeeze_dims"));
                let axes = resolved(&axes.ok().filter(|axes| !axes.is_empty())?, sizes.len())?;
                let mut axis = 0..;
                sizes.retain(|_| axis.next().is_none_or(|axis| !axes.contains(&axis)));
                Some(sizes)
            }
            "Transpose" => {
                let order = self.integers_of(1)?;
                let sizes = self.of_rank(classes, 0, order.len())?;
                order.iter().map(|axis| Some(sizes[resolve_axis(*axis, sizes.len())?])).collect()
            }
            "Unpack" => {
                let mut sizes = self.of_input(classes, 0)?;
                let axis = resolve_axis(self.node.attr("axis").ok()?, sizes.len())?;
                sizes.remove(axis);
                Some(sizes)
            }
            _ => None,
        }
    }

    /// Returns the sizes of the broadcast shape of the first two inputs.
    pub(super) fn broadcast(&self, classes: &ShapeClasses) -> Option<Sizes> {
        let (mut long, mut short) = (self.of_input(classes, 0)?, self.of_input(classes, 1)?);
        if long.len() < short.len() {
            std::mem::swap(&mut long, &mut short);
        }
        let missing = long.len() - short.len();
        for (axis, other) in (missing..).zip(short) {
            long[axis] = match (long[axis], other) {
                (one, other) if one == other => one,
                (Size::Known(1), other) => other,
                (one, Size::Known(1)) => one,
                _ => self.own(axis),
            };
        }
        Some(long)
    }

    fn shape_of(&self, input: usize) -> Option<PartialShape> {
        Some((self.shape)(*self.inputs.get(input)?))
    }

    fn of_input(&self, classes: &ShapeClasses, input: usize) -> Option<Sizes> {
        let output = *self.inputs.get(input)?;
        Some(classes.sizes_of(output, (self.shape)(output).dims()?))
    }

    /// Returns the sizes of an input; `None` if its rank is not `rank`, because the node then fails in its step.
    fn of_rank(&self, classes: &ShapeClasses, input: usize, rank: usize) -> Option<Sizes> {
        let output = *self.inputs.get(input)?;
        let shape = (self.shape)(output).with_rank(rank).ok()?;
        Some(classes.sizes_of(output, shape.dims()?))
    }

    fn integers_of(&self, input: usize) -> Option<Vec<i64>> {
        (self.integers)(*self.inputs.get(input)?)
    }

    /// Returns the axis that a scalar input holds, if its value is known.
    fn axis(&self, input: usize, rank: usize) -> Option<usize> {
        let [axis] = self.integers_of(input)?[..] else { return None };
        resolve_axis(axis, rank)
    }

    /// Returns the size of an axis of the first output: the known size from shape inference, otherwise a new symbolic
    /// size.
    fn own(&self, axis: usize) -> Size {
        let output = Output::from(self.id);
        (self.shape)(output).dim(axis).map_or(Size::OfAxis(output, axis), Size::Known)
    }

    fn spatial_axes(&self) -> Option<[usize; 2]> {
        Some(if self.node.attr::<String>("data_format").ok()? == "NCHW" { [2, 3] } else { [1, 2] })
    }

    /// Returns the output sizes of an op that slides windows over the rows and columns of images; `reach` is the
    /// numbers of rows and columns of a window.
    fn images(
        &self,
        classes: &ShapeClasses,
        windows: &mut Windows,
        reach: [Option<usize>; 2],
    ) -> Option<Sizes> {
        let integers = |name: &str| self.node.attr::<Vec<i64>>(name).unwrap_or_default();
        let (strides, dilations, pads) =
            (integers("strides"), integers("dilations"), integers("explicit_paddings"));
        let padding = self.node.attr::<String>("padding").ok()?;
        let spatial = self.spatial_axes()?;
        let mut sizes = self.of_rank(classes, 0, 4)?;
        for (axis, size) in sizes.iter_mut().enumerate().skip(1) {
            let Some(at) = spatial.iter().position(|of| *of == axis) else {
                *size = self.own(axis);
                continue;
            };
            let reach = match (padding.as_str(), reach[at].and_then(|n| i64::try_from(n).ok())) {
                ("SAME", _) => Some(1),
                (_, None) => None,
                (kind, Some(filter)) => {
                    let dilation = dilations.get(axis).copied().unwrap_or(1);
                    let reach = filter.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
                    match kind {
                        "VALID" => Some(reach),
                        _ => reach.checked_sub(*pads.get(2 * axis)?)?.checked_sub(*pads.get(2 * axis + 1)?),
                    }
                }
            };
            *size = match (self.own(axis), strides.get(axis), reach) {
                (Size::Known(known), ..) => Size::Known(known),
                (_, Some(stride), Some(reach)) if *stride > 0 => windows.count(*size, *stride, reach)?,
                (own, ..) => own,
            };
        }
        Some(sizes)
    }

    /// Returns the sizes of a batch matrix product, if the batch sizes of both factors are equal.
    fn products(&self, classes: &ShapeClasses) -> Option<Sizes> {
        let [a, b] = [self.of_input(classes, 0)?, self.of_input(classes, 1)?];
        let batch =
            a.len().checked_sub(2).filter(|batch| a.len() == b.len() && a[..*batch] == b[..*batch])?;
        let flips = ["adj_x", "adj_y"].map(|name| self.node.attr::<bool>(name).unwrap_or(false));
        let mut sizes = Sizes::from_slice(&a[..batch]);
        sizes.push(a[batch + usize::from(flips[0])]);
        sizes.push(b[batch + usize::from(!flips[1])]);
        Some(sizes)
    }

    fn reduced(&self, classes: &ShapeClasses) -> Option<Sizes> {
        let (sizes, axes) = (self.of_input(classes, 0)?, self.integers_of(1)?);
        let axes = resolved(&axes, sizes.len())?;
        let keeps = self.node.attr::<bool>("keep_dims").ok()?;
        let of = |(axis, size): (usize, Size)| match (axes.contains(&axis), keeps) {
            (false, _) => Some(size),
            (true, true) => Some(Size::Known(1)),
            (true, false) => None,
        };
        Some(sizes.into_iter().enumerate().filter_map(of).collect())
    }

    /// Returns the output sizes of a GatherV2 node that gathers rows: the sizes of the indices, followed by the sizes
    /// of a row.
    fn gathered(&self, classes: &ShapeClasses) -> Option<Sizes> {
        let (table, mut sizes) = (self.of_input(classes, 0)?, self.of_input(classes, 1)?);
        let is_plain = self.axis(2, table.len())? == 0 && self.node.attr::<i64>("batch_dims").ok()? == 0;
        sizes.extend(table.into_iter().skip(1));
        is_plain.then_some(sizes)
    }

    /// Returns the sizes after a reshape. If input and output have one unknown size each and equal products of the
    /// known sizes, the unknown sizes are equal.
    fn reshaped(&self, classes: &ShapeClasses) -> Option<Sizes> {
        let (from, to) = (self.of_input(classes, 0)?, (self.shape)(self.id.into()));
        let known = |size: &Size| if let Size::Known(known) = size { Some(*known) } else { None };
        let mut open = from.iter().filter(|size| known(size).is_none());
        let (only, None) = (*open.next()?, open.next()) else { return None };
        let beside = from.iter().filter_map(known).try_fold(1usize, usize::checked_mul)?;
        let dims = to.dims()?;
        let beside_then = dims.iter().flatten().copied().try_fold(1usize, usize::checked_mul)?;
        let fits =
            beside == beside_then && beside > 0 && dims.iter().filter(|dim| dim.is_none()).count() == 1;
        fits.then(|| dims.iter().map(|dim| dim.map_or(only, Size::Known)).collect())
    }
}

fn resolved(axes: &[i64], rank: usize) -> Option<Vec<usize>> {
    axes.iter().map(|axis| resolve_axis(*axis, rank)).collect()
}
