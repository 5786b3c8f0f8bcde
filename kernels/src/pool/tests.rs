//! Compares pooling with TensorFlow's results for small images, and checks edge cases.

use super::*;
use crate::testing::run_op;
use graph::ops::window::DataFormat;
use graph::{AttrValue, Code};
use half::f16;

fn attrs(dtype: DType, ksize: [i64; 4], strides: [i64; 4], padding: &str) -> Vec<(&'static str, AttrValue)> {
    vec![
        ("T", dtype.into()),
        ("ksize", ksize.to_vec().into()),
        ("strides", strides.to_vec().into()),
        ("padding", padding.into()),
    ]
}

fn image(values: &[f32], dims: [usize; 4]) -> Result<Tensor> {
    Ok(Tensor::from_slice(values, Shape::new(&dims)?)?)
}

fn ramp(dims: [usize; 4]) -> Result<Tensor> {
    let values: Vec<f32> = (0..dims.iter().product::<usize>()).map(|i| i as f32).collect();
    image(&values, dims)
}

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn max_pooling_equals_tensorflows() -> Result<()> {
    let pairs = attrs(DType::Float, [1, 1, 2, 1], [1, 1, 2, 1], "VALID");
    let x = image(&[NAN, 1.0, 2.0, 3.0, NAN, -INF, -INF, NAN], [1, 1, 8, 1])?;
    let y = run_op("MaxPool", std::slice::from_ref(&x), &pairs)?;
    assert_eq!(y[0].values::<f32>()?, [1.0, 3.0, f32::MIN, f32::MIN]);
    let dx = run_op("MaxPoolGrad", &[x, y[0].clone(), image(&[1.0; 4], [1, 1, 4, 1])?], &pairs)?;
    assert_eq!(dx[0].values::<f32>()?, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
    let same = attrs(DType::Float, [1, 3, 3, 1], [1, 2, 2, 1], "SAME");
    let y = run_op("MaxPool", &[ramp([1, 4, 3, 2])?], &same)?;
    assert_eq!(y[0].shape().dims(), [1, 2, 2, 2]);
    assert_eq!(y[0].values::<f32>()?, [14.0, 15.0, 16.0, 17.0, 20.0, 21.0, 22.0, 23.0]);
    Ok(())
}

#[test]
fn ties_go_to_the_first_element() -> Result<()> {
    let a = attrs(DType::Float, [1, 2, 2, 1], [1, 1, 1, 1], "VALID");
    let (x, y) = (image(&[0.0; 9], [1, 3, 3, 1])?, image(&[0.0; 4], [1, 2, 2, 1])?);
    let dx = run_op("MaxPoolGrad", &[x.clone(), y.clone(), image(&[1.0, 2.0, 3.0, 4.0], [1, 2, 2, 1])?], &a)?;
    assert_eq!(dx[0].values::<f32>()?, [1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    let grad = image(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1, 3, 3, 1])?;
    let dy = run_op("MaxPoolGradGrad", &[x.clone(), y, grad.clone()], &a)?;
    assert_eq!(dy[0].values::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
    let other = run_op("MaxPoolGradGrad", &[x, image(&[1.0; 4], [1, 2, 2, 1])?, grad], &a)?;
    assert_eq!(other[0].values::<f32>()?, [0.0; 4]);
    Ok(())
}

#[test]
fn explicit_padding_and_depth() -> Result<()> {
    let x = image(&[0.0, 1.0, 2.0, 3.0].repeat(4), [1, 2, 2, 4])?;
    let mut padded = attrs(DType::Float, [1, 2, 2, 1], [1, 2, 2, 1], "EXPLICIT");
    padded.push(("explicit_paddings", vec![0i64, 0, 1, 1, 1, 0, 0, 0].into()));
    let y = run_op("MaxPool", std::slice::from_ref(&x), &padded)?;
    assert_eq!(y[0].shape().dims(), [1, 2, 1, 4]);
    assert_eq!(y[0].values::<f32>()?, [0.0, 1.0, 2.0, 3.0].repeat(2));
    let deep = attrs(DType::Float, [1, 1, 1, 2], [1, 1, 1, 2], "VALID");
    let y = run_op("MaxPool", std::slice::from_ref(&x), &deep)?;
    assert_eq!(y[0].values::<f32>()?, [1.0, 3.0].repeat(4));
    let code = |op: &str, inputs: &[Tensor], k, s| {
        run_op(op, inputs, &attrs(DType::Float, k, s, "VALID")).map_err(|e| e.code()).err()
    };
    let one = std::slice::from_ref(&x);
    assert_eq!(code("MaxPool", one, [1, 2, 1, 2], [1, 1, 1, 2]), Some(Code::Unimplemented));
    assert_eq!(code("MaxPool", one, [1, 1, 1, 3], [1, 1, 1, 3]), Some(Code::Unimplemented));
    assert_eq!(code("MaxPool", one, [1, 1, 1, 2], [1, 1, 1, 1]), Some(Code::Unimplemented));
    assert_eq!(code("AvgPool", one, [1, 1, 1, 2], [1, 1, 1, 2]), Some(Code::Unimplemented));
    let three = [x.clone(), x.clone(), x.clone()];
    assert_eq!(code("MaxPoolGrad", &three, [1, 1, 1, 2], [1, 1, 1, 2]), Some(Code::Unimplemented));
    Ok(())
}

#[test]
fn means_leave_padding_out() -> Result<()> {
    let a = attrs(DType::Float, [1, 2, 2, 1], [1, 2, 2, 1], "SAME");
    let y = run_op("AvgPool", &[ramp([1, 3, 3, 1])?], &a)?;
    assert_eq!(y[0].values::<f32>()?, [2.0, 3.5, 6.5, 8.0]);
    let shape = Tensor::try_from([1i32, 3, 3, 1])?;
    let dx = run_op("AvgPoolGrad", &[shape, image(&[4.0, 2.0, 2.0, 1.0], [1, 2, 2, 1])?], &a)?;
    assert_eq!(dx[0].values::<f32>()?, [1.0; 9]);
    Ok(())
}

#[test]
fn pooling_is_the_same_with_channels_first() -> Result<()> {
    let (last, first) = (DataFormat::Nhwc, DataFormat::Nchw);
    let x = ramp([2, 5, 4, 3])?;
    let with = |format: DataFormat| {
        let mut a = attrs(DType::Float, format.of_nhwc([1, 3, 2, 1]), format.of_nhwc([1, 2, 1, 1]), "SAME");
        a.push(("data_format", format.to_string().into()));
        a
    };
    let swap = |t: &Tensor| from_nhwc(t.clone(), first);
    let y = run_op("MaxPool", std::slice::from_ref(&x), &with(last))?.remove(0);
    assert_eq!(run_op("MaxPool", &[swap(&x)?], &with(first))?[0], swap(&y)?);
    let dx = run_op("MaxPoolGrad", &[x.clone(), y.clone(), y.clone()], &with(last))?;
    assert_eq!(run_op("MaxPoolGrad", &[swap(&x)?, swap(&y)?, swap(&y)?], &with(first))?[0], swap(&dx[0])?);
    let dy = run_op("MaxPoolGradGrad", &[x.clone(), y.clone(), x.clone()], &with(last))?;
    assert_eq!(
        run_op("MaxPoolGradGrad", &[swap(&x)?, swap(&y)?, swap(&x)?], &with(first))?[0],
        swap(&dy[0])?
    );
    let mean = run_op("AvgPool", std::slice::from_ref(&x), &with(last))?.remove(0);
    assert_eq!(run_op("AvgPool", &[swap(&x)?], &with(first))?[0], swap(&mean)?);
    let dx = run_op("AvgPoolGrad", &[Tensor::try_from([2i32, 5, 4, 3])?, mean.clone()], &with(last))?;
    let dx_first = run_op("AvgPoolGrad", &[Tensor::try_from([2i32, 3, 5, 4])?, swap(&mean)?], &with(first))?;
    assert_eq!(dx_first[0], swap(&dx[0])?);
    Ok(())
}

#[test]
fn int8_and_half_are_pooled() -> Result<()> {
    let a = |d| attrs(d, [1, 1, 2, 1], [1, 1, 2, 1], "SAME");
    let x = Tensor::from_slice(&[-5i8, -3, 100], Shape::new(&[1, 1, 3, 1])?)?;
    assert_eq!(run_op("MaxPool", &[x], &a(DType::Int8))?[0].values::<i8>()?, [-3, 100]);
    let x = Tensor::from_slice(&[f16::ONE, f16::ZERO, f16::NEG_ONE], Shape::new(&[1, 1, 3, 1])?)?;
    let y = run_op("AvgPool", std::slice::from_ref(&x), &a(DType::Half))?;
    assert_eq!(y[0].values::<f16>()?, [f16::from_f32(0.5), f16::NEG_ONE]);
    assert_eq!(run_op("MaxPool", &[x], &a(DType::Half))?[0].values::<f16>()?, [f16::ONE, f16::NEG_ONE]);
    Ok(())
}

#[test]
fn many_images_on_several_threads() -> Result<()> {
    let a = attrs(DType::Float, [1, 2, 2, 1], [1, 2, 2, 1], "VALID");
    let x = ramp([8, 64, 64, 16])?;
    let y = run_op("MaxPool", std::slice::from_ref(&x), &a)?.remove(0);
    // The last element of each window is the largest.
    let last = |i: usize| {
        let [n, h, w, c] = [i / (32 * 32 * 16), i / (32 * 16) % 32, i / 16 % 32, i % 16];
        (((n * 64 + 2 * h + 1) * 64 + 2 * w + 1) * 16 + c) as f32
    };
    assert!(y.values::<f32>()?.iter().enumerate().all(|(i, &v)| v == last(i)));
    let dx = run_op("MaxPoolGrad", &[x.clone(), y.clone(), y.clone()], &a)?.remove(0);
    let right = |(x, dx): (&f32, &f32)| *dx == 0.0 || x == dx;
    assert!(x.values::<f32>()?.iter().zip(dx.values::<f32>()?).all(right));
    assert_eq!(dx.values::<f32>()?.iter().filter(|&&v| v != 0.0).count(), y.num_elements());
    let mean = run_op("AvgPool", &[x], &a)?.remove(0);
    assert!(mean.values::<f32>()?.iter().zip(y.values::<f32>()?).all(|(m, y)| y - m == 32.5 * 16.0));
    let shape = Tensor::try_from([8i32, 64, 64, 16])?;
    let dx = run_op("AvgPoolGrad", &[shape, Tensor::full(4f32, mean.shape().clone())?], &a)?;
    assert!(dx[0].values::<f32>()?.iter().all(|&v| v == 1.0));
    Ok(())
}

#[test]
fn mismatched_sizes_are_refused() -> Result<()> {
    let a = attrs(DType::Float, [1, 2, 2, 1], [1, 1, 1, 1], "VALID");
    let message = |op: &str, inputs: &[Tensor]| -> String {
        let error = run_op(op, inputs, &a).err().filter(|e| e.code() == Code::InvalidArgument);
        error.map(|e| e.to_string()).unwrap_or_default()
    };
    let (x, y, wide) = (ramp([1, 3, 3, 1])?, ramp([1, 2, 2, 1])?, ramp([1, 2, 3, 1])?);
    assert_eq!(
        message("MaxPoolGrad", &[x.clone(), wide.clone(), y.clone()]),
        "Expected orig_output shape to be [1,2,2,1], but got [1,2,3,1]"
    );
    assert_eq!(
        message("MaxPoolGrad", &[x.clone(), y.clone(), wide.clone()]),
        "Expected grad shape to be [1,2,2,1], but got [1,2,3,1]"
    );
    assert!(
        message("MaxPoolGradGrad", &[x.clone(), y.clone(), y.clone()]).starts_with("Expected grad shape")
    );
    assert!(message("AvgPoolGrad", &[Tensor::try_from([1i32, 3, 3])?, y.clone()]).contains("4 elements"));
    assert!(
        message("AvgPoolGrad", &[Tensor::try_from([1i32, 3, 3, 1])?, wide])
            .starts_with("Expected grad shape")
    );
    assert!(!message("AvgPoolGrad", &[Tensor::try_from([i32::MAX; 4])?, y]).is_empty());
    assert!(message("MaxPool", &[ramp([1, 0, 3, 1])?]).starts_with("Computed output size would be negative"));
    assert!(!message("MaxPool", &[Tensor::scalar(1f32)]).is_empty());
    let empty = run_op("MaxPool", &[ramp([0, 3, 3, 1])?], &a)?;
    assert_eq!(empty[0].shape().dims(), [0, 2, 2, 1]);
    let none = run_op("AvgPool", &[ramp([1, 3, 3, 0])?], &a)?;
    assert_eq!(none[0].shape().dims(), [1, 2, 2, 0]);
    Ok(())
}
