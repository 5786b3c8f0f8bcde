//! Tests of initializers: shapes, ranges, and seeds.

use super::{Fallible, session};
use anabranch_train::{Initializer, Variables};
use graph::{DType, Scope, Tensor};

/// Returns the first value of a variable of this shape.
fn first_value(dtype: DType, shape: &[usize], initializer: &Initializer) -> Fallible<Tensor> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let variable = variables.get("v", dtype, shape, initializer);
    let initialize = variables.initializer();
    let session = session(scope.finish()?, 1)?;
    session.run(&[], &[], &[initialize])?;
    let value = session.run(&[], &[variable.value], &[])?.remove(0);
    assert_eq!((value.dtype(), value.shape().dims()), (dtype, shape));
    Ok(value)
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, v| most.max(v.abs()))
}

#[test]
fn zeros_and_constants_of_each_kind_of_type() -> Fallible {
    assert_eq!(first_value(DType::Float, &[2, 3], &Initializer::Zeros)?.values::<f32>()?, [0.0; 6]);
    assert_eq!(first_value(DType::Int64, &[2], &Initializer::Constant(7.0))?.values::<i64>()?, [7, 7]);
    assert_eq!(first_value(DType::Double, &[], &Initializer::Constant(0.1))?.item::<f64>()?, 0.1);
    let half = first_value(DType::Half, &[1], &Initializer::Constant(0.5))?;
    assert_eq!(half.to_string().matches("0.5").count(), 1, "{half}");
    Ok(())
}

#[test]
fn glorot_values_fill_their_range() -> Fallible {
    for (shape, fans) in [(&[200, 100][..], 300.0), (&[3, 3, 20, 60], 9.0 * 80.0), (&[3000], 6000.0)] {
        let limit = (6.0f32 / fans).sqrt();
        let value = first_value(DType::Float, shape, &Initializer::GlorotUniform { seed: 3 })?;
        let values = value.values::<f32>()?;
        assert!(largest(values) <= limit * 1.000_001, "{shape:?}: {} > {limit}", largest(values));
        assert!(largest(values) > 0.98 * limit, "{shape:?}: {} < {limit}", largest(values));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.05 * limit, "{shape:?}: {mean}");
    }
    Ok(())
}

#[test]
fn truncated_normal_stays_within_two_deviations() -> Fallible {
    let initializer = Initializer::TruncatedNormal { stddev: 0.5, seed: 3 };
    let value = first_value(DType::Float, &[100, 100], &initializer)?;
    let values = value.values::<f32>()?;
    assert!(largest(values) <= 1.0 && largest(values) > 0.95, "{}", largest(values));
    let deviation = (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt();
    // A normal distribution truncated at two standard deviations has 0.88 of its standard deviation.
    assert!((deviation - 0.88 * 0.5).abs() < 0.01, "{deviation}");
    Ok(())
}

#[test]
fn a_seed_decides_the_values() -> Fallible {
    let of_seed = |seed| first_value(DType::Float, &[8], &Initializer::GlorotUniform { seed });
    assert_eq!(of_seed(5)?.values::<f32>()?, of_seed(5)?.values::<f32>()?);
    assert_ne!(of_seed(5)?.values::<f32>()?, of_seed(6)?.values::<f32>()?);
    Ok(())
}

#[test]
fn a_given_value_must_match_type_and_shape() -> Fallible {
    let given = Initializer::Value(Tensor::try_from([1.0f32, 2.0])?);
    assert_eq!(first_value(DType::Float, &[2], &given)?.values::<f32>()?, [1.0, 2.0]);
    let refused = first_value(DType::Float, &[3], &given).err().ok_or("the value was accepted")?;
    assert!(refused.to_string().contains("shape [3]"), "{refused}");
    assert!(first_value(DType::Double, &[2], &given).is_err());
    Ok(())
}
