//! Tests of the reductions, ArgMax and ArgMin, and cumulative ops.

use super::*;
use graph::Bool8;
use half::f16;

fn reduce(op: &str, x: &Tensor, axes: &[i32], keep_dims: bool) -> Result<Tensor> {
    run(op, &[x.clone(), Tensor::vector(axes)?], &[attr("keep_dims", keep_dims)])
}

#[test]
fn sums_along_every_set_of_axes() -> Result<()> {
    let dims = [2, 3, 4, 5];
    let x = counting(&dims)?;
    for set in 0..16usize {
        let axes: Vec<i32> = (0..4).filter(|a| set >> a & 1 == 1).collect();
        let kept: Vec<usize> = (0..4).map(|a| if set >> a & 1 == 1 { 1 } else { dims[a] }).collect();
        let mut expected = vec![0f32; kept.iter().product()];
        for i in 0..120 {
            let (mut rest, mut at, mut step) = (i, 0, 1);
            for a in (0..4).rev() {
                at += (rest % dims[a]) % kept[a] * step;
                rest /= dims[a];
                step *= kept[a];
            }
            expected[at] += i as f32;
        }
        assert_eq!(reduce("Sum", &x, &axes, true)?, tensor(&kept, &expected)?, "{axes:?}");
        let squeezed: Vec<usize> = (0..4).filter(|a| set >> a & 1 == 0).map(|a| dims[a]).collect();
        let negative: Vec<i32> = axes.iter().map(|a| a - 4).collect();
        assert_eq!(reduce("Sum", &x, &negative, false)?, tensor(&squeezed, &expected)?, "{axes:?}");
    }
    Ok(())
}

#[test]
fn invalid_axes_are_refused() -> Result<()> {
    let x = counting(&[2, 3])?;
    let message = "Invalid reduction arguments: Axes contains duplicate dimension: 0";
    assert_fails(reduce("Sum", &x, &[0, -2], false), Code::InvalidArgument, message);
    let message = "Invalid reduction dimension (2 for input with 2 dimension(s)";
    assert_fails(reduce("Max", &x, &[2], false), Code::InvalidArgument, message);
    let message = "Invalid reduction dimension (0 for input with 0 dimension(s)";
    assert_fails(reduce("Mean", &3f32.into(), &[0], false), Code::InvalidArgument, message);
    let wide = run("Sum", &[x, 1i64.into()], &[dtype("Tidx", DType::Int64)])?;
    assert_eq!(wide, tensor(&[2], &[3f32, 12.0])?);
    Ok(())
}

#[test]
fn empty_inputs_reduce_to_the_neutral_element() -> Result<()> {
    for (op, float, int) in [
        ("Sum", 0.0, 0),
        ("Prod", 1.0, 1),
        ("Max", f32::NEG_INFINITY, i32::MIN),
        ("Min", f32::INFINITY, i32::MAX),
        ("Mean", f32::NAN, 0),
        ("EuclideanNorm", 0.0, 0),
    ] {
        let out = reduce(op, &tensor::<f32>(&[0, 2], &[])?, &[0], false)?;
        assert_near(out.values::<f32>()?, &[float, float], 0.0);
        assert_eq!(reduce(op, &tensor::<i32>(&[0, 2], &[])?, &[0], false)?, tensor(&[2], &[int, int])?);
    }
    Ok(())
}

#[test]
fn integers_wrap_but_means_do_not() -> Result<()> {
    assert_eq!(reduce("Sum", &tensor(&[100], &[100i8; 100])?, &[0], false)?, 16i8.into());
    assert_eq!(reduce("Mean", &tensor(&[300], &[200u8; 300])?, &[0], false)?, 200u8.into());
    assert_eq!(reduce("Mean", &tensor(&[4], &[1 << 30; 4])?, &[0], false)?, (1 << 30).into());
    assert_eq!(reduce("Mean", &tensor(&[2], &[-7, -8])?, &[0], false)?, (-7).into());
    assert_eq!(reduce("EuclideanNorm", &tensor(&[3], &[3, 4, 5])?, &[0], false)?, 7.into());
    assert_eq!(reduce("EuclideanNorm", &tensor(&[2], &[3f32, -4.0])?, &[0], false)?, 5f32.into());
    assert_eq!(reduce("Prod", &tensor(&[2], &[100i8, 3])?, &[0], false)?, 44i8.into());
    Ok(())
}

#[test]
fn max_and_min_propagate_nan() -> Result<()> {
    let mut long = vec![3f32; 100];
    long[57] = f32::NAN;
    for op in ["Max", "Min"] {
        let row = reduce(op, &tensor(&[1, 100], &long)?, &[1], false)?;
        let column = reduce(op, &tensor(&[50, 2], &long)?, &[0], false)?;
        assert_near(row.values()?, &[f32::NAN], 0.0);
        assert_near(column.values()?, &[3.0, f32::NAN], 0.0);
    }
    Ok(())
}

