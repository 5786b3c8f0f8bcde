//! Tests of the binary element-wise ops.

use super::*;
use half::{bf16, f16};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn inputs_broadcast() -> Result<()> {
    let x = counting(&[2, 3])?;
    let row = tensor(&[3], &[10.0f32, 20.0, 30.0])?;
    let column = tensor(&[2, 1], &[100.0f32, 200.0])?;
    assert_eq!(values::<f32>("AddV2", &[x.clone(), row.clone()], &[])?, [10., 21., 32., 13., 24., 35.]);
    assert_eq!(values::<f32>("Sub", &[row.clone(), x.clone()], &[])?, [10., 19., 28., 7., 16., 25.]);
    assert_eq!(values::<f32>("AddV2", &[x.clone(), column], &[])?, [100., 101., 102., 203., 204., 205.]);
    assert_eq!(values::<f32>("Mul", &[x.clone(), 2f32.into()], &[])?, [0., 2., 4., 6., 8., 10.]);
    assert_eq!(values::<f32>("Sub", &[1f32.into(), x], &[])?, [1., 0., -1., -2., -3., -4.]);
    let out = run("AddV2", &[counting(&[2, 1, 2, 1])?, counting(&[3, 1, 2])?], &[])?;
    assert_eq!(out.shape().dims(), [2, 3, 2, 2]);
    let expected = |a: usize, b: usize, c: usize, d: usize| (a * 2 + c) as f32 + (b * 2 + d) as f32;
    for (i, &v) in out.values::<f32>()?.iter().enumerate() {
        assert_eq!(v, expected(i / 12, i / 4 % 3, i / 2 % 2, i % 2));
    }
    let empty = run("AddV2", &[counting(&[0, 3])?, row], &[])?;
    assert_eq!(empty.shape().dims(), [0, 3]);
    Ok(())
}

#[test]
fn long_tensors_are_computed_correctly() -> Result<()> {
    let count = (1 << 20) + 77;
    let x: Vec<f32> = (0..count).map(|i| (i % 251) as f32).collect();
    let out = run("Mul", &[tensor(&[count], &x)?, 3f32.into()], &[])?;
    assert!(out.values::<f32>()?.iter().zip(&x).all(|(o, x)| *o == x * 3.0));
    let halves: Vec<f16> = x.iter().map(|&v| f16::from_f32(v)).collect();
    let out = run("AddV2", &[tensor(&[count], &halves)?, tensor(&[1], &[f16::ONE])?], &[])?;
    assert!(out.values::<f16>()?.iter().zip(&x).all(|(o, x)| o.to_f32() == x + 1.0));
    Ok(())
}

#[test]
fn incompatible_shapes_are_refused() -> Result<()> {
    let result = run("AddV2", &[counting(&[2])?, counting(&[3])?], &[]);
    assert_fails(result, Code::InvalidArgument, "Incompatible shapes: [2] vs. [3]");
    Ok(())
}

#[test]
fn integer_division_rounds_and_fails_like_tensorflow() -> Result<()> {
    let inputs = [tensor(&[4], &[-7, 7, -7, 6])?, tensor(&[4], &[2, -2, -2, -3])?];
    for (op, expected) in [
        ("Div", [-3, -3, 3, -2]),
        ("TruncateDiv", [-3, -3, 3, -2]),
        ("FloorDiv", [-4, -4, 3, -2]),
        ("FloorMod", [1, -1, -1, 0]),
        ("TruncateMod", [-1, 1, -1, 0]),
        ("Mod", [-1, 1, -1, 0]),
    ] {
        assert_eq!(values::<i32>(op, &inputs, &[])?, expected, "{op}");
        let zero = run(op, &[tensor(&[2], &[1, 2])?, tensor(&[2], &[1, 0])?], &[]);
        let (code, message) = match op {
            "TruncateDiv" | "TruncateMod" => (
                Code::Internal,
                "Unexpected error in binary operator (only integer div and mod should have errors)",
            ),
            _ => (Code::InvalidArgument, "Integer division by zero"),
        };
        assert_fails(zero, code, message);
        assert_eq!(values::<i32>(op, &[tensor::<i32>(&[0], &[])?, 0i32.into()], &[])?, [0i32; 0]);
    }
    assert_eq!(values::<i8>("FloorDiv", &[(-128i8).into(), (-1i8).into()], &[])?, [-128]);
    assert_eq!(values::<u8>("FloorMod", &[250u8.into(), 7u8.into()], &[])?, [5]);
    Ok(())
}

#[test]
fn float_floor_division_handles_signs_and_infinities() -> Result<()> {
    let x = tensor(&[7], &[-7.0, 7.0, -7.5, 1.0, 0.0, -1.0, INF])?;
    let y = tensor(&[7], &[2.0f32, -2.0, -2.0, 0.0, 0.0, 0.0, 2.0])?;
    let out = values::<f32>("FloorDiv", &[x, y], &[])?;
    assert_near(&out, &[-4.0, -4.0, 3.0, INF, NAN, -INF, INF], 0.0);
    let x = tensor(&[7], &[-7.0f32, 7.0, -7.5, 1.0, -1.0, 5.0, -5.0])?;
    let y = tensor(&[7], &[2.0, -2.0, -2.0, 0.0, INF, -INF, INF])?;
    let out = values::<f32>("FloorMod", &[x, y], &[])?;
    assert_near(&out, &[1.0, -1.0, -1.5, NAN, INF, -INF, INF], 0.0);
    Ok(())
}

