//! Tests of normalisation with empty batches, for which TensorFlow's kernels leave some outputs unset.

use super::*;
use crate::testing::run_op;

#[test]
fn an_empty_batch_has_no_moments() -> Result<()> {
    let zeros = |dims: &[usize]| -> Result<Tensor> { Ok(Tensor::zeros(DType::Float, Shape::new(dims)?)?) };
    let inputs = [zeros(&[0, 2, 2, 3])?, zeros(&[3])?, zeros(&[3])?, zeros(&[0])?, zeros(&[0])?];
    let out = run_op("FusedBatchNormV3", &inputs, &[("T", DType::Float.into()), ("U", DType::Float.into())])?;
    assert_eq!(out[0].shape().dims(), [0, 2, 2, 3]);
    assert!(out[1].values::<f32>()?.iter().all(|v| v.is_nan()));
    assert_eq!(out[3].values::<f32>()?, [0.0; 3]);
    Ok(())
}
