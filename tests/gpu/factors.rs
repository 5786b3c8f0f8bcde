//! Comparison of matrix decompositions that are not unique, by properties that all decompositions of a matrix share.

use super::{Fallible, difference};
use graph::{DType, Shape, Tensor};
use kernels::testing::run_op;

/// Returns the difference between the outputs of a decomposition that is not unique, or `Some(None)` if they agree.
/// Returns `None` for all other ops.
pub(super) fn difference_of_factors(
    op: &str,
    actual: &[&Tensor],
    expected: &[&Tensor],
) -> Fallible<Option<Option<String>>> {
    let (left, right) = match op {
        "SelfAdjointEigV2" => (1, 1),
        "Svd" => (1, 2),
        _ => return Ok(None),
    };
    for (actual, expected) in actual.iter().zip(expected) {
        if actual.shape() != expected.shape() || actual.dtype() != expected.dtype() {
            return Ok(Some(Some(format!("{actual:?} is not {expected:?}"))));
        }
    }
    // Eigenvalues and singular values are unique. They are the only result of an op that computes no vectors.
    if let Some(how) = difference(actual[0], expected[0])? {
        return Ok(Some(Some(format!("values: {how}"))));
    }
    if actual[left].shape().rank() == 0 {
        return Ok(Some(None));
    }
    for side in [left, right] {
        let angles = |of: &Tensor| product(of, of, true);
        if let Some(how) = difference(&angles(actual[side])?, &angles(expected[side])?)? {
            return Ok(Some(Some(format!("vectors {side} with each other: {how}"))));
        }
    }
    let whole = |of: &[&Tensor]| whole(of[0], of[left], of[right]);
    let how = difference(&whole(actual)?, &whole(expected)?)?;
    Ok(Some(how.map(|how| format!("their product: {how}"))))
}

/// Returns the products of two batches of matrices, with the adjoint matrices of the first batch if `is_first` is true,
/// or else of the second batch.
fn product(a: &Tensor, b: &Tensor, is_first: bool) -> Fallible<Tensor> {
    let turned = if is_first { "adj_x" } else { "adj_y" };
    let attrs = [("T", a.dtype().into()), (turned, true.into())];
    Ok(run_op("BatchMatMulV2", &[a.clone(), b.clone()], &attrs)?.remove(0))
}

/// Returns the decomposed matrices, computed from eigenvalues or singular values and their left and right vectors.
fn whole(values: &Tensor, left: &Tensor, right: &Tensor) -> Fallible<Tensor> {
    let count = values.shape()[values.shape().rank() - 1];
    let attrs = [("T", left.dtype().into()), ("Index", DType::Int64.into())];
    let own = |of: &Tensor| -> Fallible<Tensor> {
        let rank = of.shape().rank();
        let mut size = vec![-1i64; rank];
        size[rank - 1] = count as i64;
        let box_of = [of.clone(), Tensor::vector(&vec![0i64; rank])?, Tensor::vector(&size)?];
        Ok(run_op("Slice", &box_of, &attrs)?.remove(0))
    };
    let mut dims = values.shape().dims().to_vec();
    dims.insert(dims.len() - 1, 1);
    let row = values.clone().reshaped(Shape::new(&dims)?)?;
    let scaled = run_op("Mul", &[own(left)?, row], &[("T", left.dtype().into())])?.remove(0);
    product(&scaled, &own(right)?, false)
}

#[test]
fn factors_are_compared_up_to_sign() -> Fallible {
    let matrix = |values: &[f64]| Tensor::from_slice(values, Shape::new(&[2, 2])?);
    let values = Tensor::vector(&[1.0, 3.0])?;
    let (c, s) = (0.8, 0.6);
    let expected = matrix(&[c, s, -s, c])?;
    let how = |values: &Tensor, vectors: &Tensor, of: &Tensor| {
        let values = [values, vectors];
        difference_of_factors("SelfAdjointEigV2", &values, &[&Tensor::vector(&[1.0, 3.0])?, of])
    };
    assert_eq!(how(&values, &matrix(&[-c, s, s, c])?, &expected)?, Some(None));
    for (values, vectors) in [
        (values.clone(), matrix(&[c, s, s, c])?),
        (values.clone(), matrix(&[s, c, c, -s])?),
        (values.clone(), matrix(&[c, 0.0, -s, 0.0])?),
        (Tensor::vector(&[1.0, 2.0])?, expected.clone()),
    ] {
        assert!(how(&values, &vectors, &expected)?.flatten().is_some(), "{vectors:?}");
    }
    assert_eq!(difference_of_factors("Qr", &[], &[])?, None);
    Ok(())
}
