//! Element-wise arithmetic of two operands, with broadcasting.

use crate::numeric::broadcast;
use crate::numeric::broadcast::{Binary, OperandBytes, Plan, ZipFunction, zip_each, zip_run, zip_tensors};
use crate::numeric::dispatch::{COMPLEX, FLOATS, FRACTIONS, INTEGERS, NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Analytic, Arithmetic, Integer, Number, Real};
use crate::numeric::threads::{BLOCK, Cost, chunk_size, for_chunks};
use crate::numeric::widen::{Float, Lane, LaneType, dispatch_unsigned};
use crate::plan::tensor_list;
use bytemuck::cast_slice_mut;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::Tensor;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Defines functions of two elements; `kind` is the trait of the element types.
macro_rules! functions {
    ($($name:ident: $kind:ident, |$x:ident, $y:ident| $value:expr;)*) => {$(
        pub(super) struct $name;
        impl<T: $kind> Binary<T> for $name {
            type Out = T;
            #[inline(always)]
            fn apply($x: T, $y: T) -> T { $value }
        }
    )*};
}

functions! {
    Add: Arithmetic, |x, y| x.plus(y);
    Sub: Arithmetic, |x, y| x.minus(y);
    Mul: Arithmetic, |x, y| x.times(y);
    Div: Arithmetic, |x, y| x.over(y);
    FloorDiv: Number, |x, y| x.floor_div(y);
    FloorMod: Number, |x, y| x.floor_mod(y);
    TruncateDiv: Number, |x, y| x.truncate_div(y);
    TruncateMod: Number, |x, y| x.truncate_mod(y);
    Maximum: Number, |x, y| x.maximum(y);
    Minimum: Number, |x, y| x.minimum(y);
    Pow: Number, |x, y| x.power(y);
    SquaredDifference: Arithmetic, |x, y| { let d = x.minus(y); d.times(d.conjugated()) };
    DivNoNan: Arithmetic, |x, y| if y == T::ZERO { T::ZERO } else { x.over(y) };
    MulNoNan: Arithmetic, |x, y| if y == T::ZERO { T::ZERO } else { x.times(y) };
    Atan2: Real, |y, x| y.atan2(x);
    Xdivy: Arithmetic, |x, y| if x == T::ZERO { T::ZERO } else { x.over(y) };
    Xlogy: Analytic, |x, y| if x == T::ZERO { T::ZERO } else { x.times(y.ln()) };
    ComplexPow: Analytic, |x, y| x.powc(y);
    Xlog1py: Analytic, |x, y| if x == T::ZERO { T::ZERO } else { x.times(y.ln_1p()) };
    And: Integer, |x, y| x & y;
    Or: Integer, |x, y| x | y;
    Xor: Integer, |x, y| x ^ y;
    ShiftLeft: Integer, |x, y| x.shifted_left(y);
    ShiftRight: Integer, |x, y| x.shifted_right(y);
}

/// Floor or truncating division of half-precision numbers. The quotient is rounded to half precision before its
/// fraction is dropped, like in a division in half precision; this changes quotients just below a whole number.
struct HalfQuotient<N, F>(PhantomData<(N, F)>);

impl<N: Float<Wide = f32>, F: Binary<f32, Out = f32>> Binary<f32> for HalfQuotient<N, F> {
    type Out = f32;
    #[inline(always)]
    fn apply(x: f32, y: f32) -> f32 {
        F::apply(N::of_wide(x / y).to_wide(), 1.0)
    }
}

/// Defines the half-precision kernels of a `division!` op, with rounded quotients.
macro_rules! whole_division {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", &[Half, BFloat16])], |init| match init.input_type(0) {
            Half => broadcast::kernel::<f16, f16, HalfQuotient<f16, $Function>>(Cost::Expensive),
            _ => broadcast::kernel::<bf16, bf16, HalfQuotient<bf16, $Function>>(Cost::Expensive),
        })
    };
}

macro_rules! kernel {
    ($op:literal, $group:ident, $types:expr, $cost:ident, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => broadcast::kernel::<T, T, $Function>(Cost::$cost))
        })
    };
}

