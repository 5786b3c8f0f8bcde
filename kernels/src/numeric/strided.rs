//! Strided copies between boxes of elements, the common core of transpose, slice, tile, concat and pad.

use super::copied::{CopiedElement, copied};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::Shape;
use smallvec::SmallVec;

/// The positions of a box's elements in a buffer: the first element is at `offset`, and neighbours along axis `i` are
/// `strides[i]` elements apart. Strides may be 0 or negative.
#[derive(Clone, Debug)]
pub struct Layout {
    pub offset: isize,
    pub strides: SmallVec<[isize; 6]>,
}

impl Layout {
    /// Returns the row-major layout from offset 0. The strides of an empty box are arbitrary.
    pub fn packed(dims: &[usize]) -> Layout {
        let mut strides = SmallVec::<[isize; 6]>::from_elem(1, dims.len());
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(dims[i] as isize);
        }
        Layout { offset: 0, strides }
    }
}

/// An axis of a copied box: its size, and its strides in the source and in the destination.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    from: isize,
    to: isize,
}

/// Minimum length of rows that are copied by `memcpy`; shorter rows are copied by a loop, because the call would cost
/// more than it saves.
const SHORT: usize = 4;

/// Copies the elements of a box of the sizes `dims` from `src`, laid out as `from`, to `dst`, laid out as `to`.
///
/// # Errors
/// `Internal` if a layout reaches outside its buffer.
pub(crate) fn copy<E: CopiedElement>(
    dims: &[usize],
    src: &[E],
    from: &Layout,
    dst: &mut [E],
    to: &Layout,
) -> Result<()> {
    if dims.contains(&0) {
        return Ok(());
    }
    check(dims, from, src.len())?;
    check(dims, to, dst.len())?;
    let mut axes = merged(dims, from, to);
    let (mut source, mut target) = (from.offset, to.offset);
    let Some(inner) = innermost(&axes) else {
        dst[target as usize] = src[source as usize].clone();
        return Ok(());
    };
    let inner = axes.remove(inner);
    // If reads are contiguous along one axis and writes along another axis, both axes are transposed in blocks, so that
    // each cache line is fetched once.
    let across = axes.iter().position(|a| a.from == 1 && a.size >= 8);
    let across = across.filter(|_| inner.to == 1 && inner.from != 1 && inner.from != 0 && inner.size >= 8);
    let across = across.map(|i| axes.remove(i));
    let mut counters: SmallVec<[usize; 6]> = SmallVec::from_elem(0, axes.len());
    loop {
        match across {
            Some(across) => transpose(across, inner, src, source, dst, target),
            None => run(inner, src, source, dst, target),
        }
        let mut axis = axes.len();
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            let Axis { size, from, to } = axes[axis];
            counters[axis] += 1;
            if counters[axis] < size {
                source += from;
                target += to;
                break;
            }
            source -= from * (size as isize - 1);
            target -= to * (size as isize - 1);
            counters[axis] = 0;
        }
    }
}

/// Copies a box of the sizes `dims` from `src` to the front of `dst`, in row-major order.
pub(crate) fn pack<E: CopiedElement>(dims: &[usize], src: &[E], from: &Layout, dst: &mut [E]) -> Result<()> {
    copy(dims, src, from, dst, &Layout::packed(dims))
}

fn check(dims: &[usize], layout: &Layout, len: usize) -> Result<()> {
    let (mut low, mut high) = (layout.offset as i128, layout.offset as i128);
    for (&size, &stride) in dims.iter().zip(&layout.strides) {
        let reach = (size as i128 - 1) * stride as i128;
        if reach < 0 { low += reach } else { high += reach }
    }
    if layout.strides.len() != dims.len() || low < 0 || high >= len as i128 {
        return Err(Error::internal(format!("a box {dims:?} at {layout:?} is outside {len} elements")));
    }
    Ok(())
}

/// Returns the axes of size greater than 1; adjacent axes are merged if they form one evenly strided axis in both
/// layouts.
fn merged(dims: &[usize], from: &Layout, to: &Layout) -> SmallVec<[Axis; 6]> {
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
    for ((&size, &from), &to) in dims.iter().zip(&from.strides).zip(&to.strides) {
        if size == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(outer) if outer.from == from * size as isize && outer.to == to * size as isize => {
                *outer = Axis { size: outer.size * size, from, to };
            }
            _ => axes.push(Axis { size, from, to }),
        }
    }
    axes
}

