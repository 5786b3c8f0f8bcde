//! How variables get their first values.

use crate::variables::Variable;
use graph::{DType, Error, Output, Scope, Shape, Tensor};

/// A rule for the first value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    Zeros,
    /// Every element is this.
    Constant(f64),
    /// A given value.
    Value(Tensor),
    /// The first value of another variable of the same type and shape.
    Like(Variable),
    /// Uniform in ±limit with limit = sqrt(6 / (fan in + fan out)) (Glorot and Bengio, 2010): the fans are the
    /// last two axes, times the size of the axes before them; both are the one axis of a vector, and 1 for a
    /// scalar.
    GlorotUniform {
        seed: i64,
    },
    /// Normal with mean 0 and this deviation, values beyond two deviations drawn again.
    TruncatedNormal {
        stddev: f64,
        seed: i64,
    },
}

/// Which part of a variable is initialised: what depends on the whole (fans, given values) asks here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) whole: &'a Shape,
    /// Where it starts in the whole; empty for the whole.
    pub(crate) offset: &'a [usize],
    /// Which one it is: parts draw different numbers.
    pub(crate) index: i64,
}

impl<'a> Part<'a> {
    /// The whole as the only part.
    pub(crate) fn all(whole: &'a Shape) -> Part<'a> {
        Part { whole, offset: &[], index: 0 }
    }

    /// The part's own seed; 0 asks for one by chance, and stays 0.
    fn seed(&self, seed: i64) -> i64 {
        if seed == 0 { 0 } else { seed.wrapping_add(self.index) }
    }
}

impl Initializer {
    /// Adds the nodes that compute the value of a part, of this shape.
    pub(crate) fn build(&self, scope: &Scope, dtype: DType, shape: &Shape, part: Part<'_>) -> Output {
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
        DType::Int32 => scope.constant(value as i32),
        DType::Int64 => scope.constant(value as i64),
        other => scope.op("Cast").input(scope.constant(value)).attr("DstT", other).output(),
    }
}

/// A constant vector of strings.
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

/// Fan in plus fan out.
fn fan_sum(shape: &Shape) -> f64 {
    match shape.dims() {
        [] => 2.0,
        [both] => 2.0 * (*both).max(1) as f64,
        [field @ .., fan_in, fan_out] => {
            let field: f64 = field.iter().map(|&d| d as f64).product();
            (field * (*fan_in as f64 + *fan_out as f64)).max(2.0)
        }
    }
}