#[test]
fn maximum_and_minimum_propagate_nan() -> Result<()> {
    let inputs = [tensor(&[3], &[NAN, 1.0, 5.0])?, tensor(&[3], &[1.0, NAN, 7.0])?];
    assert_near(&values::<f32>("Maximum", &inputs, &[])?, &[NAN, NAN, 7.0], 0.0);
    assert_near(&values::<f32>("Minimum", &inputs, &[])?, &[NAN, NAN, 5.0], 0.0);
    Ok(())
}

#[test]
fn powers_of_integers_and_floats() -> Result<()> {
    let inputs = [tensor(&[5], &[2, 3, -2, 0, 2])?, tensor(&[5], &[10, 3, 3, 0, 31])?];
    assert_eq!(values::<i32>("Pow", &inputs, &[])?, [1024, 27, -8, 1, i32::MIN]);
    assert_eq!(values::<i8>("Pow", &[3i8.into(), 6i8.into()], &[])?, [-39]);
    let negative = run("Pow", &[1i32.into(), (-1i32).into()], &[]);
    assert_fails(negative, Code::InvalidArgument, "Integers to negative integer powers are not allowed");
    let inputs = [tensor(&[4], &[0.0, -8.0, -2.0, INF])?, tensor(&[4], &[0.0, 0.5, 2.0, 0.0f32])?];
    assert_near(&values::<f32>("Pow", &inputs, &[])?, &[1.0, NAN, 4.0, 1.0], 0.0);
    Ok(())
}

#[test]
fn shift_distances_are_clamped() -> Result<()> {
    let left = [tensor(&[4], &[1, 1, 1, -1])?, tensor(&[4], &[31, 32, -1, 4])?];
    // A negative shift distance counts as 0.
    assert_eq!(values::<i32>("LeftShift", &left, &[])?, [i32::MIN, i32::MIN, 1, -16]);
    let right = [tensor(&[4], &[-8, -8, 8, 8])?, tensor(&[4], &[1, 40, 40, -1])?];
    assert_eq!(values::<i32>("RightShift", &right, &[])?, [-4, -1, 0, 8]);
    let bytes = [tensor(&[2], &[255u8, 255])?, tensor(&[2], &[1u8, 200])?];
    assert_eq!(values::<u8>("RightShift", &bytes, &[])?, [127, 1]);
    assert_eq!(values::<u8>("BitwiseXor", &bytes, &[])?, [254, 55]);
    Ok(())
}

#[test]
fn no_nan_ops_return_zero_instead_of_nan() -> Result<()> {
    let run = |op, x: [f32; 3], y: [f32; 3]| values::<f32>(op, &[tensor(&[3], &x)?, tensor(&[3], &y)?], &[]);
    assert_near(&run("DivNoNan", [1.0, NAN, 6.0], [0.0, 0.0, 2.0])?, &[0.0, 0.0, 3.0], 0.0);
    assert_near(&run("MulNoNan", [NAN, INF, 0.0], [0.0, 0.0, NAN])?, &[0.0, 0.0, NAN], 0.0);
    assert_near(&run("Xdivy", [0.0, 0.0, 1.0], [NAN, 0.0, 0.0])?, &[0.0, 0.0, INF], 0.0);
    assert_near(&run("Xlogy", [0.0, 0.0, 1.0], [NAN, 0.0, 0.0])?, &[0.0, 0.0, -INF], 0.0);
    assert_near(&run("Xlog1py", [0.0, 0.0, 1.0], [NAN, -1.0, -1.0])?, &[0.0, 0.0, -INF], 0.0);
    Ok(())
}

#[test]
fn sixteen_bit_floats_round_once() -> Result<()> {
    let inputs = [tensor(&[1], &[f16::from_f32(1.0)])?, tensor(&[1], &[f16::from_f32(0.000_3)])?];
    assert_eq!(values::<f16>("AddV2", &inputs, &[])?, [f16::ONE]);
    let inputs = [tensor(&[1], &[bf16::from_f32(3.0)])?, tensor(&[1], &[bf16::from_f32(7.0)])?];
    assert_eq!(values::<bf16>("RealDiv", &inputs, &[])?, [bf16::from_f32(3.0 / 7.0)]);
    Ok(())
}

#[test]
fn add_concatenates_strings() -> Result<()> {
    let x = Tensor::strings(vec!["a".into(), "b".into()], Shape::new(&[2])?)?;
    let out = run("Add", &[x, "z".into()], &[])?;
    assert_eq!(out.as_strings()?, ["az", "bz"]);
    Ok(())
}

#[test]
fn add_n_sums_any_number_of_inputs() -> Result<()> {
    for count in [1, 2, 3, 7] {
        let inputs = vec![counting(&[3, 700])?; count];
        let out = run("AddN", &inputs, &[attr("N", count as i64)])?;
        assert!(out.values::<f32>()?.iter().enumerate().all(|(i, &v)| v == (i * count) as f32));
    }
    let result = run("AddN", &[counting(&[2])?, counting(&[3])?], &[attr("N", 2i64)]);
    let message = "Inputs to operation test of type AddN must have the same size and shape.  Input 0: [2] != \
                   input 1: [3]";
    assert_fails(result, Code::InvalidArgument, message);
    Ok(())
}
