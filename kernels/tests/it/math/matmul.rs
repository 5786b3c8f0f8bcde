//! Tests of the matrix products.

use super::*;
use half::f16;

#[test]
fn products_with_either_side_transposed() -> Result<()> {
    let a = tensor(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let at = tensor(&[3, 2], &[1f32, 4.0, 2.0, 5.0, 3.0, 6.0])?;
    let b = tensor(&[3, 2], &[7f32, 8.0, 9.0, 10.0, 11.0, 12.0])?;
    let bt = tensor(&[2, 3], &[7f32, 9.0, 11.0, 8.0, 10.0, 12.0])?;
    let expected = tensor(&[2, 2], &[58f32, 64.0, 139.0, 154.0])?;
    for (flip_a, a) in [(false, &a), (true, &at)] {
        for (flip_b, b) in [(false, &b), (true, &bt)] {
            let inputs = [a.clone(), b.clone()];
            let attrs = [attr("transpose_a", flip_a), attr("transpose_b", flip_b)];
            assert_eq!(run("MatMul", &inputs, &attrs)?, expected);
            let attrs = [attr("adj_x", flip_a), attr("adj_y", flip_b)];
            assert_eq!(run("BatchMatMul", &inputs, &attrs)?, expected);
            assert_eq!(run("BatchMatMulV2", &inputs, &attrs)?, expected);
        }
    }
    Ok(())
}

#[test]
fn products_of_every_dtype() -> Result<()> {
    fn check<T: Element>(of: fn(u8) -> T) -> Result<()> {
        let (a, b) = (tensor(&[1, 2], &[of(1), of(2)])?, tensor(&[2, 1], &[of(3), of(4)])?);
        assert_eq!(run("MatMul", &[a, b], &[])?, tensor(&[1, 1], &[of(11)])?);
        Ok(())
    }
    check(|v| v as f32)?;
    check(|v| v as f64)?;
    check(|v| f16::from_f32(v.into()))?;
    check(|v| half::bf16::from_f32(v.into()))?;
    check(|v| v as i32)?;
    check(|v| v as i64)
}

#[test]
fn products_with_empty_dimensions() -> Result<()> {
    let out = run("MatMul", &[tensor::<f32>(&[2, 0], &[])?, tensor::<f32>(&[0, 3], &[])?], &[])?;
    assert_eq!(out, tensor(&[2, 3], &[0f32; 6])?);
    let out = run("MatMul", &[tensor::<f32>(&[0, 2], &[])?, counting(&[2, 3])?], &[])?;
    assert_eq!(out.shape().dims(), [0, 3]);
    Ok(())
}

#[test]
fn batches_broadcast() -> Result<()> {
    let x = counting(&[2, 1, 1, 2])?;
    let y = counting(&[3, 2, 1])?;
    let out = run("BatchMatMulV2", &[x, y], &[])?;
    assert_eq!(out, tensor(&[2, 3, 1, 1], &[1f32, 3.0, 5.0, 3.0, 13.0, 23.0])?);
    Ok(())
}

#[test]
fn large_products_agree_with_small_ones() -> Result<()> {
    let n = 320;
    let a: Vec<f64> = (0..n * n).map(|i| (i % 7) as f64 - 3.0).collect();
    let b: Vec<f64> = (0..n * n).map(|i| (i % 5) as f64 - 2.0).collect();
    let out = values::<f64>("MatMul", &[tensor(&[n, n], &a)?, tensor(&[n, n], &b)?], &[])?;
    for i in (0..n).step_by(31) {
        for j in 0..n {
            let expected: f64 = (0..n).map(|k| a[i * n + k] * b[k * n + j]).sum();
            assert_eq!(out[i * n + j], expected);
        }
    }
    Ok(())
}

#[test]
fn incompatible_sizes_are_refused() -> Result<()> {
    let run = |op, a: &[usize], b: &[usize]| run(op, &[counting(a)?, counting(b)?], &[]);
    let invalid = Code::InvalidArgument;
    let message = "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]";
    assert_fails(run("MatMul", &[2, 3], &[2, 3]), invalid, message);
    assert_fails(run("MatMul", &[3], &[3, 3]), invalid, "In[0] is not a matrix. Instead it has shape [3]");
    assert_fails(run("BatchMatMulV2", &[3], &[3, 3]), invalid, "In[0] ndims must be >= 2: 1");
    let message = "In[0] and In[1] must have compatible batch dimensions: [2,3,4] vs. [3,4,2]";
    assert_fails(run("BatchMatMulV2", &[2, 3, 4], &[3, 4, 2]), invalid, message);
    let message = "In[0].dim(0) and In[1].dim(0) must be the same: [2,3,4] vs [1,4,3]";
    assert_fails(run("BatchMatMul", &[2, 3, 4], &[1, 4, 3]), invalid, message);
    Ok(())
}
