//! Tests of Cast and Bitcast.

use super::*;
use DType::*;
use graph::Bool8;
use half::{bf16, f16};

fn cast<T: Element>(x: Tensor) -> Result<Vec<T>> {
    let attrs = [dtype("SrcT", x.dtype()), dtype("DstT", T::DTYPE)];
    values::<T>("Cast", &[x], &attrs)
}

#[test]
fn float_to_integer_casts_overflow_like_the_processor() -> Result<()> {
    let x = tensor(&[8], &[300.7, -300.7, 1e10, 1e20, f32::NAN, f32::INFINITY, -1.5, 255.9])?;
    let out_of_i32 = i32::MIN;
    assert_eq!(cast::<i32>(x.clone())?, [300, -300, out_of_i32, out_of_i32, out_of_i32, out_of_i32, -1, 255]);
    assert_eq!(cast::<i8>(x.clone())?, [44, -44, 0, 0, 0, 0, -1, -1]);
    assert_eq!(cast::<u8>(x.clone())?, [44, 212, 0, 0, 0, 0, 255, 255]);
    assert_eq!(cast::<u32>(x.clone())?, [300, 4_294_966_996, 1_410_065_408, 0, 0, 0, u32::MAX, 255]);
    let high = 1u64 << 63;
    assert_eq!(cast::<i64>(x.clone())?[..3], [300, -300, 10_000_000_000]);
    assert_eq!(cast::<u64>(x.clone())?[2..6], [10_000_000_000, high, high, high]);
    assert_eq!(cast::<u64>(1.5e19f32.into())?, [1.5e19f32 as u64]);
    assert_eq!(cast::<Bool8>(tensor(&[3], &[0.0, f32::NAN, 0.1])?)?, [false, true, true].map(Bool8::from));
    Ok(())
}

#[test]
fn casts_between_other_dtypes() -> Result<()> {
    assert_eq!(cast::<u8>(tensor(&[2], &[300i64, -1])?)?, [44, 255]);
    assert_eq!(cast::<f32>(Tensor::bools(&[true, false], Shape::new(&[2])?)?)?, [1.0, 0.0]);
    assert_eq!(cast::<f16>(tensor(&[2], &[1.0f64, 70000.0])?)?, [f16::ONE, f16::INFINITY]);
    assert_eq!(cast::<bf16>(tensor(&[1], &[f16::from_f32(1.5)])?)?, [bf16::from_f32(1.5)]);
    assert_eq!(cast::<i16>(tensor(&[1], &[bf16::from_f32(-7.9)])?)?, [-7]);
    assert_eq!(cast::<f32>(tensor(&[1], &[5.0f32])?)?, [5.0]);
    Ok(())
}

#[test]
fn truncation_rounds_towards_zero() -> Result<()> {
    let run = |x: Tensor, to: DType, truncate: bool| {
        let attrs = [dtype("SrcT", x.dtype()), dtype("DstT", to), attr("Truncate", truncate)];
        run("Cast", &[x], &attrs)
    };
    assert_eq!(run(1.999_999f32.into(), BFloat16, true)?, bf16::from_f32(1.992_187_5).into());
    assert_eq!(run(1.999_999f32.into(), BFloat16, false)?, bf16::from_f32(2.0).into());
    assert_eq!(run(1.999_999f32.into(), Half, true)?, f16::from_f32(1.999_023_4).into());
    assert_eq!(run(1.999_999_999_9f64.into(), Float, true)?, 1.999_999_9f32.into());
    assert!(run(f32::NAN.into(), Half, true)?.item::<f16>()?.is_nan());
    assert_eq!(run(5i32.into(), Float, true)?, 5f32.into());
    Ok(())
}

#[test]
fn strings_are_not_cast() {
    let attrs = [dtype("SrcT", String), dtype("DstT", Float)];
    assert_fails(
        run("Cast", &["a".into()], &attrs),
        Code::Unimplemented,
        "Cast string to float is not supported",
    );
}

#[test]
fn bitcast_reinterprets_bytes() -> Result<()> {
    let bitcast = |x: Tensor, to: DType| run("Bitcast", &[x], &[dtype("type", to)]);
    let bytes = bitcast(tensor(&[2], &[1, 2])?, UInt8)?;
    assert_eq!(bytes, tensor(&[2, 4], &[1u8, 0, 0, 0, 2, 0, 0, 0])?);
    assert_eq!(bitcast(bytes, Int32)?, tensor(&[2], &[1, 2])?);
    assert_eq!(bitcast(1f32.into(), UInt32)?, 0x3f80_0000u32.into());
    assert_fails(
        bitcast(tensor(&[3], &[1, 2, 3])?, Int64),
        Code::InvalidArgument,
        "Cannot bitcast from 3 to 9",
    );
    assert_fails(bitcast(1i32.into(), Int64), Code::InvalidArgument, "Cannot bitcast from 3 to 9");
    Ok(())
}
