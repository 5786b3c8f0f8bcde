//! Common code of GPU kernels: type names, memory of inputs and outputs, and iteration over tensors.

use crate::engine::driver::Address;
use crate::engine::{Arguments, Function, KernelStream, Source, block, engine_of};
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

/// Dtypes of arithmetic kernels. Tensors of `int32` stay on the host, as in TensorFlow, because most of them
/// are shapes.
pub(super) const NUMBERS: &[DType] = &[Float, Double, Half, BFloat16, Int64];

/// Dtypes of kernels that only copy elements.
pub(super) const COPIED: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

/// Dtypes of kernels that compare elements by order.
pub(super) const ORDERED: &[DType] =
    &[Float, Double, Half, BFloat16, Int8, Int16, Int64, UInt8, UInt16, UInt32, UInt64];

/// Dtypes for which the GPU has an atomic addition, so that several threads can add to one element without a
/// compare-and-swap loop.
pub(super) const SUMMED: &[DType] = &[Float, Double];

/// Returns the dtype that kernels compute in: `Wide` of the `.cu` files.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        Half | BFloat16 => Float,
        dtype => dtype,
    }
}

/// Returns the name of a dtype in the `.cu` files.
///
/// # Errors
/// `Unimplemented` for a dtype that the `.cu` files do not have.
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

/// Like [`type_name`], for kernels that only copy elements: an unsigned type of the same size.
pub(super) fn copied_type_name(dtype: DType) -> Result<&'static str> {
    Ok(match dtype.size() {
        Some(1) => "u8",
        Some(2) => "u16",
        Some(4) => "u32",
        Some(8) => "u64",
        Some(16) => "u128",
        _ => return Err(Error::unimplemented(format!("no GPU kernel for elements of type {dtype}"))),
    })
}

/// Loads a kernel of a file for the node's device.
pub(super) fn function(init: &KernelInit<'_>, source: &Source, name: String) -> Result<Arc<Function>> {
    engine_of(init.device)?.function(source.program(name))
}

/// Returns the stream that the kernel enqueues to.
pub(super) fn kernel_stream<'a>(ctx: &KernelContext<'a>) -> Result<KernelStream<'a>> {
    KernelStream::of(ctx.device())
}

/// Uploads a tensor that the kernel has made on the host; such a kernel cannot be captured.
pub(super) fn upload(ctx: &KernelContext<'_>, tensor: &Tensor) -> Result<DeviceTensor> {
    engine_of(ctx.device())?.upload(&ctx.node().name, tensor)
}

/// Allocates memory for an output.
pub(super) fn allocate(ctx: &KernelContext<'_>, dtype: DType, shape: Shape) -> Result<DeviceTensor> {
    kernel_stream(ctx)?.allocate(&ctx.node().name, dtype, shape)
}

/// Like [`allocate`], but returns the memory of an input if the input has the output's dtype and size, and no
/// other tensor shares its memory.
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

/// Returns whether no other tensor shares the tensor's memory.
pub(super) fn is_unique(tensor: &mut DeviceTensor) -> bool {
    Arc::get_mut(&mut tensor.memory).is_some()
}

/// Returns a tensor's address for a kernel that reads it and is enqueued next.
pub(super) fn read(tensor: &DeviceTensor) -> Result<Address> {
    block(tensor)?.read()
}

/// Returns a tensor's address for a kernel that writes it and is enqueued next.
pub(super) fn write(tensor: &DeviceTensor) -> Result<Address> {
    block(tensor)?.write()
}

/// Largest number of axes in a kernel's iteration.
pub(super) const MOST_AXES: usize = 8;

/// The axes of a joint iteration over `N` tensors: `Axes<N>` of the `.cu` files.
#[derive(Clone, Debug)]
pub(super) struct Axes<const N: usize>(SmallVec<[(usize, [isize; N]); 4]>);

