//! How variables get their first values.

use graph::{DType, Output, Scope, Shape, Tensor};

/// A rule for the first value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    Zeros,
    /// Every element is this.
    Constant(f64),
    /// A given value.
    Value(Tensor),
    /// Uniform in ±limit with limit = sqrt(6 / (fan in + fan out)) (Glorot and Bengio, 2010): the fans are the
    /// last two axes, times the size of the axes before them.
    GlorotUniform {
        seed: i64,
    },
    /// Normal with mean 0 and this deviation, values beyond two deviations drawn again.
    TruncatedNormal {
        stddev: f64,
        seed: i64,
    },
}

impl Initializer {
    /// Adds the nodes that compute the value.
    pub(crate) fn build(&self, scope: &Scope, dtype: DType, shape: &Shape) -> Output {
        match self {
            Initializer::Zeros => filled(scope, dtype, shape, 0.0),
            Initializer::Constant(value) => filled(scope, dtype, shape, *value),
            Initializer::Value(value) => scope.constant(value.clone()),
            Initializer::GlorotUniform { seed } => {
                let limit = (6.0 / fan_sum(shape)).sqrt();
                let unit = random(scope, "RandomUniform", dtype, shape, *seed);
                let scaled = scope.mul(unit, number(scope, dtype, 2.0 * limit));
                scope.sub(scaled, number(scope, dtype, limit))
            }
            Initializer::TruncatedNormal { stddev, seed } => {
                let unit = random(scope, "TruncatedNormal", dtype, shape, *seed);
                scope.mul(unit, number(scope, dtype, *stddev))
            }
        }
    }
}

fn random(scope: &Scope, op: &str, dtype: DType, shape: &Shape, seed: i64) -> Output {
    scope
        .op(op)
        .input(sizes(scope, shape))
        .attr("dtype", dtype)
        .attr("seed", seed)
        .attr("seed2", seed)
        .output()
}

fn filled(scope: &Scope, dtype: DType, shape: &Shape, value: f64) -> Output {
    scope.op("Fill").input(sizes(scope, shape)).input(number(scope, dtype, value)).output()
}

fn sizes(scope: &Scope, shape: &Shape) -> Output {
    let dims: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
    match Tensor::vector(&dims) {
        Ok(dims) => scope.constant(dims),
        Err(error) => {
            scope.fail(error);
            scope.constant(0i64)
        }
    }
}

/// A scalar constant of a floating or integer type.
pub(crate) fn number(scope: &Scope, dtype: DType, value: f64) -> Output {
    match dtype {
        DType::Float => scope.constant(value as f32),
        DType::Double => scope.constant(value),
        other => scope.op("Cast").input(scope.constant(value)).attr("DstT", other).output(),
    }
}

fn fan_sum(shape: &Shape) -> f64 {
    let field: usize = shape.iter().rev().skip(2).product();
    let fans: usize = shape.iter().rev().take(2).sum();
    (fans * field).max(1) as f64
}
