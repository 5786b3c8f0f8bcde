//! Tests of each optimizer: its first step compared with a formula, and its convergence to the minimum.

use super::{Fallible, assert_close, session};
use anabranch_train::{Initializer, Optimizer, Strategy, Training, Variables};
use graph::{DType, Output, Scope, Tensor};

const START: [f64; 2] = [1.0, -2.0];
const RATE: f64 = 0.1;

/// Adds the loss `sum(w²) / 2`, whose gradient is `w` itself.
fn bowl(scope: &Scope, variables: &Variables, _: &[Output]) -> Output {
    let start = Tensor::try_from(START.map(|s| s as f32));
    let w = match start {
        Ok(start) => variables.get("w", DType::Float, &[2], &Initializer::Value(start)),
        Err(error) => {
            scope.fail(error);
            variables.get("w", DType::Float, &[2], &Initializer::Zeros)
        }
    };
    scope.mul(scope.sum(scope.square(w.value), &[0], false), scope.constant(0.5f32))
}

fn minimize(scope: &Scope, variables: &Variables, optimizer: &Optimizer) -> Fallible<Training> {
    Ok(Strategy::Local.minimize(scope, variables, optimizer, &[], bowl)?)
}

/// Trains for `steps` steps. Returns the variable's value and the loss of the last step.
fn after(steps: usize, optimizer: &Optimizer) -> Fallible<(Tensor, f32)> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let training = minimize(&scope, &variables, optimizer)?;
    let session = session(scope.finish()?, 1)?;
    session.run(&[], &[], &[training.initialize])?;
    let mut loss = f32::NAN;
    for _ in 0..steps {
        loss = session.run(&[], &[training.loss], &[training.train])?[0].item()?;
    }
    let w = variables.find("w").ok_or("no variable")?;
    let values = session.run(&[], &[w.value, training.global_step], &[])?;
    assert_eq!(values[1].item::<i64>()?, steps as i64);
    Ok((values[0].clone(), loss))
}

/// Runs one step, and compares each element of the variable with `by_hand` applied to its initial value, which is also
/// its gradient.
fn first_step(optimizer: &Optimizer, by_hand: impl Fn(f64) -> f64) -> Fallible {
    assert_close(&after(1, optimizer)?.0, &START.map(by_hand))
}

fn reaches_the_minimum(optimizer: &Optimizer) -> Fallible {
    let (w, loss) = after(500, optimizer)?;
    assert!(loss < 1e-3, "{optimizer:?}: the loss is {loss} at {w:?}");
    Ok(())
}

#[test]
fn gradient_descent() -> Fallible {
    first_step(&Optimizer::gradient_descent(RATE), |w| w - RATE * w)?;
    reaches_the_minimum(&Optimizer::gradient_descent(RATE))
}

#[test]
fn momentum() -> Fallible {
    let optimizer = Optimizer::momentum(RATE, 0.9);
    first_step(&optimizer, |w| w - RATE * w)?;
    let second = |w: f64| {
        let first = w - RATE * w;
        first - RATE * (0.9 * w + first)
    };
    assert_close(&after(2, &optimizer)?.0, &START.map(second))?;
    reaches_the_minimum(&optimizer)
}

#[test]
fn nesterov_momentum() -> Fallible {
    let optimizer = Optimizer::Momentum { learning_rate: RATE.into(), momentum: 0.9, use_nesterov: true };
    first_step(&optimizer, |w| w - RATE * (w + 0.9 * w))?;
    reaches_the_minimum(&optimizer)
}

#[test]
fn adam() -> Fallible {
    let optimizer = Optimizer::adam(RATE);
    // In each step of the reference the gradient is the current value of `w`.
    let by_hand = |mut w: f64, steps: i32| {
        let (mut m, mut v) = (0.0, 0.0);
        for step in 1..=steps {
            let g = w;
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let rate = RATE * (1.0 - 0.999f64.powi(step)).sqrt() / (1.0 - 0.9f64.powi(step));
            w -= rate * m / (v.sqrt() + 1e-8);
        }
        w
    };
    for steps in [1, 2] {
        let (w, _) = after(steps, &optimizer)?;
        let found = w.values::<f32>()?;
        for (found, start) in found.iter().zip(START) {
            let expected = by_hand(start, steps as i32);
            // In `f32`, 1 - 0.999 has a relative error of 1e-5, so the tolerance is as large.
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} is not {expected}");
        }
    }
    reaches_the_minimum(&optimizer)
}

#[test]
fn adagrad() -> Fallible {
    first_step(&Optimizer::adagrad(RATE), |w| w - RATE * w / (0.1 + w * w).sqrt())?;
    reaches_the_minimum(&Optimizer::adagrad(0.5))
}

#[test]
fn rms_prop() -> Fallible {
    first_step(&Optimizer::rms_prop(RATE), |w| w - RATE * w / (0.9 + 0.1 * w * w + 1e-10).sqrt())?;
    reaches_the_minimum(&Optimizer::rms_prop(0.01))
}

#[test]
fn ftrl() -> Fallible {
    let (l1, l2) = (0.05, 0.01);
    let regularized = Optimizer::Ftrl {
        learning_rate: RATE.into(),
        learning_rate_power: -0.5,
        initial_accumulator_value: 0.1,
        l1,
        l2,
    };
    let by_hand = |l1: f64, l2: f64| {
        move |w: f64| {
            let root = (0.1 + w * w).sqrt();
            let linear = w - (root - 0.1f64.sqrt()) / RATE * w;
            if linear.abs() <= l1 { 0.0 } else { (l1 * linear.signum() - linear) / (root / RATE + 2.0 * l2) }
        }
    };
    first_step(&Optimizer::ftrl(RATE), by_hand(0.0, 0.0))?;
    first_step(&regularized, by_hand(l1, l2))?;
    reaches_the_minimum(&Optimizer::ftrl(0.5))
}

#[test]
fn adam_trains_variables_of_several_types_together() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let types = [DType::Half, DType::Float, DType::Double];
    let training =
        Strategy::Local.minimize(&scope, &variables, &Optimizer::adam(0.1), &[], |scope, of, _| {
            let squares = types.map(|dtype| {
                let w = of.get(dtype.name(), dtype, &[], &Initializer::Constant(1.0));
                scope.cast(scope.square(w.value), DType::Float)
            });
            scope.add(scope.add(squares[0], squares[1]), squares[2])
        })?;
    let session = session(scope.finish()?, 1)?;
    session.run(&[], &[], &[training.initialize])?;
    session.run(&[], &[], &[training.train])?;
    for dtype in types {
        let w = variables.find(dtype.name()).ok_or("no variable")?.value;
        let after = session.run(&[], &[w], &[])?[0].to_string();
        assert!(after.contains("0.9") || after.contains("0.89"), "{dtype}: {after}");
    }
    Ok(())
}
