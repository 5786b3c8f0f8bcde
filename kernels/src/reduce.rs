//! Reductions along axes, scans, and the positions of extremes.

mod extreme;
mod fold;
mod scan;

use crate::numeric::dispatch::{NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Arithmetic, Number, Semiring as _};
use crate::numeric::widen::{Lane, narrowed};
use crate::plan::reduce::Layout;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use fold::{Fold, Load, Monoid};
use graph::{Bool8, Element, Tensor};
use half::{bf16, f16};
use num_complex::Complex;

macro_rules! monoids {
    ($($name:ident: $kind:ident, $identity:ident, |$x:ident, $y:ident| $value:expr;)*) => {$(
        pub(super) struct $name;
        impl<T: $kind> Monoid<T> for $name {
            const IDENTITY: T = T::$identity;
            #[inline(always)]
            fn combine($x: T, $y: T) -> T { $value }
        }
    )*};
}

monoids! {
    Sum: Arithmetic, ZERO, |x, y| x.plus(y);
    Prod: Arithmetic, ONE, |x, y| x.times(y);
    Max: Number, LOWEST, |x, y| x.maximum(y);
    Min: Number, HIGHEST, |x, y| x.minimum(y);
}

struct All;
struct Any;

impl Monoid<Bool8> for All {
    const IDENTITY: Bool8 = Bool8::TRUE;
    #[inline(always)]
    fn combine(x: Bool8, y: Bool8) -> Bool8 {
        (x.get() & y.get()).into()
    }
}

impl Monoid<Bool8> for Any {
    const IDENTITY: Bool8 = Bool8::FALSE;
    #[inline(always)]
    fn combine(x: Bool8, y: Bool8) -> Bool8 {
        (x.get() | y.get()).into()
    }
}

