//! Reordering and repeating of elements: transpose, tile, reverse, space to depth and back.

use super::complex::conjugate;
use super::slice::{box_output_fn, take_fn};
use crate::numeric::copied::COPIED;
use crate::numeric::dispatch::{INDEX, NUMBERS, dispatch};
use crate::numeric::scalar::Semiring;
use crate::numeric::strided::box_kernel;
use crate::plan::shape::integers;
use crate::plan::transpose::{blocks, reverse_axes, reverse_where, tile, transpose, transposed};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::ops::transpose::BlockAttrs;
use graph::{DType, Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Transpose", &[("T", COPIED), ("Tperm", INDEX)], |init| box_kernel(init, transpose)),
    KernelDef::of("ConjugateTranspose", &[("T", COPIED), ("Tperm", INDEX)], |init| {
        if init.input_type(0).is_complex() {
            let take = take_fn(init.input_type(0))?;
            return Kernel::sync(move |ctx| {
                let mut x = ctx.take_input(0)?;
                conjugate(&mut x)?;
                let out = take(&x, transposed(x.shape(), ctx.input(1)?)?)?;
                ctx.set_output(0, out);
                Ok(())
            });
        }
        box_kernel(init, transpose)
    }),
    KernelDef::of("InvertPermutation", &[("T", INDEX)], |_| Kernel::sync(invert_permutation)),
    KernelDef::of("Tile", &[("T", COPIED), ("Tmultiples", INDEX)], |init| box_kernel(init, tile)),
    KernelDef::of("TileGrad", &[("T", NUMBERS)], |init| {
        let sum = dispatch!(number, init.input_type(0), T => Ok(sum_of_tiles::<T> as SumOfTiles))?;
        Kernel::sync(move |ctx| {
            let out = sum(ctx.input(0)?, &ctx.input(1)?.to_i64s()?)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("DataFormatDimMap", &[("T", INDEX)], |init| {
        let (from, to) = data_formats(init)?;
        if !matches!(from.len(), 4 | 5) {
            invalid!("Source format must be of length 4 or 5, received src_format = {from}");
        }
        if !matches!(to.len(), 4 | 5) {
            invalid!("Destination format must be of length 4 or 5, received dst_format = {to}");
        }
        let places: Vec<i64> = permutation(&from, &to)?.into_iter().map(|i| i as i64).collect();
        Kernel::sync(move |ctx| {
            let axes = ctx.input(0)?;
            let count = places.len() as i64;
            let mapped: Vec<i64> =
                axes.to_i64s()?.into_iter().map(|axis| places[axis.rem_euclid(count) as usize]).collect();
            let out = integers(axes.dtype(), &mapped)?.reshaped(axes.shape().clone())?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("DataFormatVecPermute", &[("T", INDEX)], |init| {
        let (from, to) = data_formats(init)?;
        permutation(&from, &to)?;
        Kernel::sync(move |ctx| {
            let out = permuted(ctx.input(0)?, &from, &to)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("ReverseV2", &[("T", COPIED), ("Tidx", INDEX)], |init| box_kernel(init, reverse_axes)),
    KernelDef::of("Reverse", &[("T", COPIED)], |init| box_kernel(init, reverse_where)),
    KernelDef::of("SpaceToDepth", &[("T", COPIED)], |init| move_blocks(init, true)),
    KernelDef::of("DepthToSpace", &[("T", COPIED)], |init| move_blocks(init, false)),
];

/// A function `(input, multiples)` that sums the equal parts of a tensor into which multiples of each axis divide it.
type SumOfTiles = fn(&Tensor, &[i64]) -> Result<Tensor>;

fn sum_of_tiles<T: Semiring>(input: &Tensor, multiples: &[i64]) -> Result<Tensor> {
    let shape = input.shape();
    if multiples.len() != shape.rank() {
        invalid!(
            "Expected multiples argument to be a vector of length {} but got length {}",
            shape.rank(),
            multiples.len()
        );
    }
    let mut dims = Vec::with_capacity(shape.rank());
    for (i, (&dim, &multiple)) in shape.iter().zip(multiples).enumerate() {
        let count = usize::try_from(multiple).ok().filter(|&count| count > 0 && dim % count == 0);
        let Some(count) = count else {
            invalid!(
                "Expected input_dim % multiple == 0, but the multiple of axis {i} of size {dim} is {multiple}"
            );
        };
        dims.push(dim / count);
    }
    let mut out = Tensor::zeros(T::DTYPE, Shape::new(&dims)?)?;
    let strides = out.shape().strides();
    let sums = out.values_mut::<T>()?;
    for (i, value) in input.values::<T>()?.iter().enumerate() {
        let (mut rest, mut at) = (i, 0);
        for axis in (0..dims.len()).rev() {
            at += rest % shape[axis] % dims[axis] * strides[axis];
            rest /= shape[axis];
        }
        sums[at] = sums[at].plus(*value);
    }
    Ok(out)
}

fn data_formats(init: &KernelInit<'_>) -> Result<(String, String)> {
    Ok((init.attr("src_format")?, init.attr("dst_format")?))
}

/// Returns the position in the format `to` of each character of the format `from`; an error if the formats do not
/// consist of the same characters, each once.
fn permutation(from: &str, to: &str) -> Result<Vec<usize>> {
    let (from_axes, to_axes) = (from.as_bytes(), to.as_bytes());
    let place = |axis: &u8| match to_axes.iter().filter(|other| *other == axis).count() {
        1 => to_axes.iter().position(|other| other == axis),
        _ => None,
    };
    let places: Option<Vec<usize>> = from_axes.iter().map(place).collect();
    match places {
        Some(places) if from_axes.len() == to_axes.len() => Ok(places),
        _ => invalid!("Destination and source format must determine a permutation, got {from} and {to}"),
    }
}

/// Returns values for the axes of the format `from`, reordered to the axes of the format `to`. A vector has one value
/// for each axis, a matrix two. If there are values for two axes less, they are those of the spatial axes.
fn permuted(values: &Tensor, from: &str, to: &str) -> Result<Tensor> {
    let (shape, axes) = (values.shape(), from.len());
    let count = match shape.dims() {
        [n] => {
            if *n != axes && n + 2 != axes {
                invalid!(
                    "1D input must be of size {} or {axes}, but got shape {shape}",
                    axes.saturating_sub(2)
                );
            }
            *n
        }
        [n, width] => {
            if *n != axes && n + 2 != axes {
                invalid!(
                    "First dimension of 2D input must be of size {} or {axes}, but got shape {shape}",
                    axes.saturating_sub(2)
                );
            }
            if *width != 2 {
                invalid!("Second dimension of 2D input must be of size 2, but got shape {shape}");
            }
            *n
        }
        _ => invalid!("input must be a vector or 2D tensor, but got shape {shape}"),
    };
    let kept = |format: &str| -> String {
        format.chars().filter(|axis| count == axes || !matches!(axis, 'N' | 'C')).collect()
    };
    let (from, to) = (kept(from), kept(to));
    if from.len() != count || to.len() != count {
        invalid!("Format specifier must contain H and W for 2D values, got {from} and {to}");
    }
    let flat = values.to_i64s()?;
    let width = flat.len().checked_div(count).unwrap_or(1);
    let mut out = vec![0; flat.len()];
    for (i, place) in permutation(&from, &to)?.into_iter().enumerate() {
        out[place * width..(place + 1) * width].copy_from_slice(&flat[i * width..(i + 1) * width]);
    }
    Ok(integers(values.dtype(), &out)?.reshaped(shape.clone())?)
}

fn invert_permutation(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    if input.shape().rank() != 1 {
        invalid!("invert_permutation expects a 1D vector.");
    }
    let perm = input.to_i64s()?;
    let mut inverse = vec![-1i64; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        let Some(place) = usize::try_from(p).ok().and_then(|p| inverse.get_mut(p)) else {
            invalid!("{p} is not between 0 and {}", perm.len());
        };
        if *place != -1 {
            invalid!("{p} is duplicated in the input.");
        }
        *place = i as i64;
    }
    let out = match input.dtype() {
        DType::Int64 => Tensor::vector(&inverse)?,
        _ => Tensor::vector(&inverse.iter().map(|&i| i as i32).collect::<Vec<_>>())?,
    };
    ctx.set_output(0, out);
    Ok(())
}

fn move_blocks(init: &KernelInit<'_>, to_depth: bool) -> Result<Kernel> {
    let attrs = BlockAttrs::of(init.node)?;
    let set_output = box_output_fn(init.input_type(0))?;
    Kernel::sync(move |ctx| {
        let taken = blocks(ctx, attrs, to_depth)?;
        set_output(ctx, taken)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_summed() -> Result<()> {
        let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], Shape::new(&[2, 4])?)?;
        let sums = sum_of_tiles::<f32>(&x, &[2, 2])?;
        assert_eq!(
            sums,
            Tensor::from_slice(&[1f32 + 3.0 + 5.0 + 7.0, 2.0 + 4.0 + 6.0 + 8.0], Shape::new(&[1, 2])?)?
        );
        let error = sum_of_tiles::<f32>(&x, &[2, 3]).map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("the multiple of axis 1 of size 4 is 3")));
        Ok(())
    }
}
