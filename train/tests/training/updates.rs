//! Tests of updates: learning rates, clipping, moving averages, sparse rows.

use super::{Fallible, assert_close, session};
use anabranch_train::{
    Clip, Initializer, LearningRate, MovingAverage, Optimizer, PartitionStrategy, Partitioner, Strategy,
    Training, UpdateOptions, Variables,
};
use graph::{DType, Output, Scope, Tensor};

/// Returns the learning rate at each of `steps`.
fn rates(rate: &LearningRate, steps: &[i64]) -> Fallible<Vec<f64>> {
    let scope = Scope::new();
    let outputs: Vec<Output> = steps.iter().map(|&step| rate.at(&scope, scope.constant(step))).collect();
    let values = session(scope.finish()?, 1)?.run(&[], &outputs, &[])?;
    values.iter().map(|v| Ok(v.item::<f64>()?)).collect()
}

#[track_caller]
fn assert_rates(rate: LearningRate, steps: &[i64], expected: &[f64]) -> Fallible {
    let found = rates(&rate, steps)?;
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{rate:?}: {found}, expected {expected}");
    }
    Ok(())
}

#[test]
fn rates_follow_the_step() -> Fallible {
    let (initial, decay_steps, decay_rate) = (0.5, 10, 0.8);
    let exponential =
        |staircase| LearningRate::ExponentialDecay { initial, decay_steps, decay_rate, staircase };
    assert_rates(exponential(false), &[0, 5, 20], &[0.5, 0.5 * 0.8f64.sqrt(), 0.32])?;
    assert_rates(exponential(true), &[9, 10, 19], &[0.5, 0.4, 0.4])?;
    let natural = LearningRate::NaturalExpDecay { initial, decay_steps, decay_rate, staircase: false };
    assert_rates(natural, &[0, 10], &[0.5, 0.5 * (-0.8f64).exp()])?;
    let inverse = LearningRate::InverseTimeDecay { initial, decay_steps, decay_rate, staircase: false };
    assert_rates(inverse, &[0, 10, 20], &[0.5, 0.5 / 1.8, 0.5 / 2.6])?;
    let polynomial =
        |cycle| LearningRate::PolynomialDecay { initial, decay_steps, end: 0.1, power: 2.0, cycle };
    assert_rates(polynomial(false), &[0, 5, 10, 15], &[0.5, 0.2, 0.1, 0.1])?;
    assert_rates(polynomial(true), &[0, 10, 15], &[0.5, 0.1, 0.1 + 0.4 * 0.0625])?;
    let cosine = LearningRate::CosineDecay { initial, decay_steps, alpha: 0.1 };
    assert_rates(cosine.clone(), &[0, 5, 10, 99], &[0.5, 0.275, 0.05, 0.05])?;
    assert_rates(cosine.warmed_up(6), &[0, 5, 10], &[0.5 / 6.0, 0.275, 0.05])?;
    assert_rates(LearningRate::from(0.5).warmed_up(4), &[0, 2, 3, 4], &[0.125, 0.375, 0.5, 0.5])?;
    let pieces = LearningRate::PiecewiseConstant { boundaries: vec![0, 5], values: vec![3.0, 2.0, 1.0] };
    assert_rates(pieces, &[0, 1, 5, 6], &[3.0, 2.0, 2.0, 1.0])
}

#[test]
fn piecewise_constant_rates_need_one_value_more_than_boundaries() {
    let scope = Scope::new();
    LearningRate::PiecewiseConstant { boundaries: vec![1], values: vec![1.0] }
        .at(&scope, scope.constant(0i64));
    assert!(scope.finish().is_err_and(|e| e.to_string().contains("one value more")));
}

/// Builds a model with variables `w = [3, 4]` and `v = [12]`, each of whose gradients equals its value.
fn bowls(options: UpdateOptions, optimizer: &Optimizer) -> Fallible<(Scope, Variables, Training)> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let first = [Tensor::vector(&[3.0f32, 4.0])?, Tensor::vector(&[12.0f32])?];
    let training = Strategy::Local.minimize_with(
        &scope,
        &variables,
        optimizer,
        options,
        &[],
        |scope, variables, _| {
            let half = |name: &str, first: &Tensor| {
                let size = first.num_elements();
                let v = variables.get(name, DType::Float, &[size], &Initializer::Value(first.clone()));
                scope.mul(scope.sum(scope.square(v.value), &[0], false), scope.constant(0.5f32))
            };
            scope.add(half("w", &first[0]), half("v", &first[1]))
        },
    )?;
    Ok((scope, variables, training))
}

/// Returns the values of the variables `names` after `steps` steps.
fn after(
    steps: usize,
    options: UpdateOptions,
    optimizer: &Optimizer,
    names: &[&str],
) -> Fallible<Vec<Tensor>> {
    let (scope, variables, training) = bowls(options, optimizer)?;
    let session = session(scope.finish()?, 1)?;
    session.run(&[], &[], &[training.initialize])?;
    for _ in 0..steps {
        session.run(&[], &[], &[training.train])?;
    }
    let values: Vec<Output> = names.iter().filter_map(|n| variables.find(n)).map(|v| v.value).collect();
    Ok(session.run(&[], &values, &[])?)
}

