//! QuantizedMatMul: products of matrices of 8-bit values, in 32 bits.

use super::level::{Level, build};
use super::range::{Quantized, Range, product_range};
use crate::numeric::product::{Matrix, Threads, product};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;

/// Returns the levels relative to the level of zero.
pub(super) fn centred(levels: &[u8], range: Range) -> Vec<i32> {
    let zero = i32::wrapped(range.unclamped::<u8>(0.0));
    levels.iter().map(|&v| i32::from(v).wrapping_sub(zero)).collect()
}

/// Multiplies the matrices in inputs 0 and 1, each of which is transposed if its flag in `flips` is set.
pub(super) fn matmul(ctx: &mut KernelContext<'_>, flips: [bool; 2]) -> Result<()> {
    let (a, b) =
        (Quantized::<u8>::with_element(ctx, 0, 2, "a")?, Quantized::<u8>::with_element(ctx, 1, 4, "b")?);
    let size = |x: &Quantized<'_, u8>| match *x.tensor.shape().dims() {
        [rows, columns] => Ok([rows, columns]),
        _ => invalid!("In[0] and In[1] must be matrices, not {}", x.tensor.shape()),
    };
    let (a_size, b_size) = (size(&a)?, size(&b)?);
    let [rows, inner] = if flips[0] { [a_size[1], a_size[0]] } else { a_size };
    let [b_inner, columns] = if flips[1] { [b_size[1], b_size[0]] } else { b_size };
    if inner != b_inner {
        invalid!("Matrix size-compatible: In[0]: {}, In[1]: {}", a.tensor.shape(), b.tensor.shape());
    }
    for range in [a.range, b.range] {
        if !range.is_ascending() {
            invalid!(
                "The least number of a range must be less than the greatest: {} and {}",
                range.min,
                range.max
            );
        }
    }
    let range = product_range::<u8, u8>(a.range, b.range);
    let (xs, ys) = (centred(a.levels, a.range), centred(b.levels, b.range));
    let matrix = |values, [rows, columns]: [usize; 2], flip: bool| {
        let matrix = Matrix::new(values, rows, columns, columns);
        if flip { matrix.transposed() } else { matrix }
    };
    let out = build(Shape::new(&[rows, columns])?, |out: &mut [i32]| {
        let (x, y) = (matrix(&xs, a_size, flips[0]), matrix(&ys, b_size, flips[1]));
        product(out, columns, x, y, false, Threads::for_work(rows * inner * columns));
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}
