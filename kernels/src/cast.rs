//! `Cast` and `Bitcast`: conversions between element types by value and by bits.

use crate::numeric::elementwise::{map_tensor, map_with};
use crate::numeric::threads::{BLOCK, Cost};
use crate::numeric::widen::LaneType;
use crate::plan::cast::bitcast_shape;
use bytemuck::cast_slice_mut;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{Bool8, DType, Tensor};
use num_complex::Complex;

pub(super) const KERNELS: &[KernelDef] =
    &[KernelDef::of("Cast", &[], make_cast), KernelDef::of("Bitcast", &[], make_bitcast)];

/// Conversion of an element's value to the type `R`.
trait To<R> {
    /// Returns the converted value.
    fn to(self) -> R;
}

/// Conversions between numbers with the result of `as`, except conversions from floats to integers.
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
    f32 => [f64];
    f64 => [f32];
    i8 => [f32, f64, u16, u32, u64];
    i16 => [f32, f64, u32, u64];
    i32 => [f32, f64, u64];
    i64 => [f32, f64];
    u8 => [f32, f64, u16, u32, u64];
    u16 => [f32, f64, u8, u32, u64];
    u32 => [f32, f64, u8, u16, u64];
    u64 => [f32, f64, u8, u16, u32];
}

/// Conversions from floats to integers with x86's results: rounding towards zero. A value that a 32-bit register
/// (64-bit for 64-bit integers) cannot represent, NaN included, becomes the register's least value; narrower integers
/// take the register's low bits.
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
        truncating!(@narrow $float: u8, u16);
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
    ($part:ident, $other:ident) => {
        impl To<$part> for Complex<$part> {
            #[inline(always)]
            fn to(self) -> $part {
                self.re
            }
        }
        impl To<Complex<$part>> for $part {
            #[inline(always)]
            fn to(self) -> Complex<$part> {
                Complex::new(self, 0.0)
            }
        }
        impl To<Complex<$other>> for Complex<$part> {
            #[inline(always)]
            fn to(self) -> Complex<$other> {
                Complex::new(self.re.to(), self.im.to())
            }
        }
    };
}

complex!(f32, f64);
complex!(f64, f32);

/// A function that converts the bytes of a run of elements.
type Convert = fn(&mut [u8], &[u8]);

/// Returns the direct conversion between two dtypes in which elements are computed; `None` if the conversion has the
/// same bits as that of another pair of dtypes, or takes two steps.
fn direct(from: DType, to: DType) -> Option<Convert> {
    macro_rules! conversions {
        ($($From:ident $from:ty => $($To:ident $to:ty),*;)*) => {
            match (from, to) {
                $($((DType::$From, DType::$To) => {
                    Some((|out, x| map_with::<$from, $to>(out, x, To::<$to>::to)) as Convert)
                })*)*
                _ => None,
            }
        };
    }
    conversions! {
        Float f32 => Double f64, Bool Bool8, UInt8 u8, UInt16 u16, Int32 i32, UInt32 u32, Int64 i64, UInt64 u64,
            Complex64 Complex<f32>;
        Double f64 => Float f32, Bool Bool8, UInt8 u8, UInt16 u16, Int32 i32, UInt32 u32, Int64 i64, UInt64 u64,
            Complex128 Complex<f64>;
        Bool Bool8 => Float f32, Double f64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64;
        Int8 i8 => Float f32, Double f64, UInt16 u16, UInt32 u32, UInt64 u64;
        Int16 i16 => Float f32, Double f64, UInt32 u32, UInt64 u64;
        Int32 i32 => Float f32, Double f64, UInt64 u64;
        Int64 i64 => Float f32, Double f64;
        UInt8 u8 => Float f32, Double f64, Bool Bool8, UInt16 u16, UInt32 u32, UInt64 u64;
        UInt16 u16 => Float f32, Double f64, Bool Bool8, UInt8 u8, UInt32 u32, UInt64 u64;
        UInt32 u32 => Float f32, Double f64, Bool Bool8, UInt8 u8, UInt16 u16, UInt64 u64;
        UInt64 u64 => Float f32, Double f64, Bool Bool8, UInt8 u8, UInt16 u16, UInt32 u32;
        Complex64 Complex<f32> => Float f32, Complex128 Complex<f64>;
        Complex128 Complex<f64> => Double f64, Complex64 Complex<f32>;
    }
}

/// A conversion between two types in which elements are computed.
#[derive(Clone, Copy)]
enum Conversion {
    /// The elements are copied, because both types have the same bits.
    Copy,
    One(Convert),
    /// A conversion to an intermediate type, followed by a conversion to the result's type. `types` holds the input's,
    /// the intermediate and the result's type.
    Through {
        first: Convert,
        second: Convert,
        types: [LaneType; 3],
    },
}

