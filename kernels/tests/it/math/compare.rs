//! Tests of the comparisons and logical ops.

use super::*;
use graph::Bool8;

fn bools(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Vec<bool>> {
    Ok(values::<Bool8>(op, inputs, attrs)?.into_iter().map(Bool8::get).collect())
}

#[test]
fn comparisons_of_numbers() -> Result<()> {
    let inputs = [tensor(&[4], &[1.0, 2.0, 3.0, f32::NAN])?, 2f32.into()];
    for (op, expected) in [
        ("Less", [true, false, false, false]),
        ("LessEqual", [true, true, false, false]),
        ("Greater", [false, false, true, false]),
        ("GreaterEqual", [false, true, true, false]),
        ("Equal", [false, true, false, false]),
        ("NotEqual", [true, false, true, true]),
    ] {
        assert_eq!(bools(op, &inputs, &[])?, expected, "{op}");
    }
    assert_eq!(bools("Less", &[tensor(&[2], &[1u64, u64::MAX])?, (1u64 << 63).into()], &[])?, [true, false]);
    let result = run("Less", &[counting(&[2])?, counting(&[3])?], &[]);
    assert_fails(result, Code::InvalidArgument, "Incompatible shapes: [2] vs. [3]");
    Ok(())
}

#[test]
fn equality_of_strings_and_bools() -> Result<()> {
    let x = Tensor::strings(vec!["a".into(), "b".into()], Shape::new(&[2])?)?;
    assert_eq!(bools("Equal", &[x.clone(), "b".into()], &[])?, [false, true]);
    assert_eq!(bools("NotEqual", &["b".into(), x], &[])?, [true, false]);
    let x = Tensor::bools(&[true, false], Shape::new(&[2])?)?;
    assert_eq!(bools("Equal", &[x, true.into()], &[])?, [true, false]);
    Ok(())
}

#[test]
fn incompatible_shapes_are_unequal_if_allowed() -> Result<()> {
    let inputs = [counting(&[2])?, counting(&[3])?];
    let lenient = [attr("incompatible_shape_error", false)];
    assert_eq!(run("Equal", &inputs, &lenient)?, false.into());
    assert_eq!(run("NotEqual", &inputs, &lenient)?, true.into());
    assert_fails(run("Equal", &inputs, &[]), Code::InvalidArgument, "Incompatible shapes: [2] vs. [3]");
    Ok(())
}

#[test]
fn approximate_equal_uses_the_tolerance() -> Result<()> {
    let x = tensor(&[4], &[1.0, 1.0, f32::NAN, f32::INFINITY])?;
    let y = tensor(&[4], &[1.000_001, 1.1, f32::NAN, f32::INFINITY])?;
    assert_eq!(bools("ApproximateEqual", &[x.clone(), y.clone()], &[])?, [true, false, false, false]);
    let coarse = [attr("tolerance", 0.5f32)];
    assert_eq!(bools("ApproximateEqual", &[x.clone(), y], &coarse)?, [true, true, false, false]);
    let result = run("ApproximateEqual", &[x, 1f32.into()], &[]);
    let message = "x and y must be of the same shape. x shape: [4]. y shape: []";
    assert_fails(result, Code::InvalidArgument, message);
    Ok(())
}

#[test]
fn logical_ops() -> Result<()> {
    let x = Tensor::bools(&[true, true, false, false], Shape::new(&[4])?)?;
    let y = Tensor::bools(&[true, false, true, false], Shape::new(&[4])?)?;
    assert_eq!(bools("LogicalAnd", &[x.clone(), y.clone()], &[])?, [true, false, false, false]);
    assert_eq!(bools("LogicalOr", &[x.clone(), y], &[])?, [true, true, true, false]);
    assert_eq!(bools("LogicalNot", &[x], &[])?, [false, false, true, true]);
    Ok(())
}
