//! Tests of the unary element-wise ops and their gradients.

use super::*;
use half::f16;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn apply(op: &str, x: &[f32]) -> Result<Vec<f32>> {
    values::<f32>(op, &[tensor(&[x.len()], x)?], &[])
}

#[test]
fn approximations_at_the_edges_of_their_range() -> Result<()> {
    let x = [-1000.0, 1000.0, -90.0, 88.0, 88.7, 88.8, NAN, INF, -INF, 0.0, -0.0];
    let exp = [0.0, INF, 0.0, 1.651_636_3e38, 3.325_976_9e38, INF, NAN, INF, 0.0, 1.0, 1.0];
    assert_near(&apply("Exp", &x)?, &exp, 1e-6);
    // The greatest argument of `Exp` with a finite result and the least with a normal result, each followed by the next
    // argument beyond it.
    let ends = apply("Exp", &[88.722_83, 88.722_84, -87.336_54, -87.336_55])?;
    assert_near(&ends, &[3.402_798_5e38, INF, 1.175_499_7e-38, 0.0], 1e-6);
    let x = [0.0, -0.0, -1.0, INF, NAN, 1.0, 1e-45];
    assert_near(&apply("Log", &x)?, &[-INF, -INF, NAN, INF, NAN, 0.0, -103.278_93], 1e-5);
    let x = [-1000.0, 1000.0, 7.9, 1e-4, 1e-10, NAN, INF, -INF];
    assert_near(&apply("Tanh", &x)?, &[-1.0, 1.0, 0.999_999_7, 1e-4, 1e-10, NAN, 1.0, -1.0], 1e-6);
    assert!(apply("Tanh", &[-0.0])?[0].is_sign_negative());
    let x = [-1000.0, 1000.0, -50.0, -20.0, 20.0, NAN, INF, -INF, 0.0];
    let sigmoid = [0.0, 1.0, 1.928_75e-22, 2.061_153_6e-9, 1.0, NAN, 1.0, 0.0, 0.5];
    assert_near(&apply("Sigmoid", &x)?, &sigmoid, 1e-6);
    Ok(())
}

#[test]
fn approximations_are_accurate_to_a_few_last_bits() -> Result<()> {
    let wide: Vec<f32> = (0..200_001).map(|i| (i as f32 - 100_000.0) * 8.7e-4).collect();
    let narrow: Vec<f32> = wide.iter().map(|v| v * 0.1).collect();
    let positive: Vec<f32> = (0..200_001).map(|i| ((i as f32 - 100_000.0) * 8.7e-4).exp()).collect();
    type Exact = fn(f64) -> f64;
    let cases: [(&str, &[f32], Exact, f64); 5] = [
        ("Exp", &wide, f64::exp, 2e-7),
        ("Log", &positive, f64::ln, 2e-7),
        ("Tanh", &narrow, f64::tanh, 4e-7),
        ("Tanh", &wide, f64::tanh, 4e-7),
        ("Sigmoid", &wide, |x| 1.0 / (1.0 + (-x).exp()), 3e-7),
    ];
    for (op, x, exact, tolerance) in cases {
        for (&got, &x) in apply(op, x)?.iter().zip(x) {
            let expected = exact(x.into());
            let error = (f64::from(got) - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
            assert!(error <= tolerance || expected.abs() < 1.2e-38, "{op}({x:e}) = {got:e}: error {error:e}");
        }
    }
    Ok(())
}

#[test]
fn rounding_to_integers() -> Result<()> {
    let x = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, NAN, INF, 8_388_609.0];
    for op in ["Round", "Rint"] {
        assert_near(&apply(op, &x)?, &[0.0, 2.0, 2.0, 0.0, -2.0, -2.0, NAN, INF, 8_388_609.0], 0.0);
    }
    assert_eq!(apply("Floor", &[-1.5, 1.5])?, [-2.0, 1.0]);
    assert_eq!(apply("Ceil", &[-1.5, 1.5])?, [-1.0, 2.0]);
    assert_eq!(values::<i32>("Round", &[tensor(&[2], &[5, -5])?], &[])?, [5, -5]);
    Ok(())
}

