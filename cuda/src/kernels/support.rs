//! What kernels of GPUs have in common: the names of types, the memory of inputs and outputs, how tensors are walked.

use crate::engine::driver::Address;
use crate::engine::{Arguments, Function, Lane, Source, block, engine_of};
use device::DeviceTensor;
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::DType::{
    self, BFloat16, Bool, Complex64, Complex128, Double, Float, Half, Int8, Int16, Int32, Int64, UInt8,
    UInt16, UInt32, UInt64,
};
use graph::{Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// Types that kernels compute with. What is of `int32` stays on the host, as in TensorFlow: most of it is shapes.
pub(super) const NUMBERS: &[DType] = &[Float, Double, Half, BFloat16, Int64];

/// Types that kernels only move.
pub(super) const MOVED: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

/// Types that have an order.
pub(super) const ORDERED: &[DType] =
    &[Float, Double, Half, BFloat16, Int8, Int16, Int64, UInt8, UInt16, UInt32, UInt64];

/// Types that several threads can add to one element of, without a loop.
pub(super) const SUMMED: &[DType] = &[Float, Double];

/// What kernels compute in: `Wide` of the `.cu` files.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        Half | BFloat16 => Float,
        dtype => dtype,
    }
}

/// A type as the `.cu` files call it.
///
/// # Errors
/// `Unimplemented` if they know none.
pub(super) fn type_name(dtype: DType) -> Result<&'static str> {
    Ok(match dtype {
        Float => "float",
        Double => "double",
        Half => "f16",
        BFloat16 => "bf16",
        Bool => "bool",
        Int8 => "i8",
        Int16 => "i16",
        Int32 => "i32",
        Int64 => "i64",
        UInt8 => "u8",
        UInt16 => "u16",
        UInt32 => "u32",
        UInt64 => "u64",
        Complex64 => "c64",
        Complex128 => "c128",
        other => return Err(Error::unimplemented(format!("no GPU kernel for elements of type {other}"))),
    })
}

/// As [`type_name`], for kernels that only move elements: by their size.
pub(super) fn moved_type_name(dtype: DType) -> Result<&'static str> {
    Ok(match dtype.size() {
        Some(1) => "u8",
        Some(2) => "u16",
        Some(4) => "u32",
        Some(8) => "u64",
        Some(16) => "u128",
        _ => return Err(Error::unimplemented(format!("no GPU kernel for elements of type {dtype}"))),
    })
}

/// The kernel of a file, compiled for the node's device.
pub(super) fn function(init: &KernelInit<'_>, source: &Source, name: String) -> Result<Arc<Function>> {
    engine_of(&**init.device)?.function(source.program(name))
}

/// Where the kernel enqueues.
pub(super) fn lane<'a>(ctx: &KernelContext<'a>) -> Result<Lane<'a>> {
    Lane::of(&**ctx.device())
}

/// What the kernel has made on the host, in the GPU's memory: such a kernel is not captured.
pub(super) fn upload(ctx: &KernelContext<'_>, tensor: &Tensor) -> Result<DeviceTensor> {
    engine_of(&**ctx.device())?.upload(&ctx.node().name, tensor)
}

/// Memory for an output.
pub(super) fn allocate(ctx: &KernelContext<'_>, dtype: DType, shape: Shape) -> Result<DeviceTensor> {
    lane(ctx)?.allocate(&ctx.node().name, dtype, shape)
}

/// As [`allocate`], in this input's memory if nobody else reads it and its size is the same.
pub(super) fn allocate_or_reuse(
    ctx: &KernelContext<'_>,
    input: &mut DeviceTensor,
    dtype: DType,
    shape: Shape,
) -> Result<DeviceTensor> {
    let fits = input.dtype == dtype && input.shape.num_elements() == shape.num_elements();
    if fits && is_unique(input) {
        return Ok(DeviceTensor { dtype, shape, memory: input.memory.clone() });
    }
    allocate(ctx, dtype, shape)
}

/// Whether nobody else holds the tensor's memory.
pub(super) fn is_unique(tensor: &mut DeviceTensor) -> bool {
    Arc::get_mut(&mut tensor.memory).is_some()
}

/// Where a tensor is, for a kernel that is enqueued next and reads it.
pub(super) fn read(tensor: &DeviceTensor) -> Result<Address> {
    block(tensor)?.read()
}

/// Where a tensor is, for a kernel that is enqueued next and writes it.
pub(super) fn write(tensor: &DeviceTensor) -> Result<Address> {
    block(tensor)?.write()
}

/// Axes that a kernel can walk.
pub(super) const MOST_AXES: usize = 8;

/// How a kernel walks `N` tensors together: `Axes<N>` of the `.cu` files.
#[derive(Clone, Debug)]
pub(super) struct Axes<const N: usize>(SmallVec<[(usize, [isize; N]); 4]>);

impl<const N: usize> Axes<N> {
    /// Of axes from the outermost on: sizes, and each tensor's elements from one index to the next. Axes that all
    /// tensors run through as one are one.
    ///
    /// # Errors
    /// `Unimplemented` for more axes than kernels walk.
    pub(super) fn new(axes: impl IntoIterator<Item = (usize, [isize; N])>) -> Result<Axes<N>> {
        let mut merged: SmallVec<[(usize, [isize; N]); 4]> = SmallVec::new();
        for (size, steps) in axes {
            if size == 1 {
                continue;
            }
            match merged.last_mut() {
                Some((outer, before))
                    if (0..N).all(|t| before[t] == steps[t].wrapping_mul(size as isize)) =>
                {
                    *outer = outer.saturating_mul(size);
                    *before = steps;
                }
                _ => merged.push((size, steps)),
            }
        }
        Axes::apart(merged)
    }

