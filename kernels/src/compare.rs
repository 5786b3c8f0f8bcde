//! Element-wise comparisons and logical operations.

use crate::numeric::broadcast;
use crate::numeric::broadcast::{Binary, Operand, Plan, zip_run, zip_tensors};
use crate::numeric::dispatch::{FLOATS, REALS, dispatch};
use crate::numeric::elementwise;
use crate::numeric::elementwise::{Unary, map_run};
use crate::numeric::scalar::{Number, Real};
use crate::numeric::threads::Cost;
use crate::numeric::widen::Lane;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{Bool8, Tensor};

macro_rules! functions {
    ($($name:ident: $kind:ident, |$x:ident, $y:ident| $value:expr;)*) => {$(
        struct $name;
        impl<T: $kind> Binary<T> for $name {
            type Out = Bool8;
            #[inline(always)]
            fn apply($x: T, $y: T) -> Bool8 { ($value).into() }
        }
    )*};
}

functions! {
    Equal: Comparable, |x, y| x == y;
    NotEqual: Comparable, |x, y| x != y;
    Less: Number, |x, y| x < y;
    LessEqual: Number, |x, y| x <= y;
    Greater: Number, |x, y| x > y;
    GreaterEqual: Number, |x, y| x >= y;
}

/// An element type whose elements can be equal.
trait Comparable: Copy + PartialEq {}
impl<T: Copy + PartialEq> Comparable for T {}

struct LogicalAnd;
struct LogicalOr;
struct LogicalNot;

impl Binary<Bool8> for LogicalAnd {
    type Out = Bool8;
    #[inline(always)]
    fn apply(x: Bool8, y: Bool8) -> Bool8 {
        (x.get() & y.get()).into()
    }
}

impl Binary<Bool8> for LogicalOr {
    type Out = Bool8;
    #[inline(always)]
    fn apply(x: Bool8, y: Bool8) -> Bool8 {
        (x.get() | y.get()).into()
    }
}

impl Unary<Bool8> for LogicalNot {
    type Out = Bool8;
    #[inline(always)]
    fn apply(x: Bool8) -> Bool8 {
        (!x.get()).into()
    }
}

macro_rules! ordering {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", REALS)], |init| {
            dispatch!(real, init.input_type(0), T => Kernel::sync(|ctx| {
                broadcast::binary::<T, Bool8>(ctx, Cost::Cheap, &zip_run::<<T as Lane>::Wide, _, $Function>)
            }))
        })
    };
}

/// Types whose elements are equal if their numbers are equal.
const EQUALITY: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, QInt8,
    QInt16, QInt32, QUInt8, QUInt16, Complex64, Complex128, String,
];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Equal", &[("T", EQUALITY)], |init| equality(init, true)),
    KernelDef::of("NotEqual", &[("T", EQUALITY)], |init| equality(init, false)),
    ordering!("Less", Less),
    ordering!("LessEqual", LessEqual),
    ordering!("Greater", Greater),
    ordering!("GreaterEqual", GreaterEqual),
    KernelDef::of("ApproximateEqual", &[("T", FLOATS)], |init| {
        let tolerance = init.attr::<f32>("tolerance")?;
        dispatch!(float, init.input_type(0), T => {
            Kernel::sync(move |ctx| approximately::<T>(ctx, tolerance))
        })
    }),
    KernelDef::of("LogicalAnd", &[], |_| {
        Kernel::sync(|ctx| {
            broadcast::binary::<Bool8, Bool8>(ctx, Cost::Cheap, &zip_run::<Bool8, _, LogicalAnd>)
        })
    }),
    KernelDef::of("LogicalOr", &[], |_| {
        Kernel::sync(|ctx| {
            broadcast::binary::<Bool8, Bool8>(ctx, Cost::Cheap, &zip_run::<Bool8, _, LogicalOr>)
        })
    }),
    KernelDef::of("LogicalNot", &[], |_| {
        Kernel::sync(|ctx| {
            elementwise::unary::<Bool8, Bool8>(ctx, Cost::Cheap, &map_run::<Bool8, _, LogicalNot>)
        })
    }),
];

