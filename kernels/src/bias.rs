//! `BiasAdd` and its gradient: a bias vector is added along the channel axis.

use crate::numeric::dispatch::{NUMBERS, dispatch};
use crate::numeric::scalar::Semiring;
use crate::numeric::simd::{Vector, vectorized};
use crate::numeric::threads::{PARALLEL, for_parts, for_rows};
use crate::numeric::widen::Lane;
use crate::plan::bias::axes;
use bytemuck::{cast_slice, cast_slice_mut};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::ops::bias::data_format;
use graph::ops::window::DataFormat;
use graph::{DType, Shape, Tensor};

const TYPES: &[(&str, &[DType])] = &[("T", NUMBERS)];

/// Evaluates an expression with `$T` as the type in which elements of a numeric dtype are added. Signed integers are
/// added as unsigned integers, because the sums have the same bits, so kernels access elements as the tensors' bytes.
macro_rules! summand {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Half half::f16, BFloat16 half::bf16,
            Int8 u8, Int16 u16, Int32 u32, Int64 u64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64,
            Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("BiasAdd", TYPES, |i| {
        let format = data_format(i.node)?;
        summand!(i.input_type(0), T => Kernel::sync(move |ctx| add(ctx, format, add_to_rows::<T>)))
    }),
    KernelDef::of(
        "BiasAddV1",
        TYPES,
        |i| summand!(i.input_type(0), T => Kernel::sync(|ctx| add(ctx, DataFormat::Nhwc, add_to_rows::<T>))),
    ),
    KernelDef::of("BiasAddGrad", TYPES, |i| {
        let format = data_format(i.node)?;
        summand!(i.input_type(0), T => Kernel::sync(move |ctx| sum(ctx, format, sum_rows::<T>)))
    }),
];

/// A function `(out, x, bias, inner)` that sets `out` to `x`, or to its old value if `x` is `None`, plus the biases,
/// each of which is added to `inner` consecutive elements.
type AddToRows = fn(&mut Tensor, Option<&Tensor>, &Tensor, usize) -> Result<()>;

/// Sets output 0 to input 0 plus the bias of each channel; works in place if no other reader holds input 0.
fn add(ctx: &mut KernelContext<'_>, format: DataFormat, add_to_rows: AddToRows) -> Result<()> {
    let mut value = ctx.take_input(0)?;
    let bias = ctx.take_input(1)?;
    let [_, channels, inner] = axes(value.shape(), format)?;
    if bias.shape().rank() != 1 {
        device::invalid!("Biases must be 1D: {}", bias.shape());
    }
    if bias.num_elements() != channels {
        let which = if format == DataFormat::Nhwc { "last" } else { "channel" };
        device::invalid!(
            "Must provide as many biases as the {which} dimension of the input tensor: {} vs. {}",
            bias.shape(),
            value.shape()
        );
    }
    if value.num_elements() == 0 {
        ctx.set_output(0, value);
        return Ok(());
    }
    if value.is_unique() {
        add_to_rows(&mut value, None, &bias, inner)?;
    } else {
        let mut out = ctx.allocate(value.dtype(), value.shape().clone())?;
        add_to_rows(&mut out, Some(&value), &bias, inner)?;
        value = out;
    }
    ctx.set_output(0, value);
    Ok(())
}

fn add_to_rows<T: Semiring>(out: &mut Tensor, x: Option<&Tensor>, bias: &Tensor, inner: usize) -> Result<()> {
    let bias: &[T] = cast_slice(bias.bytes()?);
    let x: Option<&[T]> = x.map(Tensor::bytes).transpose()?.map(cast_slice);
    let row = bias.len() * inner;
    for_rows(cast_slice_mut::<u8, T>(out.bytes_mut()?), row, |first, out| {
        let x = x.map(|x| &x[first * row..][..out.len()]);
        vectorized(AddRows { out, x, bias, inner });
    });
    Ok(())
}

/// The operands of a bias addition: each bias is added to `inner` consecutive elements of `x`, or of `out` if `x` is
/// `None`.
struct AddRows<'a, T> {
    out: &'a mut [T],
    x: Option<&'a [T]>,
    bias: &'a [T],
    inner: usize,
}

impl<T: Semiring> Vector for AddRows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let AddRows { out, x, bias, inner } = self;
        let row = bias.len() * inner;
        for (i, out) in out.chunks_exact_mut(row).enumerate() {
            match x.map(|x| &x[i * row..][..row]) {
                Some(x) if inner == 1 => {
                    out.iter_mut().zip(x).zip(bias).for_each(|((o, &x), &b)| *o = x.plus(b));
                }
                None if inner == 1 => out.iter_mut().zip(bias).for_each(|(o, &b)| *o = o.plus(b)),
                x => {
                    x.into_iter().for_each(|x| out.copy_from_slice(x));
                    for (plane, &b) in out.chunks_exact_mut(inner).zip(bias) {
                        plane.iter_mut().for_each(|v| *v = v.plus(b));
                    }
                }
            }
        }
    }
}

