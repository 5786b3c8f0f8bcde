//! Reductions along axes, scans, and the positions of extremes.

mod extreme;
mod fold;
mod scan;

use crate::numeric::dispatch::{FLOATS, INDEX, NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Arithmetic, Number, Semiring as _};
use crate::numeric::widen::{Lane, narrowed};
use crate::plan::reduce::ReductionLayout;
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use fold::{Fold, Load, Monoid};
use graph::{Bool8, DType, Element, Tensor};
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

/// A number type whose sums and products have the same bits as those of the type `Bits`.
pub(super) trait Modular: Arithmetic {
    /// The unsigned integer of the same size for an integer type; the type itself for other types.
    type Bits: Arithmetic;
}

macro_rules! modular {
    ($($t:ty => $bits:ty),*) => { $(impl Modular for $t { type Bits = $bits; })* };
}

modular!(
    f32 => f32, f64 => f64, f16 => f16, bf16 => bf16, Complex<f32> => Complex<f32>, Complex<f64> => Complex<f64>,
    i8 => u8, i16 => u16, i32 => u32, i64 => u64, u8 => u8, u16 => u16, u32 => u32, u64 => u64
);

/// A reduction for one element type: its dtypes, and its functions as pointers.
struct Reduction {
    /// The dtype of the input.
    dtype: DType,
    /// The dtype that the reduction computes in.
    wide: DType,
    fold: Fold,
    /// A function `(results, elements per result)` that converts the results from the wide dtype to the output's dtype.
    finish: fn(Tensor, usize) -> Result<Tensor>,
    /// True if the reduction computes even when each result comes from one element, because the output differs from the
    /// input.
    always: bool,
}

impl Reduction {
    /// Returns the reduction of elements of type `T` with the monoid `O`, computed in the wide type of `T`. `W` is the
    /// wide type, or a type of the same size in which `O` gives the same bits.
    fn of<T: Lane, W: Element, O: Monoid<W>>() -> Reduction {
        let load: Option<Load> = if T::NATIVE { None } else { Some(widen::<T>) };
        Reduction {
            dtype: T::DTYPE,
            wide: T::Wide::DTYPE,
            fold: Fold::of::<T, W, O>(load),
            finish: |wide, _| narrowed::<T>(wide),
            always: false,
        }
    }

    fn kernel(self, init: &KernelInit<'_>) -> Result<Kernel> {
        let keep_dims = init.attr::<bool>("keep_dims")?;
        Kernel::sync(move |ctx| {
            let x = ctx.take_input(0)?;
            let layout = ReductionLayout::new(x.shape(), ctx.input(1)?, keep_dims)?;
            let out = match layout.reduces() || self.always {
                true => self.apply(&x, &layout)?,
                false => x.reshaped(layout.shape)?,
            };
            ctx.set_output(0, out);
            Ok(())
        })
    }

    /// Returns `x` reduced along the axes of `layout`.
    fn apply(&self, x: &Tensor, layout: &ReductionLayout) -> Result<Tensor> {
        if x.dtype() != self.dtype {
            return Err(graph::Error::DType { expected: self.dtype, actual: x.dtype() }.into());
        }
        let mut wide = Tensor::unspecified(self.wide, layout.shape.clone())?;
        let results = wide.bytes_mut()?;
        (self.fold.fill)(results);
        fold::reduce(x.bytes()?, &layout.axes, results, &self.fold);
        (self.finish)(wide, layout.count)
    }
}