/// `Equal`, or `NotEqual` if not `equal`. If the shapes do not broadcast and that is no error, the tensors as
/// wholes are unequal.
fn equality(init: &KernelInit<'_>, equal: bool) -> Result<Kernel> {
    let must_fit = init.attr::<bool>("incompatible_shape_error")?;
    let dtype = match init.input_type(0) {
        QInt8 => Int8,
        QUInt8 => UInt8,
        QInt16 => Int16,
        QUInt16 => UInt16,
        QInt32 => Int32,
        other => other,
    };
    let plan = move |x: &Tensor, y: &Tensor| match Plan::fit(x.shape(), y.shape())? {
        None if must_fit => Plan::new(x.shape(), y.shape()).map(Some),
        plan => Ok(plan),
    };
    if dtype == String {
        return Kernel::sync(move |ctx| {
            let (x, y) = (ctx.take_input(0)?, ctx.take_input(1)?);
            let out = match plan(&x, &y)? {
                Some(plan) => equal_strings(&plan, &x, &y, equal)?,
                None => Tensor::from(!equal),
            };
            ctx.set_output(0, out);
            Ok(())
        });
    }
    dispatch!(any, dtype, T => Kernel::sync(move |ctx| {
        let (x, y) = (ctx.take_input(0)?.with_dtype(dtype)?, ctx.take_input(1)?.with_dtype(dtype)?);
        type W = <T as Lane>::Wide;
        let out = match plan(&x, &y)? {
            None => Tensor::from(!equal),
            Some(plan) if equal => zip_tensors::<T, Bool8>(&plan, x, y, Cost::Cheap, &zip_run::<W, _, Equal>)?,
            Some(plan) => zip_tensors::<T, Bool8>(&plan, x, y, Cost::Cheap, &zip_run::<W, _, NotEqual>)?,
        };
        ctx.set_output(0, out);
        Ok(())
    }))
}

/// Compares strings element by element, with broadcasting.
fn equal_strings(plan: &Plan, x: &Tensor, y: &Tensor, equal: bool) -> Result<Tensor> {
    let (x, y) = (x.as_strings()?, y.as_strings()?);
    let mut out = Tensor::unspecified(Bool, plan.shape().clone())?;
    let values = out.values_mut::<Bool8>()?;
    let repeats = plan.repeats();
    plan.walk(0, values.len(), |at, len, [i, j]| {
        for (k, o) in values[at..at + len].iter_mut().enumerate() {
            let x = &x[if repeats[0] { i } else { i + k }];
            let y = &y[if repeats[1] { j } else { j + k }];
            *o = ((x == y) == equal).into();
        }
    });
    Ok(out)
}

/// `ApproximateEqual`: whether corresponding elements differ by at most `tolerance`.
fn approximately<T: Lane>(ctx: &mut KernelContext<'_>, tolerance: f32) -> Result<()>
where
    T::Wide: Real,
{
    let (x, y) = (ctx.take_input(0)?, ctx.take_input(1)?);
    if x.shape() != y.shape() {
        return Err(Error::invalid(format!(
            "x and y must be of the same shape. x shape: {}. y shape: {}",
            x.shape(),
            y.shape()
        )));
    }
    let tolerance = T::Wide::of(tolerance.into());
    let near = move |out: &mut [Bool8], x: &Operand<'_, T::Wide>, y: &Operand<'_, T::Wide>| {
        let (&Operand::Many(x), &Operand::Many(y)) = (x, y) else { return };
        for ((o, &x), &y) in out.iter_mut().zip(x).zip(y) {
            *o = ((x - y).magnitude() <= tolerance).into();
        }
    };
    let out = zip_tensors::<T, Bool8>(&Plan::flat(x.shape()), x.clone(), y, Cost::Cheap, &near)?;
    ctx.set_output(0, out);
    Ok(())
}