    /// As [`Axes::new`], each axis by itself.
    pub(super) fn apart(axes: impl IntoIterator<Item = (usize, [isize; N])>) -> Result<Axes<N>> {
        let axes: SmallVec<[(usize, [isize; N]); 4]> = axes.into_iter().collect();
        if axes.len() > MOST_AXES {
            return Err(Error::unimplemented(format!(
                "kernels of GPUs walk no more than {MOST_AXES} axes, not {}",
                axes.len()
            )));
        }
        Ok(Axes(axes))
    }

    /// Whether each tensor is walked from its first element to its last.
    pub(super) fn is_flat(&self) -> bool {
        match self.0.as_slice() {
            [] => true,
            [(_, steps)] => steps.iter().all(|&step| step == 1),
            _ => false,
        }
    }

    /// The same walk over packs of so many elements, from these starts on; `None` where the elements of a pack are not
    /// neighbours, or packs do not begin at multiples of their size.
    pub(super) fn in_packs(&self, pack: usize, starts: &[isize; N]) -> Option<Axes<N>> {
        let size = pack as isize;
        let are_whole = |steps: &[isize; N]| steps.iter().all(|step| step % size == 0);
        let ((inner, ones), outer) = self.0.split_last()?;
        let fits = are_whole(starts)
            && inner % pack == 0
            && ones.iter().all(|&step| step == 1)
            && outer.iter().all(|(_, steps)| are_whole(steps));
        fits.then(|| {
            let outer = outer.iter().map(|&(count, steps)| (count, steps.map(|step| step / size)));
            Axes(outer.chain([(inner / pack, *ones)]).collect())
        })
    }

    /// The innermost axis's size; 1 without axes.
    pub(super) fn innermost(&self) -> usize {
        self.0.last().map_or(1, |(size, _)| *size)
    }

    /// Rank, sizes, strides of each tensor.
    pub(super) fn words(&self) -> impl Iterator<Item = i64> {
        let sizes = (0..MOST_AXES).map(|axis| self.0.get(axis).map_or(1, |(size, _)| *size as i64));
        let strides = (0..N).flat_map(move |t| {
            (0..MOST_AXES).map(move |axis| self.0.get(axis).map_or(0, |(_, steps)| steps[t] as i64))
        });
        [self.0.len() as i64].into_iter().chain(sizes).chain(strides)
    }
}

/// Where a tensor's elements are along the axes of a shape that it is broadcast to.
pub(super) fn repeated(from: &Shape, to: &Shape) -> SmallVec<[isize; 6]> {
    let strides = from.strides();
    let missing = to.rank().saturating_sub(from.rank());
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(i) if from[i] != 1 => strides[i] as isize,
        _ => 0,
    };
    (0..to.rank()).map(step).collect()
}

/// Enqueues a kernel whose threads each take elements, with an output's address first among the arguments that
/// `arguments` is given to add to.
pub(super) fn launch(
    ctx: &KernelContext<'_>,
    function: &Function,
    count: usize,
    arguments: Arguments,
) -> Result<()> {
    lane(ctx)?.launch(function, count, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_run_on_are_one() -> Result<()> {
        let axes = Axes::new([(2, [12, 12]), (3, [4, 4]), (1, [7, 9]), (4, [1, 1])])?;
        assert!(axes.is_flat());
        assert_eq!(axes.words().take(2).collect::<Vec<_>>(), [1, 24]);
        let transposed = Axes::new([(3, [1, 2]), (2, [3, 1])])?;
        assert!(!transposed.is_flat());
        assert_eq!((axes.innermost(), transposed.innermost()), (24, 2));
        let words: Vec<i64> = transposed.words().collect();
        assert_eq!(words.len(), 1 + 8 * 3);
        assert_eq!(
            (words[0], &words[1..3], &words[9..11], &words[17..19]),
            (2, &[3, 2][..], &[1, 3][..], &[2, 1][..])
        );
        assert!(Axes::<1>::new([])?.is_flat());
        assert_eq!(Axes::<1>::new([])?.innermost(), 1);
        let many = (0..9).map(|i| (2, [if i % 2 == 0 { 0 } else { 1 << i }]));
        assert!(Axes::new(many).is_err_and(|e| e.code() == graph::Code::Unimplemented));
        Ok(())
    }

    #[test]
    fn neighbours_are_walked_in_packs() -> Result<()> {
        let axes = Axes::new([(3, [20, 8]), (8, [1, 1])])?;
        let packed = axes.in_packs(4, &[4, 0]).ok_or_else(|| device::Error::internal("no packs"))?;
        let words: Vec<i64> = packed.words().collect();
        assert_eq!((&words[..3], &words[9..11], &words[17..19]), (&[2, 3, 2][..], &[5, 1][..], &[2, 1][..]));
        assert!(axes.in_packs(8, &[0, 0]).is_none() && axes.in_packs(4, &[2, 0]).is_none());
        assert!(Axes::new([(3, [20, 8]), (8, [1, 2])])?.in_packs(4, &[0, 0]).is_none());
        Ok(())
    }

    #[test]
    fn a_tensor_repeats_along_what_it_lacks() -> Result<()> {
        let shape = |dims: &[usize]| Shape::new(dims);
        assert_eq!(repeated(&shape(&[3, 1])?, &shape(&[2, 3, 4])?).as_slice(), [0, 1, 0]);
        assert_eq!(repeated(&Shape::scalar(), &shape(&[2])?).as_slice(), [0]);
        Ok(())
    }
}