/// Returns the axis of the inner loop: an axis along which reads and writes are contiguous, else an axis along which
/// writes are contiguous, else the longest axis.
fn innermost(axes: &[Axis]) -> Option<usize> {
    let together = axes.iter().position(|a| a.from == 1 && a.to == 1 && a.size >= SHORT);
    let written = axes.iter().position(|a| a.to == 1 && a.size >= SHORT);
    let longest = || (0..axes.len()).max_by_key(|&i| axes[i].size);
    together.or(written).or_else(longest)
}

fn run<E: CopiedElement>(axis: Axis, src: &[E], source: isize, dst: &mut [E], target: isize) {
    let (n, source, target) = (axis.size, source as usize, target as usize);
    match (axis.from, axis.to) {
        (1, 1) => dst[target..target + n].clone_from_slice(&src[source..source + n]),
        (0, 1) => dst[target..target + n].fill(src[source].clone()),
        (from, 1) if from > 0 => {
            let values = src[source..].iter().step_by(from as usize);
            for (d, v) in dst[target..target + n].iter_mut().zip(values) {
                d.clone_from(v);
            }
        }
        (from, 1) => {
            let values = src[..=source].iter().rev().step_by(from.unsigned_abs());
            for (d, v) in dst[target..target + n].iter_mut().zip(values) {
                d.clone_from(v);
            }
        }
        (1, to) if to > 0 => {
            let places = dst[target..].iter_mut().step_by(to as usize);
            for (d, v) in places.zip(&src[source..source + n]) {
                d.clone_from(v);
            }
        }
        (from, to) => {
            for i in 0..n as isize {
                dst[(target as isize + i * to) as usize] = src[(source as isize + i * from) as usize].clone();
            }
        }
    }
}

/// Copies a matrix that is contiguous to read along `across` and contiguous to write along `along`.
fn transpose<E: CopiedElement>(
    across: Axis,
    along: Axis,
    src: &[E],
    source: isize,
    dst: &mut [E],
    target: isize,
) {
    if let (Ok(stride), Ok(step)) = (usize::try_from(along.from), usize::try_from(across.to)) {
        let (from, to) = (&src[source as usize..], &mut dst[target as usize..]);
        return E::transpose_block(from, stride, to, step, [along.size, across.size]);
    }
    for row in 0..across.size as isize {
        run(along, src, source + row * across.from, dst, target + row * across.to);
    }
}

/// The box of elements that an op takes from its first input, and the shape of the output that the box is packed
/// into.
#[derive(Clone, Debug)]
pub struct InputBox {
    /// The output's shape.
    pub shape: Shape,
    /// The sizes of the box along its axes.
    pub dims: SmallVec<[usize; 6]>,
    pub from: Layout,
}

impl InputBox {
    /// Returns the box of all elements of the input in row-major order, packed into an output of shape `shape`.
    pub(crate) fn whole(shape: Shape) -> InputBox {
        let dims: SmallVec<[usize; 6]> = shape.dims().into();
        InputBox { from: Layout::packed(&dims), shape, dims }
    }

    /// Returns whether the box consists of all elements, in row-major order, of an input of `elements` elements.
    pub fn is_whole(&self, elements: usize) -> bool {
        if self.shape.num_elements() != elements {
            return false;
        }
        let packed = Layout::packed(&self.dims);
        let mut axes = self.dims.iter().zip(self.from.strides.iter().zip(&packed.strides));
        elements == 0
            || (self.from.offset == 0 && axes.all(|(&size, (from, packed))| size <= 1 || from == packed))
    }
}