impl<const N: usize> Axes<N> {
    /// Returns the iteration over `axes`, outermost first; an axis is given as its size and the stride of each
    /// tensor. Axes that are contiguous in all tensors are merged.
    ///
    /// # Errors
    /// `Unimplemented` for more than [`MOST_AXES`] axes.
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

    /// Like [`Axes::new`], without merging axes.
    pub(super) fn apart(axes: impl IntoIterator<Item = (usize, [isize; N])>) -> Result<Axes<N>> {
        let axes: SmallVec<[(usize, [isize; N]); 4]> = axes.into_iter().collect();
        if axes.len() > MOST_AXES {
            return Err(Error::unimplemented(format!(
                "GPU kernels support at most {MOST_AXES} axes, not {}",
                axes.len()
            )));
        }
        Ok(Axes(axes))
    }

    /// Returns whether the iteration accesses the elements of all tensors one after the other in memory order.
    pub(super) fn is_flat(&self) -> bool {
        match self.0.as_slice() {
            [] => true,
            [(_, steps)] => steps.iter().all(|&step| step == 1),
            _ => false,
        }
    }

    /// Returns the iteration over packs of `pack` elements, which begins at the offsets `starts` in the
    /// tensors; `None` if the elements of a pack are not contiguous, or a pack is not aligned to its size.
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

    /// Returns the size of the innermost axis; 1 without axes.
    pub(super) fn innermost(&self) -> usize {
        self.0.last().map_or(1, |(size, _)| *size)
    }

    /// Returns the fields of the `Axes` structure of the `.cu` files: rank, sizes, and strides of each tensor.
    pub(super) fn words(&self) -> impl Iterator<Item = i64> {
        let sizes = (0..MOST_AXES).map(|axis| self.0.get(axis).map_or(1, |(size, _)| *size as i64));
        let strides = (0..N).flat_map(move |t| {
            (0..MOST_AXES).map(move |axis| self.0.get(axis).map_or(0, |(_, steps)| steps[t] as i64))
        });
        [self.0.len() as i64].into_iter().chain(sizes).chain(strides)
    }
}

/// Returns the strides of a tensor of shape `from` along the axes of shape `to`, to which it broadcasts; 0
/// along axes that are repeated.
pub(super) fn repeated(from: &Shape, to: &Shape) -> SmallVec<[isize; 6]> {
    let strides = from.strides();
    let missing = to.rank().saturating_sub(from.rank());
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(i) if from[i] != 1 => strides[i] as isize,
        _ => 0,
    };
    (0..to.rank()).map(step).collect()
}

/// Enqueues a kernel for `count` elements.
pub(super) fn launch(
    ctx: &KernelContext<'_>,
    function: &Function,
    count: usize,
    arguments: Arguments,
) -> Result<()> {
    kernel_stream(ctx)?.launch(function, count, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_axes_are_merged() -> Result<()> {
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
    fn contiguous_elements_are_indexed_in_packs() -> Result<()> {
        let axes = Axes::new([(3, [20, 8]), (8, [1, 1])])?;
        let packed = axes.in_packs(4, &[4, 0]).ok_or_else(|| device::Error::internal("no packs"))?;
        let words: Vec<i64> = packed.words().collect();
        assert_eq!((&words[..3], &words[9..11], &words[17..19]), (&[2, 3, 2][..], &[5, 1][..], &[2, 1][..]));
        assert!(axes.in_packs(8, &[0, 0]).is_none() && axes.in_packs(4, &[2, 0]).is_none());
        assert!(Axes::new([(3, [20, 8]), (8, [1, 2])])?.in_packs(4, &[0, 0]).is_none());
        Ok(())
    }

    #[test]
    fn broadcast_axes_have_stride_zero() -> Result<()> {
        let shape = |dims: &[usize]| Shape::new(dims);
        assert_eq!(repeated(&shape(&[3, 1])?, &shape(&[2, 3, 4])?).as_slice(), [0, 1, 0]);
        assert_eq!(repeated(&Shape::scalar(), &shape(&[2])?).as_slice(), [0]);
        Ok(())
    }
}
