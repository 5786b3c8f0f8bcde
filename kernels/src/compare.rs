//! Element-wise comparisons and logical operations.

use crate::numeric::broadcast;
use crate::numeric::broadcast::{Binary, Operand, Plan, Zip, ZipFunction, zip_run, zip_tensors};
use crate::numeric::dispatch::{FLOATS, REALS, dispatch};
use crate::numeric::elementwise;
use crate::numeric::elementwise::Unary;
use crate::numeric::scalar::{Number, Real};
use crate::numeric::threads::Cost;
use crate::numeric::widen::{Lane, LaneType, dispatch_unsigned};
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
}

/// An element type that can be compared for equality.
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
            dispatch!(real, init.input_type(0), T => broadcast::kernel::<T, Bool8, $Function>(Cost::Cheap))
        })
    };
}

/// Defines the kernel of a comparison as `$Function` of the exchanged operands, for example `x > y` as `y < x`.
macro_rules! exchanged {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", REALS)], |init| {
            let dtype = init.input_type(0);
            let zip = dispatch!(real, dtype, T => {
                Ok((|out, x, y| zip_run::<<T as Lane>::Wide, _, $Function>(out, y, x)) as ZipFunction)
            });
            broadcast::zip_kernel([dtype, Bool], Cost::Cheap, zip?)
        })
    };
}

/// The dtypes that `Equal` and `NotEqual` compare.
const EQUALITY: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, QInt8,
    QInt16, QInt32, QUInt8, QUInt16, Complex64, Complex128, String,
];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Equal", &[("T", EQUALITY)], |init| equality(init, true)),
    KernelDef::of("NotEqual", &[("T", EQUALITY)], |init| equality(init, false)),
    ordering!("Less", Less),
    ordering!("LessEqual", LessEqual),
    exchanged!("Greater", Less),
    exchanged!("GreaterEqual", LessEqual),
    KernelDef::of("ApproximateEqual", &[("T", FLOATS)], |init| {
        let tolerance = init.attr::<f32>("tolerance")?;
        dispatch!(float, init.input_type(0), T => {
            Kernel::sync(move |ctx| approximately::<T>(ctx, tolerance))
        })
    }),
    KernelDef::of("LogicalAnd", &[], |_| broadcast::kernel::<Bool8, Bool8, LogicalAnd>(Cost::Cheap)),
    KernelDef::of("LogicalOr", &[], |_| broadcast::kernel::<Bool8, Bool8, LogicalOr>(Cost::Cheap)),
    KernelDef::of("LogicalNot", &[], |_| elementwise::kernel::<Bool8, Bool8, LogicalNot>(Cost::Cheap)),
];

/// Makes the kernel of `Equal`, or of `NotEqual` if not `equal`. If the shapes do not broadcast and the attribute
/// `incompatible_shape_error` is false, the tensors count as unequal, and the output is a scalar.
fn equality(init: &KernelInit<'_>, equal: bool) -> Result<Kernel> {
    let must_fit = init.attr::<bool>("incompatible_shape_error")?;
    let dtype = crate::cast::held(init.input_type(0));
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
    let zip = dispatch_unsigned!(dtype, T => {
        type W = <T as Lane>::Wide;
        Ok(if equal { zip_run::<W, _, Equal> as ZipFunction } else { zip_run::<W, _, NotEqual> })
    })?;
    let types = [dtype, Bool].map(LaneType::of);
    Kernel::sync(move |ctx| {
        let operands = [ctx.take_input(0)?.with_dtype(dtype)?, ctx.take_input(1)?.with_dtype(dtype)?];
        let out = match plan(&operands[0], &operands[1])? {
            None => Tensor::from(!equal),
            Some(plan) => zip_tensors(&plan, operands, types, Cost::Cheap, &zip)?,
        };
        ctx.set_output(0, out);
        Ok(())
    })
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

/// `ApproximateEqual`: outputs whether corresponding elements differ by at most `tolerance`.
fn approximately<T: Lane>(ctx: &mut KernelContext<'_>, tolerance: f32) -> Result<()>
where
    T::Wide: Real,
{
    let tolerance = T::Wide::of(tolerance.into());
    zip_equal_shapes(ctx, T::DTYPE, &|out, x, y| {
        let out: &mut [Bool8] = bytemuck::cast_slice_mut(out);
        let (Operand::Many(x), Operand::Many(y)) = (x.elements::<T::Wide>(), y.elements()) else { return };
        for ((o, &x), &y) in out.iter_mut().zip(x).zip(y) {
            *o = ((x - y).magnitude() <= tolerance).into();
        }
    })
}

/// Sets output 0, of type `bool`, to `zip` of inputs 0 and 1, which must have equal shapes.
fn zip_equal_shapes(ctx: &mut KernelContext<'_>, dtype: DType, zip: &Zip<'_>) -> Result<()> {
    let (x, y) = (ctx.take_input(0)?, ctx.take_input(1)?);
    if x.shape() != y.shape() {
        return Err(Error::invalid(format!(
            "x and y must be of the same shape. x shape: {}. y shape: {}",
            x.shape(),
            y.shape()
        )));
    }
    let types = [dtype, Bool].map(LaneType::of);
    let out = zip_tensors(&Plan::flat(x.shape()), [x, y], types, Cost::Cheap, zip)?;
    ctx.set_output(0, out);
    Ok(())
}