/// Number of rows per partial sum. The sums of blocks of rows are added, so that the rounding error grows slowly with
/// the number of rows and the result does not depend on the number of threads.
const BLOCK_ROWS: usize = 512;

/// A function `(sums, dy, inner, block_rows)` that sums the rows of `dy`, `block_rows` at a time, into `sums`: `inner`
/// consecutive elements of a row are added to each sum.
type SumRows = fn(&mut Tensor, &Tensor, usize, usize) -> Result<()>;

fn sum(ctx: &mut KernelContext<'_>, format: DataFormat, sum_rows: SumRows) -> Result<()> {
    let dy = ctx.input(0)?;
    let [outer, channels, inner] = axes(dy.shape(), format)?;
    let mut out = Tensor::zeros(dy.dtype(), Shape::new(&[channels])?)?;
    if dy.num_elements() > 0 {
        let block_rows = if inner == 1 { BLOCK_ROWS } else { 1.max(BLOCK_ROWS / inner) }.min(outer);
        sum_rows(&mut out, dy, inner, block_rows)?;
    }
    ctx.set_output(0, out);
    Ok(())
}

fn sum_rows<T: Lane<Wide: Semiring>>(
    out: &mut Tensor,
    dy: &Tensor,
    inner: usize,
    block_rows: usize,
) -> Result<()> {
    let values: &[T] = cast_slice(dy.bytes()?);
    let channels = out.num_elements();
    let block = channels * inner * block_rows;
    let mut partial = vec![T::Wide::ZERO; values.len().div_ceil(block) * channels];
    for_parts(&mut partial, channels, values.len() >= PARALLEL, |i, sums| {
        let rows = &values[i * block..values.len().min((i + 1) * block)];
        vectorized(RowSums { rows, sums, inner });
    });
    let out: &mut [T] = cast_slice_mut(out.bytes_mut()?);
    for (channel, out) in out.iter_mut().enumerate() {
        let sums = partial.iter().skip(channel).step_by(channels);
        *out = T::of_wide(sums.fold(T::Wide::ZERO, |s, &p| s.plus(p)));
    }
    Ok(())
}

/// The operands of a sum over rows: of each row, `inner` consecutive elements are added to each of the `sums`.
struct RowSums<'a, T: Lane> {
    rows: &'a [T],
    sums: &'a mut [T::Wide],
    inner: usize,
}

