//! Fits a line to noisy points in this process: `cargo run --example linear_regression`.
#![allow(clippy::print_stdout)]

use anabranch::client::Session;
use anabranch::graph::{DType, PartialShape, Scope, Tensor};
use anabranch::train::{Initializer, Optimizer, Strategy, Variables};
use std::error::Error;

const POINTS: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    // Build the graph without running it. A scope adds nodes and infers their types and shapes.
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None]));
    let y = scope.placeholder("y", DType::Float, PartialShape::from([None]));
    let training = Strategy::Local.minimize(
        &scope,
        &variables,
        &Optimizer::gradient_descent(0.5),
        &[x, y],
        |scope, variables, batch| {
            let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
            let b = variables.get("b", DType::Float, &[], &Initializer::Zeros);
            let error = scope.sub(scope.add(scope.mul(batch[0], w.value), b.value), batch[1]);
            scope.mean(scope.square(error), &[0], false)
        },
    )?;

    // Open a session, which holds the graph, and run steps in it.
    let session = Session::local(scope.finish()?)?;
    session.run(&[], &[], &[training.initialize])?;
    let xs: Vec<f32> = (0..POINTS).map(|i| i as f32 / POINTS as f32).collect();
    let ys: Vec<f32> = xs.iter().zip(0..).map(|(x, i)| 0.1 * x + 0.3 + noise(i)).collect();
    let points = [(x, Tensor::vector(&xs)?), (y, Tensor::vector(&ys)?)];
    for step in 1..=200 {
        let loss = session.run(&points, &[training.loss], &[training.train])?[0].item::<f32>()?;
        if step % 40 == 0 {
            println!("step {step:3}: loss {loss:.6}");
        }
    }
    for variable in variables.trainable() {
        let value = session.run(&[], &[variable.value], &[])?[0].item::<f32>()?;
        println!("{} = {value:.3}", variable.name);
    }
    Ok(())
}

/// Returns the noise of point `i`: a small number. The noise of all points sums to about 0.
fn noise(i: usize) -> f32 {
    ((i * 37) % 11) as f32 / 1000.0 - 0.005
}