/// A function that determines the box an op takes, from the shape of input 0 and from inputs that are in host memory
/// on every device.
pub(crate) type BoxOfInputs = fn(&KernelContext<'_>) -> Result<InputBox>;

/// Makes the kernel of an op that takes a box of its first input.
pub(crate) fn box_kernel(init: &KernelInit<'_>, take: BoxOfInputs) -> Result<Kernel> {
    copied!(init.input_type(0), E => Kernel::sync(move |ctx| {
        let taken = take(ctx)?;
        set_box_output::<E>(ctx, taken)
    }))
}

/// Sets output 0 to the elements of the box `taken` of input 0; a box of all elements is not copied.
pub(crate) fn set_box_output<E: CopiedElement>(ctx: &mut KernelContext<'_>, taken: InputBox) -> Result<()> {
    let input = ctx.take_input(0)?;
    let out = if taken.is_whole(input.num_elements()) {
        input.reshaped(taken.shape)?
    } else {
        E::build(input.dtype(), taken.shape, |out| pack(&taken.dims, E::view(&input)?, &taken.from, out))?
    };
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the layout of a tensor whose axes are permuted: axis `i` of the box is axis `perm[i]` of the tensor.
pub fn permuted(shape: &Shape, perm: &[usize]) -> Layout {
    let packed = Layout::packed(shape);
    Layout { offset: 0, strides: perm.iter().map(|&axis| packed.strides[axis]).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies a box element by element, as [`Layout`] defines the positions.
    fn copy_elementwise(dims: &[usize], src: &[u32], from: &Layout, dst: &mut [u32], to: &Layout) {
        let packed = Layout::packed(dims);
        for n in 0..dims.iter().product::<usize>() {
            let at = |layout: &Layout| {
                let index = (0..dims.len()).map(|i| (n as isize / packed.strides[i]) % dims[i] as isize);
                (layout.offset + index.zip(&layout.strides).map(|(x, s)| x * s).sum::<isize>()) as usize
            };
            dst[at(to)] = src[at(from)];
        }
    }

    #[test]
    fn every_layout_copies_as_the_definition_says() -> Result<()> {
        let src: Vec<u32> = (0..20_000).collect();
        /// The sizes of a box, and the offset and strides in the source and in the destination.
        type Case = (&'static [usize], isize, &'static [isize], isize, &'static [isize]);
        let cases: &[Case] = &[
            (&[], 3, &[], 5, &[]),
            (&[7], 0, &[1], 0, &[1]),
            (&[7], 6, &[-1], 0, &[1]),
            (&[5], 3, &[0], 1, &[1]),
            (&[6], 0, &[3], 2, &[2]),
            (&[6], 17, &[-3], 12, &[-2]),
            (&[70, 45], 0, &[1, 70], 0, &[45, 1]),
            (&[3, 70, 45], 0, &[3150, 1, 70], 0, &[3150, 45, 1]),
            (&[70, 45], 5, &[1, 73], 7, &[51, 1]),
            (&[70, 45], 3080, &[1, -70], 0, &[45, 1]),
            (&[70, 45], 0, &[1, 70], 3105, &[-45, 1]),
            (&[9, 40, 8], 0, &[1, 9, 360], 0, &[320, 8, 1]),
            (&[2, 3, 4, 5], 0, &[1, 2, 6, 24], 0, &[60, 20, 5, 1]),
            (&[2, 3, 4, 5], 119, &[-60, -20, -5, -1], 0, &[60, 20, 5, 1]),
            (&[4, 1, 5], 0, &[5, 9, 1], 0, &[5, 5, 1]),
            (&[3, 4, 2], 0, &[0, 2, 1], 0, &[8, 2, 1]),
            (&[1000, 2], 0, &[1, 1000], 0, &[2, 1]),
            (&[2, 1000], 0, &[1, 2], 0, &[1000, 1]),
            (&[4, 4], 0, &[4, 1], 1, &[20, 2]),
            (&[0, 4], 0, &[4, 1], 0, &[4, 1]),
        ];
        for &(dims, from_offset, from, to_offset, to) in cases {
            let from = Layout { offset: from_offset, strides: from.into() };
            let to = Layout { offset: to_offset, strides: to.into() };
            let (mut expected, mut actual) = (vec![0; 20_000], vec![0; 20_000]);
            copy_elementwise(dims, &src, &from, &mut expected, &to);
            copy(dims, &src, &from, &mut actual, &to)?;
            assert_eq!(actual, expected, "{dims:?} {from:?} {to:?}");
            let mut wide = vec![0; 20_000];
            copy(dims, &src.iter().map(|&x| u64::from(x)).collect::<Vec<_>>(), &from, &mut wide, &to)?;
            assert!(wide.iter().copied().eq(expected.into_iter().map(u64::from)), "{dims:?} {from:?} {to:?}");
        }
        Ok(())
    }

    #[test]
    fn a_layout_outside_its_buffer_is_an_error() {
        let src = [0u8; 6];
        let packed = Layout::packed(&[2, 3]);
        let far = Layout { offset: 1, strides: [3, 1].as_slice().into() };
        let before = Layout { offset: 0, strides: [3, -1].as_slice().into() };
        assert!(copy(&[2, 3], &src, &far, &mut [0; 6], &packed).is_err());
        assert!(copy(&[2, 3], &src, &before, &mut [0; 6], &packed).is_err());
        assert!(copy(&[2, 3], &src, &packed, &mut [0; 5], &packed).is_err());
    }
}
