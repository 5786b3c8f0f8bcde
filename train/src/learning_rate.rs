//! Learning rates: constants and schedules over the global step. Names, formulas and defaults of the schedules
//! are those of TensorFlow's decays.

use graph::{DType, Output, Scope};

/// The learning rate of an optimizer. `initial`, `end` and `values` are rates; `decay_steps` and `boundaries`
/// are global steps.
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRate {
    Constant(f64),
    /// `initial * decay_rate ^ (step / decay_steps)`; `staircase` rounds the exponent down.
    ExponentialDecay {
        initial: f64,
        decay_steps: u64,
        decay_rate: f64,
        staircase: bool,
    },
    /// `initial * exp(-decay_rate * step / decay_steps)`.
    NaturalExpDecay {
        initial: f64,
        decay_steps: u64,
        decay_rate: f64,
        staircase: bool,
    },
    /// `initial / (1 + decay_rate * step / decay_steps)`.
    InverseTimeDecay {
        initial: f64,
        decay_steps: u64,
        decay_rate: f64,
        staircase: bool,
    },
    /// From `initial` to `end` along `(1 - step / decay_steps) ^ power`; `cycle` starts the decay again with
    /// ever longer periods.
    PolynomialDecay {
        initial: f64,
        decay_steps: u64,
        end: f64,
        power: f64,
        cycle: bool,
    },
    /// From `initial` down to `alpha * initial` along half a period of a cosine, in `decay_steps` steps.
    CosineDecay {
        initial: f64,
        decay_steps: u64,
        alpha: f64,
    },
    /// `values[0]` up to and including step `boundaries[0]`, then `values[1]`, …: `values` has one element more than
    /// `boundaries`.
    PiecewiseConstant {
        boundaries: Vec<i64>,
        values: Vec<f64>,
    },
    /// Another rate, multiplied by `(step + 1) / steps` in the first `steps` steps.
    Warmup {
        steps: u64,
        rate: Box<LearningRate>,
    },
}

impl From<f64> for LearningRate {
    fn from(rate: f64) -> LearningRate {
        LearningRate::Constant(rate)
    }
}

impl LearningRate {
    /// Returns this rate with a warm-up: it grows from nearly 0 over the first `steps` steps. Large first
    /// steps can make training diverge, more so if replicas do not wait for each other.
    pub fn warmed_up(self, steps: u64) -> LearningRate {
        LearningRate::Warmup { steps, rate: Box::new(self) }
    }

    /// Returns whether the rate depends on the global step.
    pub fn is_scheduled(&self) -> bool {
        !matches!(self, LearningRate::Constant(_))
    }

    /// Adds the nodes that compute the rate at a step: a scalar `double`.
    pub fn at(&self, scope: &Scope, global_step: Output) -> Output {
        let n = |value: f64| scope.constant(value);
        let step = || scope.cast(global_step, DType::Double);
        let periods = |decay_steps: u64, staircase: bool| {
            let periods = scope.div(step(), n(decay_steps.max(1) as f64));
            if staircase { scope.floor(periods) } else { periods }
        };
        match self {
            LearningRate::Constant(rate) => n(*rate),
            LearningRate::ExponentialDecay { initial, decay_steps, decay_rate, staircase } => {
                let power = scope.pow(n(*decay_rate), periods(*decay_steps, *staircase));
                scope.mul(n(*initial), power)
            }
            LearningRate::NaturalExpDecay { initial, decay_steps, decay_rate, staircase } => {
                let exponent = scope.mul(n(-decay_rate), periods(*decay_steps, *staircase));
                scope.mul(n(*initial), scope.exp(exponent))
            }
            LearningRate::InverseTimeDecay { initial, decay_steps, decay_rate, staircase } => {
                let grown = scope.mul(n(*decay_rate), periods(*decay_steps, *staircase));
                scope.div(n(*initial), scope.add(n(1.0), grown))
            }
            LearningRate::PolynomialDecay { initial, decay_steps, end, power, cycle } => {
                let whole = n((*decay_steps).max(1) as f64);
                let (step, whole) = if *cycle {
                    let cycles = scope.maximum(scope.ceil(scope.div(step(), whole)), n(1.0));
                    (step(), scope.mul(whole, cycles))
                } else {
                    (scope.minimum(step(), whole), whole)
                };
                let left = scope.sub(n(1.0), scope.div(step, whole));
                let above_end = scope.mul(n(initial - end), scope.pow(left, n(*power)));
                scope.add(above_end, n(*end))
            }
            LearningRate::CosineDecay { initial, decay_steps, alpha } => {
                let whole = n((*decay_steps).max(1) as f64);
                let done = scope.div(scope.minimum(step(), whole), whole);
                let cosine = scope.cos(scope.mul(n(std::f64::consts::PI), done));
                let falling = scope.mul(n(0.5 * (1.0 - alpha)), scope.add(n(1.0), cosine));
                scope.mul(n(*initial), scope.add(falling, n(*alpha)))
            }
            LearningRate::Warmup { steps, rate } => {
                let grown = scope.div(scope.add(step(), n(1.0)), n((*steps).max(1) as f64));
                scope.mul(rate.at(scope, global_step), scope.minimum(grown, n(1.0)))
            }
            LearningRate::PiecewiseConstant { boundaries, values } => {
                if values.len() != boundaries.len() + 1 {
                    scope.fail(graph::Error::invalid(format!(
                        "PiecewiseConstant has {} boundaries and {} values: it takes one value more than boundaries",
                        boundaries.len(),
                        values.len()
                    )));
                }
                let first = n(values.first().copied().unwrap_or_default());
                let later = boundaries.iter().zip(values.iter().skip(1));
                later.fold(first, |rate, (boundary, value)| {
                    let is_over =
                        scope.op("Greater").input(global_step).input(scope.constant(*boundary)).output();
                    scope.select(is_over, n(*value), rate)
                })
            }
        }
    }
}