#[test]
fn signs_and_magnitudes() -> Result<()> {
    assert_near(&apply("Sign", &[NAN, 0.0, -3.0, INF])?, &[NAN, 0.0, -1.0, 1.0], 0.0);
    assert_eq!(values::<i32>("Sign", &[tensor(&[3], &[-3, 0, 5])?], &[])?, [-1, 0, 1]);
    assert_eq!(values::<i32>("Abs", &[tensor(&[2], &[i32::MIN, -2])?], &[])?, [i32::MIN, 2]);
    assert_eq!(values::<u8>("Invert", &[tensor(&[2], &[0u8, 254])?], &[])?, [255, 1]);
    assert_eq!(values::<u8>("PopulationCount", &[tensor(&[2], &[-1i16, 5])?], &[])?, [16, 2]);
    Ok(())
}

#[test]
fn roots_and_reciprocals() -> Result<()> {
    assert_near(&apply("Rsqrt", &[0.0, -1.0, INF, 4.0])?, &[INF, NAN, 0.0, 0.5], 0.0);
    assert_near(&apply("Sqrt", &[-1.0, INF, 4.0])?, &[NAN, INF, 2.0], 0.0);
    assert_near(&apply("Reciprocal", &[0.0, 4.0])?, &[INF, 0.25], 0.0);
    Ok(())
}

#[test]
fn special_functions() -> Result<()> {
    let x = [0.0, -1.0, -0.5, 1.0, 100.0, NAN, INF, 1e-10];
    let digamma = [NAN, NAN, 0.036_489_974, -0.577_215_7, 4.600_162, NAN, INF, -1e10];
    assert_near(&apply("Digamma", &x)?, &digamma, 1e-6);
    let x = [0.0, -1.0, -0.5, 1.0, 100.0, NAN, INF, -INF];
    assert_near(&apply("Lgamma", &x)?, &[INF, INF, 1.265_512_1, 0.0, 359.134_2, NAN, INF, INF], 1e-6);
    assert_near(&apply("Erf", &[0.0, 0.5, -INF])?, &[0.0, 0.520_499_9, -1.0], 1e-6);
    assert_near(&apply("Erfc", &[0.0, 3.0])?, &[1.0, 2.209_049_7e-5], 1e-6);
    assert_near(&apply("Expm1", &[1e-10, -INF])?, &[1e-10, -1.0], 1e-6);
    assert_near(&apply("Log1p", &[-1.0, -2.0, 1e-10])?, &[-INF, NAN, 1e-10], 1e-6);
    assert_near(&apply("Atanh", &[-0.999_68, 0.5])?, &[-4.370_025_6, 0.549_306_15], 1e-4);
    Ok(())
}

#[test]
fn float_classification() -> Result<()> {
    let x = tensor(&[3], &[f16::NAN, f16::INFINITY, f16::ONE])?;
    for (op, expected) in
        [("IsNan", [true, false, false]), ("IsInf", [false, true, false]), ("IsFinite", [false, false, true])]
    {
        assert_eq!(run(op, std::slice::from_ref(&x), &[])?, Tensor::bools(&expected, Shape::new(&[3])?)?);
    }
    Ok(())
}

#[test]
fn gradient_factors_of_unary_ops() -> Result<()> {
    let inputs = [tensor(&[2], &[0.5f32, 0.25])?, tensor(&[2], &[2.0f32, 3.0])?];
    for (op, expected) in [
        ("SigmoidGrad", [0.5, 0.5625]),
        ("TanhGrad", [1.5, 2.8125]),
        ("SqrtGrad", [2.0, 6.0]),
        ("RsqrtGrad", [-0.125, -0.023_437_5]),
        ("ReciprocalGrad", [-0.5, -0.1875]),
        ("InvGrad", [-0.5, -0.1875]),
    ] {
        assert_near(&values::<f32>(op, &inputs, &[])?, &expected, 1e-6);
        let result = run(op, &[inputs[0].clone(), 2f32.into()], &[]);
        let message = "The two arguments to a cwise op must have same number of elements, got 2 and 1";
        assert_fails(result, Code::InvalidArgument, message);
    }
    Ok(())
}
