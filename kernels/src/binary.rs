//! Element-wise arithmetic of two operands, with broadcasting.

use crate::numeric::broadcast;
use crate::numeric::broadcast::{Binary, Operand, Plan, zip_run, zip_tensors};
use crate::numeric::dispatch::{COMPLEX, FLOATS, FRACTIONS, INTEGERS, NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Analytic, Arithmetic, Integer, Number, Real};
use crate::numeric::threads::{BLOCK, Cost, chunk_size, for_chunks};
use crate::numeric::widen::{Float, Lane, block, load, store};
use crate::plan::tensor_list;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::Tensor;
use half::{bf16, f16};
use num_traits::Zero;
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

/// Floor or truncating division of half-precision numbers. The quotient is rounded to half precision before the
/// fraction is dropped, like a division in that type, which changes quotients just below a whole number.
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
            Half => Kernel::sync(|ctx| {
                let run = &zip_run::<f32, _, HalfQuotient<f16, $Function>>;
                broadcast::binary::<f16, f16>(ctx, Cost::Expensive, run)
            }),
            _ => Kernel::sync(|ctx| {
                let run = &zip_run::<f32, _, HalfQuotient<bf16, $Function>>;
                broadcast::binary::<bf16, bf16>(ctx, Cost::Expensive, run)
            }),
        })
    };
}

macro_rules! kernel {
    ($op:literal, $group:ident, $types:expr, $cost:ident, $Function:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!($group, init.input_type(0), T => Kernel::sync(|ctx| {
                broadcast::binary::<T, T>(ctx, Cost::$cost, &zip_run::<<T as Lane>::Wide, _, $Function>)
            }))
        })
    };
}

/// Defines a kernel that refuses to divide integers by zero; `by_zero` is the error.
macro_rules! division {
    ($op:literal, $types:expr, $Function:ident) => {
        division!($op, $types, $Function, || Error::invalid("Integer division by zero"))
    };
    ($op:literal, $types:expr, $Function:ident, $by_zero:expr) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            dispatch!(real, init.input_type(0), T => Kernel::sync(|ctx| {
                refuse(ctx, DType::is_integer, $by_zero, |y: &T| *y == T::zero())?;
                broadcast::binary::<T, T>(ctx, Cost::Expensive, &zip_run::<<T as Lane>::Wide, _, $Function>)
            }))
        })
    };
}

/// Types of `Add`, which also has a kernel for strings.
const ADD: &[DType] =
    &[BFloat16, Half, Float, Double, UInt8, Int8, Int16, Int32, Int64, Complex64, Complex128];