/// Defines the kernel of a function that calls a library for each element; its loop is not compiled with vector
/// instructions.
macro_rules! calls {
    ($op:literal, $group:ident, $types:expr, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => broadcast::unvectorized_kernel::<T, T, $Function>())
        })
    };
}

/// Defines the kernel of a function whose result has the same bits for signed and unsigned integers.
macro_rules! wrapping {
    ($op:literal, $types:expr, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            let dtype = init.input_type(0);
            let zip = dispatch_unsigned!(dtype, T => {
                Ok(zip_run::<<T as Lane>::Wide, _, $Function> as ZipFunction)
            });
            broadcast::zip_kernel([dtype; 2], Cost::Cheap, zip?)
        })
    };
}

/// Defines the kernel of a bitwise function, computed on unsigned integers of the element's size.
macro_rules! bitwise {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", INTEGERS)], |init| {
            let dtype = init.input_type(0);
            let zip = match dtype.size() {
                Some(1) => zip_run::<u8, _, $Function> as ZipFunction,
                Some(2) => zip_run::<u16, _, $Function>,
                Some(4) => zip_run::<u32, _, $Function>,
                _ => zip_run::<u64, _, $Function>,
            };
            broadcast::zip_kernel([dtype; 2], Cost::Cheap, zip)
        })
    };
}

/// Defines a division kernel; `$check` returns an error if an integer divisor is zero. The loop over floats is compiled
/// with vector instructions for `vector`, and without them for `calls`, functions that call a library for each element.
macro_rules! division {
    ($op:literal, $types:expr, vector $Function:ident, $check:ident) => {
        division!(@of $op, $types, $Function, $check, zip_run)
    };
    ($op:literal, $types:expr, calls $Function:ident, $check:ident) => {
        division!(@of $op, $types, $Function, $check, zip_each)
    };
    (@of $op:literal, $types:expr, $Function:ident, $check:ident, $floats:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            let dtype = init.input_type(0);
            let zip = if dtype.is_integer() {
                dispatch!(integer, dtype, T => Ok(zip_each::<T, T, $Function> as ZipFunction))
            } else {
                dispatch!(float, dtype, T => {
                    Ok($floats::<<T as Lane>::Wide, <T as Lane>::Wide, $Function> as ZipFunction)
                })
            };
            checked_kernel(dtype, $check, zip?)
        })
    };
}