/// Converts elements, passed as bytes, to the type that they are computed in.
fn widen<T: Lane>(from: &[u8], to: &mut [u8]) {
    T::widen(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
}

macro_rules! kernel {
    ($op:literal, number, $Monoid:ident) => {
        KernelDef::of($op, &[("T", NUMBERS)], |init| {
            let reduction = dispatch!(number, init.input_type(0), T => {
                Ok(Reduction::of::<T, <<T as Lane>::Wide as Modular>::Bits, $Monoid>())
            });
            reduction?.kernel(init)
        })
    };
    ($op:literal, real, $Monoid:ident) => {
        KernelDef::of($op, &[("T", REALS)], |init| {
            let reduction = dispatch!(real, init.input_type(0), T => {
                Ok(Reduction::of::<T, <T as Lane>::Wide, $Monoid>())
            });
            reduction?.kernel(init)
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Sum", number, Sum),
    kernel!("Prod", number, Prod),
    kernel!("Max", real, Max),
    kernel!("Min", real, Min),
    KernelDef::of("Mean", &[("T", NUMBERS)], |init| {
        dispatch!(number, init.input_type(0), T => Ok(mean::<T>()))?.kernel(init)
    }),
    KernelDef::of("EuclideanNorm", &[("T", NUMBERS)], |init| {
        dispatch!(number, init.input_type(0), T => Ok(euclidean_norm::<T>()))?.kernel(init)
    }),
    KernelDef::of("All", &[], |init| Reduction::of::<Bool8, Bool8, All>().kernel(init)),
    KernelDef::of("Any", &[], |init| Reduction::of::<Bool8, Bool8, Any>().kernel(init)),
    KernelDef::of("ArgMax", &[("T", extreme::TYPES)], |init| extreme::make(init, true)),
    KernelDef::of("ArgMin", &[("T", extreme::TYPES)], |init| extreme::make(init, false)),
    KernelDef::of("Cumsum", &[("T", NUMBERS)], |init| scan::make(init, scan::Operation::Sum)),
    KernelDef::of("Cumprod", &[("T", NUMBERS)], |init| scan::make(init, scan::Operation::Product)),
    KernelDef::of("CumulativeLogsumexp", &[("T", FLOATS), ("Tidx", INDEX)], scan::log_sum_exp),
];

/// A number type with a square root, for norms.
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

/// Returns the reduction that computes the square root of the sum of squares.
fn euclidean_norm<T: Lane>() -> Reduction
where
    T::Wide: Root + Modular,
{
    let squares: Load = |from, to| {
        let to: &mut [T::Wide] = bytemuck::cast_slice_mut(to);
        T::widen(bytemuck::cast_slice(from), to);
        to.iter_mut().for_each(|v| *v = v.times(v.conjugated()));
    };
    Reduction {
        dtype: T::DTYPE,
        wide: T::Wide::DTYPE,
        fold: Fold::of::<T, <T::Wide as Modular>::Bits, Sum>(Some(squares)),
        finish: |mut wide, _| {
            wide.values_mut::<T::Wide>()?.iter_mut().for_each(|v| *v = v.root());
            narrowed::<T>(wide)
        },
        always: true,
    }
}

/// Element types whose mean is computed through a sum in a wider type.
trait Average: Element {
    type Sum: Modular;
    const LOAD: Option<Load>;
    fn quotient(sum: Self::Sum, count: usize) -> Self::Sum;
    fn store(sums: Tensor) -> Result<Tensor>;
}

macro_rules! averages {
    (floats: $($t:ty),*) => {$(
        impl Average for $t {
            type Sum = <$t as Lane>::Wide;
            const LOAD: Option<Load> = if <$t as Lane>::NATIVE { None } else { Some(widen::<$t>) };
            fn quotient(sum: Self::Sum, count: usize) -> Self::Sum { sum / count as Self::Sum }
            fn store(sums: Tensor) -> Result<Tensor> { narrowed::<$t>(sums) }
        }
    )*};
    (complex: $($t:ty),*) => {$(
        impl Average for Complex<$t> {
            type Sum = Complex<$t>;
            const LOAD: Option<Load> = None;
            fn quotient(sum: Self::Sum, count: usize) -> Self::Sum { sum / count.max(1) as $t }
            fn store(sums: Tensor) -> Result<Tensor> { Ok(sums) }
        }
    )*};
    (integers: $($t:ty => $sum:ty),*) => {$(
        impl Average for $t {
            type Sum = $sum;
            const LOAD: Option<Load> = Some(|from, to| {
                let (from, to) = (bytemuck::cast_slice::<u8, $t>(from), bytemuck::cast_slice_mut(to));
                to.iter_mut().zip(from).for_each(|(t, &f)| *t = f as $sum);
            });
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

/// Returns the reduction that computes the mean.
fn mean<T: Average>() -> Reduction {
    Reduction {
        dtype: T::DTYPE,
        wide: T::Sum::DTYPE,
        fold: Fold::of::<T, <T::Sum as Modular>::Bits, Sum>(T::LOAD),
        finish: |mut sums, count| {
            sums.values_mut::<T::Sum>()?.iter_mut().for_each(|v| *v = T::quotient(*v, count));
            T::store(sums)
        },
        always: false,
    }
}
