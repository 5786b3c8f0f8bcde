//! Initializers: the rules that compute the first values of variables.

use crate::variables::Variable;
use graph::{DType, Error, Output, Scope, Shape, Tensor};

/// The rule that computes the first value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    Zeros,
    /// One value for every element.
    Constant(f64),
    /// A given tensor, of the variable's type and shape.
    Value(Tensor),
    /// The first value of another variable of the same type and shape.
    Like(Variable),
    /// Uniform in ±limit with limit = sqrt(6 / (fan in + fan out)) (Glorot and Bengio, 2010). Fan in and fan out are
    /// the sizes of the last two axes, each times the product of the sizes of the axes before them. Both fans of a
    /// vector are its length, and both fans of a scalar are 1.
    GlorotUniform {
        seed: i64,
    },
    /// Normal with mean 0 and standard deviation `stddev`; values beyond two standard deviations are drawn again.
    TruncatedNormal {
        stddev: f64,
        seed: i64,
    },
}

/// The part of a partitioned variable that is initialised. The fans of [`Initializer::GlorotUniform`] and the tensor of
/// [`Initializer::Value`] are those of the whole variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariablePart<'a> {
    /// The shape of the whole variable.
    pub(crate) whole: &'a Shape,
    /// The index of the part's first element along each axis of the whole variable; empty if the part is the whole.
    pub(crate) offset: &'a [usize],
    /// The index of the part, which is added to the seed so that parts draw different random numbers.
    pub(crate) index: i64,
}

impl<'a> VariablePart<'a> {
    /// Returns the part that covers the whole of a variable, for a variable that is not partitioned.
    pub(crate) fn all(whole: &'a Shape) -> VariablePart<'a> {
        VariablePart { whole, offset: &[], index: 0 }
    }

    /// Returns `seed` plus the part's index. The seed 0, which requests a random seed, stays 0.
    fn seed(&self, seed: i64) -> i64 {
        if seed == 0 { 0 } else { seed.wrapping_add(self.index) }
    }
}

impl Initializer {
    /// Adds the nodes that compute the first value of a part with shape `shape`.
    pub(crate) fn build(&self, scope: &Scope, dtype: DType, shape: &Shape, part: VariablePart<'_>) -> Output {
        match self {
            Initializer::Zeros => filled(scope, dtype, shape, 0.0),
            Initializer::Constant(value) => filled(scope, dtype, shape, *value),
            Initializer::Like(other) => {
                let after = scope.control(&[other.initializer]);
                after.read_variable(other.handle, other.dtype)
            }
            Initializer::Value(value) if value.dtype() != dtype || value.shape() != part.whole => {
                let (has, needs) = ((value.dtype(), value.shape()), (dtype, part.whole));
                scope.fail(Error::invalid(format!(
                    "the first value is {} of shape {}, the variable {} of shape {}",
                    has.0, has.1, needs.0, needs.1
                )));
                scope.constant(value.clone())
            }
            Initializer::Value(value) if part.offset.is_empty() => scope.constant(value.clone()),
            Initializer::Value(value) => {
                let numbers = |dims: &[usize]| dims.iter().map(|&d| d as i64).collect::<Vec<_>>();
                scope.slice(scope.constant(value.clone()), &numbers(part.offset), &numbers(shape.dims()))
            }
            Initializer::GlorotUniform { seed } => {
                let limit = (6.0 / fan_sum(part.whole)).sqrt();
                let unit = random(scope, "RandomUniform", dtype, shape, part.seed(*seed));
                let scaled = scope.mul(unit, number(scope, dtype, 2.0 * limit));
                scope.sub(scaled, number(scope, dtype, limit))
            }
            Initializer::TruncatedNormal { stddev, seed } => {
                let unit = random(scope, "TruncatedNormal", dtype, shape, part.seed(*seed));
                scope.mul(unit, number(scope, dtype, *stddev))
            }
        }
    }
}

/// Adds a random op whose attributes `seed` and `seed2` are both `seed`.
fn random(scope: &Scope, op: &str, dtype: DType, shape: &Shape, seed: i64) -> Output {
    scope
        .op(op)
        .input(sizes(scope, shape))
        .attr("dtype", dtype)
        .attr("seed", seed)
        .attr("seed2", seed)
        .output()
}

/// Adds a tensor whose elements are all `value`.
fn filled(scope: &Scope, dtype: DType, shape: &Shape, value: f64) -> Output {
    scope.op("Fill").input(sizes(scope, shape)).input(number(scope, dtype, value)).output()
}

/// Adds the dimensions of a shape as a constant vector of `int64`.
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

/// Adds a scalar constant with `value` converted to `dtype`.
pub(crate) fn number(scope: &Scope, dtype: DType, value: f64) -> Output {
    match dtype {
        DType::Float => scope.constant(value as f32),
        DType::Double => scope.constant(value),
        DType::Int32 => scope.constant(value as i32),
        DType::Int64 => scope.constant(value as i64),
        other => scope.op("Cast").input(scope.constant(value)).attr("DstT", other).output(),
    }
}

/// Adds a constant vector of strings.
pub(crate) fn strings(scope: &Scope, values: impl Iterator<Item = String>) -> Output {
    let values: Vec<bytes::Bytes> = values.map(bytes::Bytes::from).collect();
    let vector = Shape::new(&[values.len()]).and_then(|shape| Tensor::strings(values, shape));
    match vector {
        Ok(vector) => scope.constant(vector),
        Err(error) => {
            scope.fail(error);
            scope.constant("")
        }
    }
}

/// Returns the sum of fan in and fan out of a variable with this shape, for [`Initializer::GlorotUniform`].
fn fan_sum(shape: &Shape) -> f64 {
    match shape.dims() {
        [] => 2.0,
        [length] => 2.0 * (*length).max(1) as f64,
        [field @ .., fan_in, fan_out] => {
            let field: f64 = field.iter().map(|&d| d as f64).product();
            (field * (*fan_in as f64 + *fan_out as f64)).max(2.0)
        }
    }
}