/// Makes an element-wise kernel of two inputs that calls `check` before it computes, and fails with the error of
/// `check`.
fn checked_kernel(
    dtype: DType,
    check: fn(&KernelContext<'_>) -> Result<()>,
    zip: ZipFunction,
) -> Result<Kernel> {
    let types = [LaneType::of(dtype); 2];
    Kernel::sync(move |ctx| {
        check(ctx)?;
        broadcast::binary(ctx, types, Cost::Expensive, &zip)
    })
}

/// Types of `Add`, which also has a kernel for strings.
const ADD: &[DType] =
    &[BFloat16, Half, Float, Double, UInt8, Int8, Int16, Int32, Int64, Complex64, Complex128];
const POW: &[DType] = &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64];
/// Real types except half precision.
const WIDE: &[DType] = &[Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
const MOD: &[DType] = &[BFloat16, Half, Float, Double, Int32, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    wrapping!("Add", ADD, Add),
    KernelDef::of("Add", &[("T", &[String])], |_| Kernel::sync(concatenate)),
    wrapping!("AddV2", NUMBERS, Add),
    wrapping!("Sub", NUMBERS, Sub),
    wrapping!("Mul", NUMBERS, Mul),
    kernel!("RealDiv", fraction, FRACTIONS, Cheap, Div),
    kernel!("Div", complex, COMPLEX, Cheap, Div),
    division!("Div", REALS, vector Div, refuse_zero),
    whole_division!("FloorDiv", FloorDiv),
    division!("FloorDiv", WIDE, vector FloorDiv, refuse_zero),
    division!("FloorMod", REALS, calls FloorMod, refuse_zero),
    division!("Mod", MOD, calls TruncateMod, refuse_zero),
    whole_division!("TruncateDiv", TruncateDiv),
    division!("TruncateDiv", WIDE, vector TruncateDiv, refuse_zero_unexpectedly),
    division!("TruncateMod", MOD, calls TruncateMod, refuse_zero_unexpectedly),
    kernel!("Maximum", real, REALS, Cheap, Maximum),
    kernel!("Minimum", real, REALS, Cheap, Minimum),
    KernelDef::of("Pow", &[("T", POW)], |init| {
        let dtype = init.input_type(0);
        let zip = if dtype.is_integer() {
            dispatch!(@arms dtype, T => Ok(zip_run::<T, _, Pow> as ZipFunction);
                Int8 i8, Int16 i16, Int32 i32, Int64 i64)
        } else {
            dispatch!(float, dtype, T => Ok(zip_each::<<T as Lane>::Wide, _, Pow> as ZipFunction))
        };
        checked_kernel(dtype, refuse_negative, zip?)
    }),
    calls!("Pow", complex, COMPLEX, ComplexPow),
    wrapping!(
        "SquaredDifference",
        &[BFloat16, Half, Float, Double, Int32, Int64, Complex64, Complex128],
        SquaredDifference
    ),
    kernel!("DivNoNan", fraction, FRACTIONS, Cheap, DivNoNan),
    kernel!("MulNoNan", fraction, FRACTIONS, Cheap, MulNoNan),
    calls!("Atan2", float, FLOATS, Atan2),
    kernel!("Xdivy", fraction, FRACTIONS, Cheap, Xdivy),
    calls!("Xlogy", fraction, FRACTIONS, Xlogy),
    calls!("Xlog1py", fraction, FRACTIONS, Xlog1py),
    bitwise!("BitwiseAnd", And),
    bitwise!("BitwiseOr", Or),
    bitwise!("BitwiseXor", Xor),
    kernel!("LeftShift", integer, INTEGERS, Cheap, ShiftLeft),
    kernel!("RightShift", integer, INTEGERS, Cheap, ShiftRight),
    KernelDef::of("AddN", &[("T", NUMBERS)], |init| {
        let dtype = init.input_type(0);
        let add = dispatch_unsigned!(dtype, T => Ok(zip_run::<<T as Lane>::Wide, _, Add> as ZipFunction))?;
        let lane = LaneType::of(dtype);
        Kernel::sync(move |ctx| add_n(ctx, lane, add))
    }),
    KernelDef::of("AddN", &[("T", &[DType::Variant])], |_| tensor_list::add_n::<Tensor>()),
];

/// Returns an error if any integer of input 1 is zero.
fn refuse_zero(ctx: &KernelContext<'_>) -> Result<()> {
    refuse(ctx, has_zero, || Error::invalid("Integer division by zero"))
}

/// Refuses zeros with the text of TensorFlow's error for a division by zero in ops that TensorFlow assumes cannot fail;
/// clients rely on the text.
fn refuse_zero_unexpectedly(ctx: &KernelContext<'_>) -> Result<()> {
    refuse(ctx, has_zero, || {
        Error::internal("Unexpected error in binary operator (only integer div and mod should have errors)")
    })
}

/// Returns an error if any integer of input 1 is negative.
fn refuse_negative(ctx: &KernelContext<'_>) -> Result<()> {
    refuse(ctx, has_negative, || Error::invalid("Integers to negative integer powers are not allowed"))
}

/// Returns the error `error()` if `bad` is true for input 1. An empty input 0 is never an error, because nothing is
/// computed.
fn refuse(ctx: &KernelContext<'_>, bad: fn(&Tensor) -> Result<bool>, error: fn() -> Error) -> Result<()> {
    if ctx.input(0)?.num_elements() > 0 && bad(ctx.input(1)?)? {
        return Err(error());
    }
    Ok(())
}

/// Returns whether the tensor contains an integer zero.
fn has_zero(tensor: &Tensor) -> Result<bool> {
    if !tensor.dtype().is_integer() {
        return Ok(false);
    }
    dispatch!(integer, tensor.dtype(), T => Ok(tensor.values::<T>()?.contains(&0)))
}

/// Returns whether the tensor contains a negative integer.
fn has_negative(tensor: &Tensor) -> Result<bool> {
    Ok(match tensor.dtype() {
        Int8 => tensor.values::<i8>()?.iter().any(|v| *v < 0),
        Int16 => tensor.values::<i16>()?.iter().any(|v| *v < 0),
        Int32 => tensor.values::<i32>()?.iter().any(|v| *v < 0),
        Int64 => tensor.values::<i64>()?.iter().any(|v| *v < 0),
        _ => false,
    })
}

fn concatenate(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let plan = Plan::new(x.shape(), y.shape())?;
    let (x, y) = (x.as_strings()?, y.as_strings()?);
    let mut out = Vec::new();
    let count = plan.shape().num_elements();
    out.try_reserve_exact(count)
        .map_err(|_| Error::new(graph::Code::ResourceExhausted, format!("no memory for {count} strings")))?;
    let repeats = plan.repeats();
    plan.walk(0, count, |_, len, [i, j]| {
        for k in 0..len {
            let x = &x[if repeats[0] { i } else { i + k }];
            let y = &y[if repeats[1] { j } else { j + k }];
            out.push(Bytes::from([x.as_ref(), y.as_ref()].concat()));
        }
    });
    let out = Tensor::strings(out, plan.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

/// Adds the inputs block by block, so that each input is read once and the sum stays in the cache. The sum overwrites
/// an input that has no other reader.
fn add_n(ctx: &mut KernelContext<'_>, lane: LaneType, add: ZipFunction) -> Result<()> {
    let mut inputs = (0..ctx.num_inputs()).map(|i| ctx.take_input(i)).collect::<Result<Vec<_>>>()?;
    let Some(first) = inputs.first() else { return Err(Error::invalid("AddN needs an input")) };
    let shape = first.shape().clone();
    for (i, input) in inputs.iter().enumerate() {
        if *input.shape() != shape {
            device::invalid!(
                "Inputs to operation {} of type AddN must have the same size and shape.  Input 0: {shape} != \
                 input {i}: {}",
                ctx.node().name,
                input.shape()
            );
        }
    }
    if inputs.len() == 1 {
        ctx.set_output(0, inputs.remove(0));
        return Ok(());
    }
    if let [x, y] = inputs.as_slice() {
        let plan = Plan::flat(&shape);
        let operands = [x.clone(), y.clone()];
        drop(inputs);
        let out = zip_tensors(&plan, operands, [lane; 2], Cost::Cheap, &add)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let reused = inputs.iter().position(Tensor::is_unique);
    let mut out = match reused {
        Some(i) => std::mem::replace(&mut inputs[i], Tensor::scalar(0u8)),
        None => Tensor::unspecified(lane.dtype, shape)?,
    };
    let others = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| if Some(i) == reused { Ok(None) } else { Ok(Some(lane.elements(t)?)) })
        .collect::<Result<Vec<_>>>()?;
    let out_elements = lane.elements_mut(&mut out)?;
    let chunk = chunk_size(lane.count(out_elements.len()), Cost::Cheap) * lane.size;
    for_chunks(out_elements, chunk, |start, part| {
        let [mut sum, mut next, mut buffer] = [(); 3].map(|()| lane.block(lane.count(part.len())));
        for (b, out) in part.chunks_mut(BLOCK * lane.size).enumerate() {
            let from = start + b * BLOCK * lane.size;
            let [mut sum, mut next]: [&mut [u8]; 2] = [cast_slice_mut(&mut sum), cast_slice_mut(&mut next)];
            let buffer = cast_slice_mut(&mut buffer);
            for (i, elements) in others.iter().enumerate() {
                let term = match elements {
                    Some(elements) => lane.load(&elements[from..from + out.len()], buffer),
                    None => lane.load(out, buffer),
                };
                if i == 0 {
                    sum[..term.len()].copy_from_slice(term);
                } else {
                    let len = term.len();
                    add(&mut next[..len], OperandBytes::many(&sum[..len]), OperandBytes::many(term));
                    std::mem::swap(&mut sum, &mut next);
                }
            }
            lane.store(out, buffer, |out| out.copy_from_slice(&sum[..out.len()]));
        }
    });
    ctx.set_output(0, out);
    Ok(())
}
