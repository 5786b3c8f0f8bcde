//! `Cast` and `Bitcast`: conversions between element types by value and by bits.

use crate::numeric::dispatch::dispatch;
use crate::numeric::elementwise::{Unary, map_run, map_tensor};
use crate::numeric::threads::Cost;
use crate::numeric::widen::Lane;
use crate::plan::cast::bitcast_shape;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{Bool8, DType, Tensor};
use num_complex::Complex;
use std::marker::PhantomData;

pub(super) const KERNELS: &[KernelDef] =
    &[KernelDef::of("Cast", &[], make_cast), KernelDef::of("Bitcast", &[], make_bitcast)];

/// Conversion of an element's value to the type `R`.
/// The converted value.
trait To<R> {
    fn to(self) -> R;
}

/// The conversion to `R` as an element-wise function.
struct Convert<R>(PhantomData<R>);

impl<A: To<R>, R> Unary<A> for Convert<R> {
    type Out = R;
    #[inline(always)]
    fn apply(x: A) -> R {
        x.to()
    }
}

/// Conversions between numbers like `as`, except those from floats to integers.
macro_rules! plain {
    ($($from:ident => [$($to:ident),*];)*) => {$(
        $(impl To<$to> for $from {
            #[inline(always)]
            fn to(self) -> $to { self as $to }
        })*
        impl To<Bool8> for $from {
            #[inline(always)]
            fn to(self) -> Bool8 { (self != (0 as $from)).into() }
        }
        impl To<$from> for Bool8 {
            #[inline(always)]
            fn to(self) -> $from { self.get() as u8 as $from }
        }
    )*};
}

plain! {
    f32 => [f32, f64];
    f64 => [f32, f64];
    i8 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    i16 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    i32 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    i64 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    u8 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    u16 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    u32 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
    u64 => [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64];
}

impl To<Bool8> for Bool8 {
    #[inline(always)]
    fn to(self) -> Bool8 {
        self
    }
}

/// Conversions from floats to integers like x86's: rounding towards zero. A value that a 32-bit register (64-bit
/// for the wider types) cannot hold, NaN included, becomes the register's least value; narrower types then take its
/// low bits.
macro_rules! truncating {
    ($($float:ident),*) => {$(
        impl To<i32> for $float {
            #[inline(always)]
            fn to(self) -> i32 {
                if (-2147483648.0..2147483648.0).contains(&self) { self as i32 } else { i32::MIN }
            }
        }
        impl To<i64> for $float {
            #[inline(always)]
            fn to(self) -> i64 {
                if (-9223372036854775808.0..9223372036854775808.0).contains(&self) { self as i64 } else { i64::MIN }
            }
        }
        impl To<u64> for $float {
            #[inline(always)]
            fn to(self) -> u64 {
                const HALF: $float = 9223372036854775808.0;
                if (HALF..2.0 * HALF).contains(&self) { self as u64 } else { To::<i64>::to(self) as u64 }
            }
        }
        impl To<u32> for $float {
            #[inline(always)]
            fn to(self) -> u32 { To::<i64>::to(self) as u32 }
        }
        truncating!(@narrow $float: i8, i16, u8, u16);
    )*};
    (@narrow $float:ident: $($to:ident),*) => {
        $(impl To<$to> for $float {
            #[inline(always)]
            fn to(self) -> $to { To::<i32>::to(self) as $to }
        })*
    };
}

truncating!(f32, f64);

/// Conversions of complex numbers: a real result takes the real part; a real operand gets an imaginary part of 0.
macro_rules! complex {
    ($part:ident: $($real:ident),*) => {
        $(impl To<$real> for Complex<$part> {
            #[inline(always)]
            fn to(self) -> $real { self.re.to() }
        }
        impl To<Complex<$part>> for $real {
            #[inline(always)]
            fn to(self) -> Complex<$part> { Complex::new(self.to(), 0.0) }
        })*
        complex!(@between $part: f32, f64);
    };
    (@between $part:ident: $($other:ident),*) => {
        $(impl To<Complex<$other>> for Complex<$part> {
            #[inline(always)]
            fn to(self) -> Complex<$other> { Complex::new(self.re.to(), self.im.to()) }
        })*
    };
}

complex!(f32: f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Bool8);
complex!(f64: f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Bool8);

fn make_cast(init: &KernelInit<'_>) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    if from == to {
        return Kernel::sync(|ctx| {
            let value = ctx.take_value(0);
            ctx.set_output(0, value);
            Ok(())
        });
    }
    let unsupported = || Error::unimplemented(format!("Cast {from} to {to} is not supported"));
    if init.attr::<bool>("Truncate")?
        && let Some(bits) = lost_bits(from, to)
    {
        return dispatch!(plain, to, R => match from {
            DType::Float => Kernel::sync(move |ctx| cast::<f32, R>(ctx, Some(bits))),
            _ => Kernel::sync(move |ctx| cast::<f64, R>(ctx, Some(bits))),
        });
    }
    dispatch!(any, from, A => dispatch!(any, to, R => Kernel::sync(|ctx| cast::<A, R>(ctx, None))))
        .map_err(|_| unsupported())
}

/// Returns the number of fraction bits that the narrower float lacks; `None` if `Truncate` has no effect.
fn lost_bits(from: DType, to: DType) -> Option<u32> {
    let fraction = |d| match d {
        DType::Double => Some(52),
        DType::Float => Some(23),
        DType::Half => Some(10),
        DType::BFloat16 => Some(7),
        _ => None,
    };
    let lost: i32 = fraction(from)? - fraction(to)?;
    if lost > 0 && matches!(from, DType::Float | DType::Double) { u32::try_from(lost).ok() } else { None }
}

/// Converts input 0. With `truncate`, clears that many low bits of each element first, so that the conversion
/// rounds towards zero.
fn cast<A: Lane, R: Lane>(ctx: &mut KernelContext<'_>, truncate: Option<u32>) -> Result<()>
where
    A::Wide: To<R::Wide> + Copy,
{
    let mut x = ctx.take_input(0)?;
    if let Some(bits) = truncate {
        clear_low_bits(&mut x, bits)?;
    }
    let out = map_tensor::<A, R>(x, Cost::Cheap, &map_run::<A::Wide, R::Wide, Convert<R::Wide>>)?;
    ctx.set_output(0, out);
    Ok(())
}

fn clear_low_bits(x: &mut Tensor, bits: u32) -> Result<()> {
    match x.dtype() {
        DType::Float => {
            for v in x.values_mut::<f32>()?.iter_mut().filter(|v| !v.is_nan()) {
                *v = f32::from_bits(v.to_bits() >> bits << bits);
            }
        }
        _ => {
            for v in x.values_mut::<f64>()?.iter_mut().filter(|v| !v.is_nan()) {
                *v = f64::from_bits(v.to_bits() >> bits << bits);
            }
        }
    }
    Ok(())
}

fn make_bitcast(init: &KernelInit<'_>) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    let (Some(from_size), Some(to_size)) = (from.size(), to.size()) else {
        return Err(Error::unimplemented(format!("Bitcast {from} to {to} is not supported")));
    };
    Kernel::sync(move |ctx| {
        let x = ctx.take_input(0)?;
        let out = if from_size == to_size {
            x.with_dtype(to)?
        } else {
            let shape = bitcast_shape(x.shape(), from, to)?;
            Tensor::from_bytes(to, shape, x.bytes()?)?
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
