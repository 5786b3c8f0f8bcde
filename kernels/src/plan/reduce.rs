//! Axes of reductions and scans.

use device::Result;
use device::kernel::{KernelContext, KernelInit};
use graph::{Shape, Tensor};
use smallvec::SmallVec;

/// The axes and the output shape of a reduction.
#[derive(Debug)]
pub struct ReductionLayout {
    /// The axes of the input, outermost first; each is reduced or retained. Adjacent reduced axes are merged, adjacent
    /// retained axes too, and axes of size 1 are left out.
    pub axes: SmallVec<[Axis; 4]>,
    /// The output's shape.
    pub shape: Shape,
    /// The number of input elements that are combined into an output element.
    pub(crate) count: usize,
}

impl ReductionLayout {
    /// Plans the reduction of `shape` along `axes`; negative axes count from the end.
    pub fn new(shape: &Shape, axes: &Tensor, keep_dims: bool) -> Result<ReductionLayout> {
        let rank = shape.rank();
        let mut reduced = SmallVec::<[bool; 8]>::from_elem(false, rank);
        for axis in axes.to_i64s()? {
            let at = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
            let at = at.and_then(|a| usize::try_from(a).ok()).filter(|&a| a < rank);
            let Some(at) = at else {
                device::invalid!("Invalid reduction dimension ({axis} for input with {rank} dimension(s)");
            };
            if std::mem::replace(&mut reduced[at], true) {
                device::invalid!("Invalid reduction arguments: Axes contains duplicate dimension: {at}");
            }
        }
        let mut merged = SmallVec::<[Axis; 4]>::new();
        let mut dims = SmallVec::<[usize; 4]>::new();
        let mut count = 1usize;
        for (&size, &reduced) in shape.iter().zip(&reduced) {
            if !reduced {
                dims.push(size);
            } else {
                count = count.saturating_mul(size);
                if keep_dims {
                    dims.push(1);
                }
            }
            if size == 1 {
                continue;
            }
            match merged.last_mut() {
                Some(last) if last.reduced == reduced => last.size = last.size.saturating_mul(size),
                _ => merged.push(Axis { size, reduced }),
            }
        }
        Ok(ReductionLayout { axes: merged, shape: Shape::new(&dims)?, count })
    }

    /// Returns whether the reduction combines elements; if not, it only changes the shape.
    pub fn reduces(&self) -> bool {
        self.axes.iter().any(|a| a.reduced)
    }
}

/// A run of adjacent axes that are either all reduced or all retained.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub size: usize,
    pub reduced: bool,
}

/// The elements that each result of a scan (a cumulative op) includes.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// True if the element at the result's own position is excluded.
    pub exclusive: bool,
    /// True if the scan runs from the end of the axis.
    pub reverse: bool,
}

impl Direction {
    /// Reads the attributes `exclusive` and `reverse`.
    pub fn of(init: &KernelInit<'_>) -> Result<Direction> {
        Ok(Direction { exclusive: init.attr("exclusive")?, reverse: init.attr("reverse")? })
    }
}

/// Returns the length of the axis given by input 1, and the stride of the axis in elements.
pub fn scan_lines(ctx: &KernelContext<'_>) -> Result<(usize, usize)> {
    let (x, axis) = (ctx.shape(0)?, ctx.input(1)?);
    if axis.num_elements() != 1 || axis.shape().rank() != 0 {
        device::invalid!("ScanOp: axis must be a scalar, not {}", axis.shape());
    }
    let (rank, axis) = (x.rank() as i64, axis.to_i64s()?[0]);
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if !(0..rank).contains(&at) {
        device::invalid!("ScanOp: Expected scan axis in the range [{}, {rank}), but got {axis}", -rank);
    }
    Ok((x[at as usize], x[at as usize + 1..].iter().product()))
}