const POW: &[DType] = &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64];
/// Real types except half precision.
const WIDE: &[DType] = &[Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
const MOD: &[DType] = &[BFloat16, Half, Float, Double, Int32, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Add", number, ADD, Cheap, Add),
    KernelDef::of("Add", &[("T", &[String])], |_| Kernel::sync(concatenate)),
    kernel!("AddV2", number, NUMBERS, Cheap, Add),
    kernel!("Sub", number, NUMBERS, Cheap, Sub),
    kernel!("Mul", number, NUMBERS, Cheap, Mul),
    kernel!("RealDiv", fraction, FRACTIONS, Cheap, Div),
    kernel!("Div", complex, COMPLEX, Cheap, Div),
    division!("Div", REALS, Div),
    whole_division!("FloorDiv", FloorDiv),
    division!("FloorDiv", WIDE, FloorDiv),
    division!("FloorMod", REALS, FloorMod),
    division!("Mod", MOD, TruncateMod),
    whole_division!("TruncateDiv", TruncateDiv),
    division!("TruncateDiv", WIDE, TruncateDiv, unexpected),
    division!("TruncateMod", MOD, TruncateMod, unexpected),
    kernel!("Maximum", real, REALS, Cheap, Maximum),
    kernel!("Minimum", real, REALS, Cheap, Minimum),
    KernelDef::of("Pow", &[("T", POW)], |init| {
        dispatch!(real, init.input_type(0), T => Kernel::sync(|ctx| {
            let negative = || Error::invalid("Integers to negative integer powers are not allowed");
            refuse(ctx, DType::is_signed_integer, negative, |y: &T| *y < T::zero())?;
            broadcast::binary::<T, T>(ctx, Cost::Expensive, &zip_run::<<T as Lane>::Wide, _, Pow>)
        }))
    }),
    kernel!("Pow", complex, COMPLEX, Expensive, ComplexPow),
    kernel!(
        "SquaredDifference",
        number,
        &[BFloat16, Half, Float, Double, Int32, Int64, Complex64, Complex128],
        Cheap,
        SquaredDifference
    ),
    kernel!("DivNoNan", fraction, FRACTIONS, Cheap, DivNoNan),
    kernel!("MulNoNan", fraction, FRACTIONS, Cheap, MulNoNan),
    kernel!("Atan2", float, FLOATS, Expensive, Atan2),
    kernel!("Xdivy", fraction, FRACTIONS, Cheap, Xdivy),
    kernel!("Xlogy", fraction, FRACTIONS, Expensive, Xlogy),
    kernel!("Xlog1py", fraction, FRACTIONS, Expensive, Xlog1py),
    kernel!("BitwiseAnd", integer, INTEGERS, Cheap, And),
    kernel!("BitwiseOr", integer, INTEGERS, Cheap, Or),
    kernel!("BitwiseXor", integer, INTEGERS, Cheap, Xor),
    kernel!("LeftShift", integer, INTEGERS, Cheap, ShiftLeft),
    kernel!("RightShift", integer, INTEGERS, Cheap, ShiftRight),
    KernelDef::of(
        "AddN",
        &[("T", NUMBERS)],
        |init| dispatch!(number, init.input_type(0), T => Kernel::sync(add_n::<T>)),
    ),
    KernelDef::of("AddN", &[("T", &[DType::Variant])], |_| tensor_list::add_n::<Tensor>()),
];

/// Returns an error if `applies` to the dtype and any element of input 1 is `bad`. If input 0 is empty nothing is
/// computed, so nothing is refused.
fn refuse<T: Lane + Zero>(
    ctx: &KernelContext<'_>,
    applies: fn(DType) -> bool,
    error: impl Fn() -> Error,
    bad: impl Fn(&T) -> bool,
) -> Result<()> {
    if applies(T::DTYPE) && ctx.input(0)?.num_elements() > 0 && ctx.input(1)?.values::<T>()?.iter().any(bad) {
        return Err(error());
    }
    Ok(())
}

/// TensorFlow's error for a division by zero in ops that it assumes cannot fail; clients rely on its text.
fn unexpected() -> Error {
    Error::internal("Unexpected error in binary operator (only integer div and mod should have errors)")
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

/// Adds the inputs block by block, so that each input is read once and the sum stays in the cache. The sum can
/// therefore overwrite any input that no other reader holds.
fn add_n<T: Lane>(ctx: &mut KernelContext<'_>) -> Result<()>
where
    T::Wide: Arithmetic,
{
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
        let (x, y) = (x.clone(), y.clone());
        drop(inputs);
        let out = zip_tensors::<T, T>(&plan, x, y, Cost::Cheap, &zip_run::<T::Wide, _, Add>)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let reused = inputs.iter().position(Tensor::is_unique);
    let mut out = match reused {
        Some(i) => std::mem::replace(&mut inputs[i], Tensor::scalar(0u8)),
        None => Tensor::unspecified(T::DTYPE, shape)?,
    };
    let others = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| if Some(i) == reused { Ok(None) } else { Ok(Some(t.values::<T>()?)) })
        .collect::<Result<Vec<_>>>()?;
    let out_values = out.values_mut::<T>()?;
    let chunk = chunk_size(out_values.len(), Cost::Cheap);
    for_chunks(out_values, chunk, |start, part| {
        let [mut sum, mut next, mut buffer] = [(); 3].map(|()| block::<T::Wide>(part.len()));
        for (b, out) in part.chunks_mut(BLOCK).enumerate() {
            let from = start + b * BLOCK;
            let (mut sum, mut next) = (&mut sum[..out.len()], &mut next[..out.len()]);
            for (i, values) in others.iter().enumerate() {
                let term = match values {
                    Some(values) => load(&values[from..from + out.len()], &mut buffer),
                    None => load(&*out, &mut buffer),
                };
                if i == 0 {
                    sum.copy_from_slice(term);
                } else {
                    zip_run::<T::Wide, _, Add>(next, &Operand::Many(sum), &Operand::Many(term));
                    std::mem::swap(&mut sum, &mut next);
                }
            }
            let sum = &*sum;
            store(out, &mut buffer, |out| out.copy_from_slice(sum));
        }
    });
    ctx.set_output(0, out);
    Ok(())
}