macro_rules! kernel {
    ($op:literal, $group:ident, $types:expr, $Monoid:ident) => {
        KernelDef::of($op, &[("T", $types)], |init| {
            let keep_dims = init.attr::<bool>("keep_dims")?;
            dispatch!($group, init.input_type(0), T => Kernel::sync(move |ctx| plain::<T, $Monoid>(ctx, keep_dims)))
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Sum", number, NUMBERS, Sum),
    kernel!("Prod", number, NUMBERS, Prod),
    kernel!("Max", real, REALS, Max),
    kernel!("Min", real, REALS, Min),
    KernelDef::of("Mean", &[("T", NUMBERS)], |init| {
        let keep_dims = init.attr::<bool>("keep_dims")?;
        dispatch!(number, init.input_type(0), T => Kernel::sync(move |ctx| mean::<T>(ctx, keep_dims)))
    }),
    KernelDef::of("EuclideanNorm", &[("T", NUMBERS)], |init| {
        let keep_dims = init.attr::<bool>("keep_dims")?;
        dispatch!(number, init.input_type(0), T => Kernel::sync(move |ctx| euclidean_norm::<T>(ctx, keep_dims)))
    }),
    KernelDef::of("All", &[], logical::<All>),
    KernelDef::of("Any", &[], logical::<Any>),
    KernelDef::of("ArgMax", &[("T", extreme::TYPES)], |init| extreme::make(init, true)),
    KernelDef::of("ArgMin", &[("T", extreme::TYPES)], |init| extreme::make(init, false)),
    KernelDef::of("Cumsum", &[("T", NUMBERS)], |init| scan::make(init, scan::Operation::Sum)),
    KernelDef::of("Cumprod", &[("T", NUMBERS)], |init| scan::make(init, scan::Operation::Product)),
];

/// Returns `x` reduced along the axes of `layout`, in the type that the reduction computes in.
fn reduced<A: Element, W: Element>(
    x: &Tensor,
    layout: &Layout,
    fold: &Fold<W>,
    load: Option<Load<A, W>>,
) -> Result<Tensor> {
    let mut out = Tensor::unspecified(W::DTYPE, layout.shape.clone())?;
    let values = out.values_mut::<W>()?;
    values.fill(fold.identity);
    fold::reduce(x.values::<A>()?, &layout.axes, values, fold, load);
    Ok(out)
}

fn plain<T: Lane, O: Monoid<T::Wide>>(ctx: &mut KernelContext<'_>, keep_dims: bool) -> Result<()> {
    let x = ctx.take_input(0)?;
    let layout = Layout::new(x.shape(), ctx.input(1)?, keep_dims)?;
    let out = if layout.reduces() {
        let load: Option<Load<T, T::Wide>> = if T::NATIVE { None } else { Some(T::widen) };
        narrowed::<T>(reduced(&x, &layout, &Fold::of::<O>(), load)?)?
    } else {
        x.reshaped(layout.shape)?
    };
    ctx.set_output(0, out);
    Ok(())
}

fn logical<O: Monoid<Bool8> + 'static>(init: &KernelInit<'_>) -> Result<Kernel> {
    let keep_dims = init.attr::<bool>("keep_dims")?;
    Kernel::sync(move |ctx| plain::<Bool8, O>(ctx, keep_dims))
}

/// A number with a square root, for norms.
trait Root: Arithmetic {
    fn root(self) -> Self;
}

macro_rules! roots {
    ($($t:ty),*) => { $(impl Root for $t {
        fn root(self) -> $t { Number::square_root(self) }
    })* };
}

roots!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

impl Root for Complex<f32> {
    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Root for Complex<f64> {
    fn root(self) -> Self {
        self.sqrt()
    }
}

/// Returns the square root of the sum of squares.
fn euclidean_norm<T: Lane>(ctx: &mut KernelContext<'_>, keep_dims: bool) -> Result<()>
where
    T::Wide: Root,
{
    let x = ctx.take_input(0)?;
    let layout = Layout::new(x.shape(), ctx.input(1)?, keep_dims)?;
    let squares: Load<T, T::Wide> = |from, to| {
        T::widen(from, to);
        to.iter_mut().for_each(|v| *v = v.times(v.conjugated()));
    };
    let mut wide = reduced(&x, &layout, &Fold::of::<Sum>(), Some(squares))?;
    wide.values_mut::<T::Wide>()?.iter_mut().for_each(|v| *v = v.root());
    let out = narrowed::<T>(wide)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Elements whose mean is computed through a sum in a wider type.
trait Average: Element {
    type Sum: Arithmetic;
    const LOAD: Option<Load<Self, Self::Sum>>;
    fn quotient(sum: Self::Sum, count: usize) -> Self::Sum;
    fn store(sums: Tensor) -> Result<Tensor>;
}

macro_rules! averages {
    (floats: $($t:ty),*) => {$(
        impl Average for $t {
            type Sum = <$t as Lane>::Wide;
            const LOAD: Option<Load<$t, Self::Sum>> =
                if <$t as Lane>::NATIVE { None } else { Some(<$t as Lane>::widen) };
            fn quotient(sum: Self::Sum, count: usize) -> Self::Sum { sum / count as Self::Sum }
            fn store(sums: Tensor) -> Result<Tensor> { narrowed::<$t>(sums) }
        }
    )*};
    (complex: $($t:ty),*) => {$(
        impl Average for Complex<$t> {
            type Sum = Complex<$t>;
            const LOAD: Option<Load<Self, Self::Sum>> = None;
            fn quotient(sum: Self::Sum, count: usize) -> Self::Sum { sum / count.max(1) as $t }
            fn store(sums: Tensor) -> Result<Tensor> { Ok(sums) }
        }
    )*};
    (integers: $($t:ty => $sum:ty),*) => {$(
        impl Average for $t {
            type Sum = $sum;
            const LOAD: Option<Load<$t, $sum>> =
                Some(|from, to| to.iter_mut().zip(from).for_each(|(t, &f)| *t = f as $sum));
            fn quotient(sum: $sum, count: usize) -> $sum { if count == 0 { 0 } else { sum / count as $sum } }
            fn store(sums: Tensor) -> Result<Tensor> {
                let mut out = Tensor::unspecified(<$t as Element>::DTYPE, sums.shape().clone())?;
                let sums = sums.values::<$sum>()?;
                out.values_mut::<$t>()?.iter_mut().zip(sums).for_each(|(o, &s)| *o = s as $t);
                Ok(out)
            }
        }
    )*};
}

averages!(floats: f32, f64, f16, bf16);
averages!(complex: f32, f64);
averages!(integers: i8 => i64, i16 => i64, i32 => i64, i64 => i64, u8 => u64, u16 => u64, u32 => u64, u64 => u64);

fn mean<T: Average>(ctx: &mut KernelContext<'_>, keep_dims: bool) -> Result<()> {
    let x = ctx.take_input(0)?;
    let layout = Layout::new(x.shape(), ctx.input(1)?, keep_dims)?;
    let out = if layout.reduces() {
        let mut sums = reduced(&x, &layout, &Fold::of::<Sum>(), T::LOAD)?;
        sums.values_mut::<T::Sum>()?.iter_mut().for_each(|v| *v = T::quotient(*v, layout.count));
        T::store(sums)?
    } else {
        x.reshaped(layout.shape)?
    };
    ctx.set_output(0, out);
    Ok(())
}