fn clipped(clip: Clip) -> Fallible<Vec<Tensor>> {
    let options = UpdateOptions { clip: Some(clip), ..UpdateOptions::default() };
    after(1, options, &Optimizer::gradient_descent(1.0), &["w", "v"])
}

#[test]
fn gradients_are_clipped() -> Fallible {
    let by_value = clipped(Clip::Value { min: -1.0, max: 3.5 })?;
    assert_close(&by_value[0], &[0.0, 0.5])?;
    assert_close(&by_value[1], &[8.5])?;
    let by_norm = clipped(Clip::Norm(10.0))?;
    assert_close(&by_norm[0], &[0.0, 0.0])?;
    assert_close(&by_norm[1], &[2.0])?;
    // The norm of all gradients together, [3, 4, 12], is 13.
    let by_all = clipped(Clip::GlobalNorm(6.5))?;
    assert_close(&by_all[0], &[1.5, 2.0])?;
    assert_close(&by_all[1], &[6.0])?;
    assert_close(&clipped(Clip::GlobalNorm(14.0))?[1], &[0.0])
}

#[test]
fn moving_averages_follow_the_variables() -> Fallible {
    let average = MovingAverage { decay: 0.75, warms_up: false };
    let options = UpdateOptions { moving_average: Some(average), ..UpdateOptions::default() };
    let name = MovingAverage::name_of("v");
    let values = after(2, options, &Optimizer::gradient_descent(0.5), &["v", &name])?;
    assert_close(&values[0], &[3.0])?;
    // The average is 12 at first, 0.75 * 12 + 0.25 * 6 = 10.5 after the first step, and 0.75 * 10.5 + 0.25 * 3 after
    // the second.
    assert_close(&values[1], &[0.75 * 10.5 + 0.25 * 3.0])
}

#[test]
fn scheduled_rates_use_the_current_global_step() -> Fallible {
    let rate = LearningRate::PiecewiseConstant { boundaries: vec![0], values: vec![0.5, 0.25] };
    let values = after(2, UpdateOptions::default(), &Optimizer::gradient_descent(rate), &["v"])?;
    assert_close(&values[0], &[12.0 * 0.5 * 0.75])
}

/// Trains the sum of rows `[1, 5, 1]` of a table of ones for one step. Returns the first column of the table.
fn train_lookup(optimizer: &Optimizer, strategy: PartitionStrategy, parts: usize) -> Fallible<Vec<f32>> {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let training = Strategy::Local.minimize(&scope, &variables, optimizer, &[], |scope, variables, _| {
        let ones = Initializer::Constant(1.0);
        let table =
            variables.get_partitioned("table", DType::Float, &[8, 2], &ones, Partitioner::fixed_size(parts));
        let ids = scope.constant_vector(&[1i32, 5, 1]);
        let rows = variables.embedding_lookup(scope, &table.parts, ids, strategy);
        scope.sum(rows, &[0, 1], false)
    })?;
    let ids = scope.constant_vector(&(0..8).collect::<Vec<i64>>());
    let parts: Vec<_> = variables.trainable();
    let all = variables.embedding_lookup(&scope, &parts, ids, strategy);
    let session = session(scope.finish()?, 1)?;
    session.run(&[], &[], &[training.initialize])?;
    session.run(&[], &[], &[training.train])?;
    Ok(session.run(&[], &[all], &[])?[0].values::<f32>()?.iter().step_by(2).copied().collect())
}

#[test]
fn only_looked_up_rows_change() -> Fallible {
    for strategy in [PartitionStrategy::Mod, PartitionStrategy::Div] {
        for parts in [1, 3, 5] {
            let trained = train_lookup(&Optimizer::gradient_descent(0.25), strategy, parts)?;
            assert_eq!(trained, [1.0, 0.5, 1.0, 1.0, 1.0, 0.75, 1.0, 1.0], "{strategy:?} {parts}");
        }
    }
    Ok(())
}

#[test]
fn optimizers_sum_the_gradients_of_a_repeated_row() -> Fallible {
    // Row 1 has a gradient of 2, and row 5 of 1; Adam's first step does not depend on the size of the gradient.
    for optimizer in [Optimizer::adam(0.25), Optimizer::momentum(0.25, 0.9), Optimizer::adagrad(0.25)] {
        let rows = train_lookup(&optimizer, PartitionStrategy::Mod, 2)?;
        let untouched = [0, 2, 3, 4, 6, 7].map(|row| rows[row]);
        assert_eq!(untouched, [1.0; 6], "{optimizer:?}");
        let (twice, once) = match optimizer {
            Optimizer::Adam { .. } => (0.75, 0.75),
            Optimizer::Momentum { .. } => (0.5, 0.75),
            _ => (1.0 - 0.25 * 2.0 / 4.1f32.sqrt(), 1.0 - 0.25 / 1.1f32.sqrt()),
        };
        assert!((rows[1] - twice).abs() < 1e-5 && (rows[5] - once).abs() < 1e-5, "{optimizer:?}: {rows:?}");
    }
    Ok(())
}