#[test]
fn long_sums_stay_exact() -> Result<()> {
    let count = 1usize << 22;
    let tenth = Tensor::full(0.1f32, Shape::new(&[count])?)?;
    let expected = 0.1f32 as f64 * count as f64;
    let near = |t: Tensor, share: f64| -> Result<()> {
        for &v in t.values::<f32>()? {
            assert!((f64::from(v) * share / expected - 1.0).abs() < 4e-6, "{v}");
        }
        Ok(())
    };
    near(reduce("Sum", &tenth, &[0], false)?, 1.0)?;
    near(reduce("Sum", &tenth.reshaped(Shape::new(&[count / 2, 2])?)?, &[0], false)?, 2.0)?;
    near(reduce("Sum", &tenth.reshaped(Shape::new(&[2, count / 2])?)?, &[1], false)?, 2.0)?;
    near(reduce("Sum", &tenth.reshaped(Shape::new(&[2, count / 8, 4])?)?, &[1], false)?, 8.0)?;
    let halves = Tensor::full(f16::from_f32(0.25), Shape::new(&[4000, 2])?)?;
    assert_eq!(reduce("Sum", &halves, &[0], false)?, tensor(&[2], &[f16::from_f32(1000.0); 2])?);
    assert_eq!(reduce("Mean", &halves, &[0, 1], false)?, f16::from_f32(0.25).into());
    Ok(())
}

#[test]
fn all_and_any() -> Result<()> {
    let x = Tensor::bools(&[true, true, true, false], Shape::new(&[2, 2])?)?;
    assert_eq!(reduce("All", &x, &[1], false)?, tensor(&[2], &[Bool8::TRUE, Bool8::FALSE])?);
    assert_eq!(reduce("Any", &x, &[1], false)?, tensor(&[2], &[Bool8::TRUE, Bool8::TRUE])?);
    Ok(())
}

#[test]
fn arg_max_and_arg_min() -> Result<()> {
    let x = tensor(&[2, 3], &[1f32, 5.0, 5.0, 9.0, 2.0, 3.0])?;
    assert_eq!(values::<i64>("ArgMax", &[x.clone(), 1i32.into()], &[])?, [1, 0]);
    assert_eq!(values::<i64>("ArgMax", &[x.clone(), (-2i32).into()], &[])?, [1, 0, 0]);
    let short = [dtype("output_type", DType::Int32)];
    assert_eq!(values::<i32>("ArgMin", &[x.clone(), 1i32.into()], &short)?, [0, 1]);
    let nans = tensor(&[3], &[f32::NAN, 1.0, 3.0])?;
    assert_eq!(run("ArgMax", &[nans.clone(), 0i32.into()], &[])?, 2i64.into());
    assert_eq!(run("ArgMin", &[nans, 0i32.into()], &[])?, 1i64.into());
    let result = run("ArgMax", &[x.clone(), 2i32.into()], &[]);
    assert_fails(result, Code::InvalidArgument, "Expected dimension in the range [-2, 2), but got 2");
    let result = run("ArgMax", &[x, tensor(&[1], &[1])?], &[]);
    assert_fails(result, Code::InvalidArgument, "dim must be a scalar, but received tensor of shape: [1]");
    let result = run("ArgMax", &[counting(&[0, 3])?, 0i32.into()], &[]);
    assert_fails(result, Code::InvalidArgument, "Reduction axis 0 is empty in shape [0,3]");
    Ok(())
}

#[test]
fn cumulative_sums_and_products() -> Result<()> {
    let x = tensor(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let scan = |op, axis: i32, exclusive: bool, reverse: bool| {
        values::<f32>(
            op,
            &[x.clone(), axis.into()],
            &[attr("exclusive", exclusive), attr("reverse", reverse)],
        )
    };
    assert_eq!(scan("Cumsum", 1, false, false)?, [1., 3., 6., 4., 9., 15.]);
    assert_eq!(scan("Cumsum", -1, true, true)?, [5., 3., 0., 11., 6., 0.]);
    assert_eq!(scan("Cumsum", 0, false, false)?, [1., 2., 3., 5., 7., 9.]);
    assert_eq!(scan("Cumprod", 1, true, false)?, [1., 1., 2., 1., 4., 20.]);
    let result = run("Cumsum", &[x, 2i32.into()], &[]);
    assert_fails(result, Code::InvalidArgument, "ScanOp: Expected scan axis in the range [-2, 2), but got 2");
    Ok(())
}