impl<T: Lane<Wide: Semiring>> Vector for RowSums<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let RowSums { rows, sums, inner } = self;
        let channels = sums.len();
        if inner > 1 {
            for row in rows.chunks_exact(channels * inner) {
                for (s, plane) in sums.iter_mut().zip(row.chunks_exact(inner)) {
                    *s = s.plus(sum_plane(plane));
                }
            }
            return;
        }
        // Four rows are added pairwise before each sum is updated, because two additions to one sum cannot run at the
        // same time.
        let mut fours = rows.chunks_exact(4 * channels);
        for four in &mut fours {
            let (low, high) = four.split_at(2 * channels);
            let ((a, b), (c, d)) = (low.split_at(channels), high.split_at(channels));
            for ((((s, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                let pairs = [a.to_wide().plus(b.to_wide()), c.to_wide().plus(d.to_wide())];
                *s = s.plus(pairs[0].plus(pairs[1]));
            }
        }
        for row in fours.remainder().chunks_exact(channels) {
            sums.iter_mut().zip(row).for_each(|(s, v)| *s = s.plus(v.to_wide()));
        }
    }
}

/// Returns the sum of a plane. Several partial sums side by side let the processor use vector additions.
#[inline(always)]
fn sum_plane<T: Lane<Wide: Semiring>>(plane: &[T]) -> T::Wide {
    const LANES: usize = 16;
    let mut total = T::Wide::ZERO;
    for part in plane.chunks(BLOCK_ROWS * LANES) {
        let mut lanes = [T::Wide::ZERO; LANES];
        let (whole, rest) = part.as_chunks::<LANES>();
        for values in whole {
            lanes.iter_mut().zip(values).for_each(|(l, v)| *l = l.plus(v.to_wide()));
        }
        let sum = lanes.into_iter().fold(T::Wide::ZERO, T::Wide::plus);
        total = total.plus(rest.iter().fold(sum, |s, v| s.plus(v.to_wide())));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;
    use graph::AttrValue;
    use half::f16;

    fn attrs(dtype: DType, format: &str) -> [(&str, AttrValue); 2] {
        [("T", dtype.into()), ("data_format", format.into())]
    }

    fn ramp(dims: &[usize]) -> Result<Tensor> {
        let shape = Shape::new(dims)?;
        let values: Vec<f32> = (0..shape.num_elements()).map(|i| i as f32).collect();
        Ok(Tensor::from_slice(&values, shape)?)
    }

    #[test]
    fn channels_last_and_first() -> Result<()> {
        let bias = Tensor::try_from([10.0f32, 20.0])?;
        let last = run_op("BiasAdd", &[ramp(&[2, 2])?, bias.clone()], &attrs(DType::Float, "NHWC"))?;
        assert_eq!(last[0].values::<f32>()?, [10.0, 21.0, 12.0, 23.0]);
        let v1 = run_op("BiasAddV1", &[ramp(&[2, 2])?, bias.clone()], &[("T", DType::Float.into())])?;
        assert_eq!(v1, last);
        let first = run_op("BiasAdd", &[ramp(&[2, 2, 2])?, bias], &attrs(DType::Float, "NCHW"))?;
        assert_eq!(first[0].values::<f32>()?, [10.0, 11.0, 22.0, 23.0, 14.0, 15.0, 26.0, 27.0]);
        Ok(())
    }

    #[test]
    fn gradients_sum_over_all_but_channels() -> Result<()> {
        let last = run_op("BiasAddGrad", &[ramp(&[2, 2, 2])?], &attrs(DType::Float, "NHWC"))?;
        assert_eq!(last[0].values::<f32>()?, [12.0, 16.0]);
        let first = run_op("BiasAddGrad", &[ramp(&[2, 2, 2])?], &attrs(DType::Float, "NCHW"))?;
        assert_eq!(first[0].values::<f32>()?, [10.0, 18.0]);
        let none = run_op("BiasAddGrad", &[ramp(&[0, 3])?], &attrs(DType::Float, "NHWC"))?;
        assert_eq!(none[0].values::<f32>()?, [0.0; 3]);
        Ok(())
    }

    #[test]
    fn integers_wrap_and_halves_are_summed_wide() -> Result<()> {
        let value = Tensor::full(200u8, Shape::new(&[2, 3])?)?;
        let bias = Tensor::full(100u8, Shape::new(&[3])?)?;
        let out = run_op("BiasAdd", &[value, bias], &attrs(DType::UInt8, "NHWC"))?;
        assert_eq!(out[0].values::<u8>()?, [44; 6]);
        let dy = Tensor::full(f16::ONE, Shape::new(&[4096, 1])?)?;
        let out = run_op("BiasAddGrad", &[dy], &attrs(DType::Half, "NHWC"))?;
        assert_eq!(out[0].values::<f16>()?, [f16::from_f32(4096.0)]);
        Ok(())
    }

    #[test]
    fn long_values_on_several_threads() -> Result<()> {
        for (dims, format) in [([1 << 17, 3], "NHWC"), ([3, 1 << 17], "NHWC")] {
            let value = Tensor::full(0.1f32, Shape::new(&dims)?)?;
            let bias = ramp(&[dims[1]])?;
            let out = run_op("BiasAdd", &[value.clone(), bias.clone()], &attrs(DType::Float, format))?;
            let bias = bias.values::<f32>()?;
            assert!(
                out[0]
                    .values::<f32>()?
                    .chunks(dims[1])
                    .all(|r| r.iter().zip(bias).all(|(v, b)| *v == 0.1 + b))
            );
            let sum = run_op("BiasAddGrad", &[value], &attrs(DType::Float, format))?;
            let expected = 0.1 * dims[0] as f32;
            assert!(sum[0].values::<f32>()?.iter().all(|s| (s / expected - 1.0).abs() < 1e-5));
        }
        let planes = Tensor::full(0.1f32, Shape::new(&[2, 3, 100_000])?)?;
        let sum = run_op("BiasAddGrad", &[planes], &attrs(DType::Float, "NCHW"))?;
        assert!(sum[0].values::<f32>()?.iter().all(|s| (s / 20_000.0 - 1.0).abs() < 1e-5));
        Ok(())
    }

    #[test]
    fn wrong_shapes_are_refused() -> Result<()> {
        let message = |value: &[usize], bias: &[usize]| -> Result<String> {
            let out = run_op("BiasAdd", &[ramp(value)?, ramp(bias)?], &attrs(DType::Float, "NHWC"));
            Ok(out.err().map(|e| e.to_string()).unwrap_or_default())
        };
        assert_eq!(message(&[3], &[3])?, "Input tensor must be at least 2D: [3]");
        assert_eq!(message(&[2, 3], &[2, 1])?, "Biases must be 1D: [2,1]");
        assert_eq!(
            message(&[2, 3], &[2])?,
            "Must provide as many biases as the last dimension of the input tensor: [2] vs. [2,3]"
        );
        let grad = run_op("BiasAddGrad", &[ramp(&[2])?], &attrs(DType::Float, "NHWC"));
        assert!(grad.is_err_and(|e| e.to_string() == "Input tensor must be at least 2D: [2]"));
        Ok(())
    }
}