impl Conversion {
    /// Returns the conversion from elements of `from` to elements of `to`, or `None` if there is none.
    fn between(from: DType, to: DType) -> Option<Conversion> {
        let [from, to] = [from, to].map(|dtype| match dtype {
            DType::Half | DType::BFloat16 => DType::Float,
            other => other,
        });
        let part = |dtype| match dtype {
            DType::Complex64 => Some(DType::Float),
            DType::Complex128 => Some(DType::Double),
            _ => None,
        };
        let through = match (part(from), part(to)) {
            (Some(part), None) if part != to => Some(part),
            (None, Some(part)) if part != from => Some(part),
            _ => None,
        };
        match through {
            Some(part) => match (Conversion::between(from, part)?, Conversion::between(part, to)?) {
                (Conversion::One(first), Conversion::One(second)) => {
                    Some(Conversion::Through { first, second, types: [from, part, to].map(LaneType::of) })
                }
                _ => None,
            },
            None => {
                let (from, to) = with_same_bits(from, to);
                if from == to { Some(Conversion::Copy) } else { direct(from, to).map(Conversion::One) }
            }
        }
    }

    /// Converts a run of elements from `x` to `out`, both as bytes.
    fn run(self, out: &mut [u8], x: &[u8]) {
        match self {
            Conversion::Copy => out.copy_from_slice(x),
            Conversion::One(convert) => convert(out, x),
            Conversion::Through { first, second, types: [from, part, to] } => {
                let mut block = part.block(from.count(x.len()));
                let block: &mut [u8] = cast_slice_mut(&mut block);
                for (out, x) in out.chunks_mut(BLOCK * to.size).zip(x.chunks(BLOCK * from.size)) {
                    let values = &mut block[..from.count(x.len()) * part.size];
                    first(values, x);
                    second(out, values);
                }
            }
        }
    }
}

/// Returns two dtypes whose conversion gives the same bits, with unsigned instead of signed integers if possible. An
/// integer's sign matters only if the integer is extended or becomes a float; a float becomes a narrow integer by
/// taking the low bits of a wider integer.
fn with_same_bits(from: DType, to: DType) -> (DType, DType) {
    let is_extended = to.is_integer() && from.size() < to.size() || !to.is_integer() && to != DType::Bool;
    let is_narrow = from.is_integer() || from == DType::Bool || to.size() <= Some(2);
    let from = if is_extended { from } else { unsigned(from) };
    (from, if is_narrow { unsigned(to) } else { to })
}

/// Returns the unsigned integer dtype of the same size for a signed integer dtype, and any other dtype unchanged.
fn unsigned(dtype: DType) -> DType {
    match dtype {
        DType::Int8 => DType::UInt8,
        DType::Int16 => DType::UInt16,
        DType::Int32 => DType::UInt32,
        DType::Int64 => DType::UInt64,
        other => other,
    }
}

fn make_cast(init: &KernelInit<'_>) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    if from == to {
        return Kernel::sync(|ctx| {
            let value = ctx.take_value(0);
            ctx.set_output(0, value);
            Ok(())
        });
    }
    // Quantized values convert like the integers that hold them.
    let [held_from, held_to] = [from, to].map(held);
    if held_from == held_to {
        return Kernel::sync(move |ctx| {
            let value = ctx.take_input(0)?.with_dtype(to)?;
            ctx.set_output(0, value);
            Ok(())
        });
    }
    let lost_bits = if init.attr::<bool>("Truncate")? { lost_bits(from, to) } else { None };
    let Some(conversion) = Conversion::between(held_from, held_to) else {
        return Err(Error::unimplemented(format!("Cast {from} to {to} is not supported")));
    };
    let types = [held_from, held_to].map(LaneType::of);
    Kernel::sync(move |ctx| {
        if from != held_from {
            let x = ctx.take_input(0)?.with_dtype(held_from)?;
            ctx.inputs[0] = x.into();
        }
        cast(ctx, types, to, conversion, lost_bits)
    })
}

/// Returns the integer type that holds values of a quantized type, and any other type unchanged.
pub(crate) fn held(dtype: DType) -> DType {
    match dtype {
        DType::QInt8 => DType::Int8,
        DType::QUInt8 => DType::UInt8,
        DType::QInt16 => DType::Int16,
        DType::QUInt16 => DType::UInt16,
        DType::QInt32 => DType::Int32,
        other => other,
    }
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

/// Converts input 0 to the second of `types`, which holds elements of type `to`. With `truncate`, clears that many low bits of each element first, so that the conversion
/// rounds towards zero.
fn cast(
    ctx: &mut KernelContext<'_>,
    types: [LaneType; 2],
    to: DType,
    conversion: Conversion,
    truncate: Option<u32>,
) -> Result<()> {
    let mut x = ctx.take_input(0)?;
    if let Some(bits) = truncate {
        clear_low_bits(&mut x, bits)?;
    }
    let out = map_tensor(x, types, Cost::Cheap, &|out, x| conversion.run(out, x))?;
    ctx.set_output(0, if out.dtype() == to { out } else { out.with_dtype(to)? });
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
