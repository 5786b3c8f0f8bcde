//! Fourier transforms over the innermost axes.

use super::broadcast::{arrived, sizes};
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "FFT",
        inputs: &["input: Tcomplex"],
        outputs: &["output: Tcomplex"],
        attrs: &["Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| same(infer, 1),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_transform_gradient(scope, forward, dz, "IFFT", 1)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "IFFT",
        inputs: &["input: Tcomplex"],
        outputs: &["output: Tcomplex"],
        attrs: &["Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| same(infer, 1),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_transform_gradient(scope, forward, dz, "FFT", 1)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "RFFT",
        inputs: &["input: Treal", "fft_length: int32"],
        outputs: &["output: Tcomplex"],
        attrs: &["Treal: {float, double} = float", "Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| real_transform_shape(infer, 1, true),
        ..OpDef::NEW
    },
    OpDef {
        name: "IRFFT",
        inputs: &["input: Tcomplex", "fft_length: int32"],
        outputs: &["output: Treal"],
        attrs: &["Treal: {float, double} = float", "Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| real_transform_shape(infer, 1, false),
        ..OpDef::NEW
    },
    OpDef {
        name: "FFT2D",
        inputs: &["input: Tcomplex"],
        outputs: &["output: Tcomplex"],
        attrs: &["Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| same(infer, 2),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_transform_gradient(scope, forward, dz, "IFFT2D", 2)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "IFFT2D",
        inputs: &["input: Tcomplex"],
        outputs: &["output: Tcomplex"],
        attrs: &["Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| same(infer, 2),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_transform_gradient(scope, forward, dz, "FFT2D", 2)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "RFFT2D",
        inputs: &["input: Treal", "fft_length: int32"],
        outputs: &["output: Tcomplex"],
        attrs: &["Treal: {float, double} = float", "Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| real_transform_shape(infer, 2, true),
        ..OpDef::NEW
    },
    OpDef {
        name: "IRFFT2D",
        inputs: &["input: Tcomplex", "fft_length: int32"],
        outputs: &["output: Treal"],
        attrs: &["Treal: {float, double} = float", "Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| real_transform_shape(infer, 2, false),
        ..OpDef::NEW
    },
    OpDef {
        name: "FFT3D",
        inputs: &["input: Tcomplex"],
        outputs: &["output: Tcomplex"],
        attrs: &["Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| same(infer, 3),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_transform_gradient(scope, forward, dz, "IFFT3D", 3)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "IFFT3D",
        inputs: &["input: Tcomplex"],
        outputs: &["output: Tcomplex"],
        attrs: &["Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| same(infer, 3),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_transform_gradient(scope, forward, dz, "FFT3D", 3)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "RFFT3D",
        inputs: &["input: Treal", "fft_length: int32"],
        outputs: &["output: Tcomplex"],
        attrs: &["Treal: {float, double} = float", "Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| real_transform_shape(infer, 3, true),
        ..OpDef::NEW
    },
    OpDef {
        name: "IRFFT3D",
        inputs: &["input: Tcomplex", "fft_length: int32"],
        outputs: &["output: Treal"],
        attrs: &["Treal: {float, double} = float", "Tcomplex: {complex64, complex128} = complex64"],
        infer: |infer| real_transform_shape(infer, 3, false),
        ..OpDef::NEW
    },
];

fn at_least(infer: &Infer<'_>, axes: usize) -> Result<PartialShape> {
    let shape = infer.input(0);
    match shape.rank() {
        Some(rank) if rank < axes => {
            crate::invalid!("Shape must be at least rank {axes} but is rank {rank}")
        }
        _ => Ok(shape),
    }
}

fn same(infer: &mut Infer<'_>, axes: usize) -> Result<()> {
    let shape = at_least(infer, axes)?;
    infer.set(0, shape);
    Ok(())
}

/// Infers the shape of a Fourier transform from or to real numbers. Input 1 holds the lengths of the innermost axes;
/// the complex tensor stores only half of the last axis.
fn real_transform_shape(infer: &mut Infer<'_>, axes: usize, forward: bool) -> Result<()> {
    let shape = at_least(infer, axes)?;
    infer.input_of_rank(1, 1)?;
    let Some(dims) = shape.dims() else { return Ok(()) };
    let lengths = infer.value(1).map(|lengths| lengths.to_i64s()).transpose()?;
    let mut out: Vec<Dim> = dims[..dims.len() - axes].to_vec();
    for axis in 0..axes {
        let length = lengths.as_ref().and_then(|l| l.get(axis)).and_then(|&l| usize::try_from(l).ok());
        let is_half = forward && axis + 1 == axes;
        out.push(length.map(|l| if is_half { half_of(l) } else { l }));
    }
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

/// Returns the gradient of a transform: the opposite transform, scaled because the inverse transform divides by the
/// number of elements.
fn opposite_transform_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    inverse: &str,
    axes: usize,
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let dtype = scope.dtype(dz);
    let dims = scope.shape_of(dz);
    let last = scope.op("StridedSlice").input(dims).input(scope.constant_vector(&[-(axes as i32)]));
    let last = last.input(scope.constant_vector(&[0i32])).input(scope.constant_vector(&[1i32]));
    let last = last.attr("end_mask", 1i64).output();
    let count = scope.op("Prod").input(last).input(sizes(scope, [0])?).output();
    let call = scope.op("Cast").input(count).attr("SrcT", DType::Int32).attr("DstT", dtype);
    let (count, turned) = (call.output(), scope.op(inverse).input(dz).output());
    let scaled = if inverse.starts_with('I') { scope.mul(turned, count) } else { scope.div(turned, count) };
    Ok(vec![Some(scaled)])
}

/// Returns the number of complex elements that represent the transform of `length` real numbers.
pub fn half_of(length: usize) -> usize {
    if length == 0 { 0 } else { length / 2 + 1 }
}
