//! The models of `examples/models/`: small versions fit a fixed batch, ResNet-50 has the published number of parameters,
//! and an LSTM layer agrees with its equations.

use crate::example_models::{Batch, Layers, Lstm, Model, ResNet, lstm, mlp, small_cnn};
use crate::support::Fallible;
use client::Session;
use graph::{Graph, Output, Tensor};
use std::cell::Cell;
use train::Optimizer;

/// Trains a model for `steps` steps and checks that the loss falls to less than half of its first value.
fn learns(batch: Batch<'_>, steps: i64, scores: impl Fn(&Layers<'_>, Output) -> Output) -> Fallible<Model> {
    let model = Model::build("/device:CPU:0", batch, &Optimizer::momentum(0.02, 0.9), scores)?;
    let session = Session::local(model.graph.clone())?;
    session.run(&[], &[], &[model.training.initialize])?;
    let loss = || -> Fallible<f32> { Ok(session.run(&[], &[model.training.loss], &[])?[0].item()?) };
    let first = loss()?;
    for step in 1..=steps {
        let done = session.run(&[], &[model.done], &[])?.remove(0);
        assert_eq!(done.item::<i64>()?, step);
    }
    let last = loss()?;
    assert!(last < first / 2.0, "the loss was {first}, and is {last} after {steps} steps");
    Ok(model)
}

#[test]
fn perceptron_fits_a_batch() -> Fallible {
    let batch = Batch { shape: &[16, 12], examples: 16, classes: 4 };
    let model = learns(batch, 60, |layers, x| mlp(layers, x, 32, 4))?;
    assert_eq!(model.parameters(), 12 * 32 + 32 + 32 * 32 + 32 + 32 * 4 + 4);
    Ok(())
}

#[test]
fn convolutional_network_fits_a_batch() -> Fallible {
    let batch = Batch { shape: &[8, 12, 12, 1], examples: 8, classes: 3 };
    let model = learns(batch, 40, |layers, x| small_cnn(layers, x, 4, 3))?;
    let convolutions = 25 * 4 + 4 + 25 * 4 * 8 + 8;
    assert_eq!(model.parameters(), convolutions + 3 * 3 * 8 * 64 + 64 + 64 * 3 + 3);
    Ok(())
}

#[test]
fn residual_network_fits_a_batch_and_updates_its_moving_averages() -> Fallible {
    let small = ResNet { blocks: [1, 1, 2, 1], width: 4, classes: 3 };
    let batch = Batch { shape: &[6, 32, 32, 3], examples: 6, classes: 3 };
    let model = learns(batch, 12, |layers, x| small.scores(layers, x))?;
    let session = Session::local(model.graph.clone())?;
    session.run(&[], &[], &[model.training.initialize])?;
    let mean = model.training.variables.find("stem/mean").ok_or("no average")?;
    let value = || -> Fallible<Tensor> { Ok(session.run(&[], &[mean.value], &[])?.remove(0)) };
    assert_eq!(value()?, Tensor::zeros(graph::DType::Float, graph::Shape::new(&[4])?)?);
    session.run(&[], &[], &[model.step])?;
    assert!(value()?.values::<f32>()?.iter().all(|&mean| mean != 0.0 && mean.abs() < 1.0));
    Ok(())
}

/// The published ResNet-50 has 53 convolutions, and a scale and an offset for each of their output channels.
#[test]
fn resnet_50_has_the_published_number_of_parameters() -> Fallible {
    let batch = Batch { shape: &[2, 224, 224, 3], examples: 2, classes: 1000 };
    let shape = Cell::default();
    let model = Model::build("/device:CPU:0", batch, &Optimizer::momentum(0.1, 0.9), |layers, x| {
        let scores = ResNet::FIFTY.scores(layers, x);
        shape.set(layers.scope.shape(scores).as_shape());
        scores
    })?;
    assert_eq!(model.parameters(), 25_557_032);
    assert_eq!(shape.take(), Some(graph::Shape::new(&[2, 1000])?));
    let count = |graph: &Graph, op: &str| graph.nodes().filter(|(_, node)| node.op.name() == op).count();
    assert_eq!(count(&model.graph, "Conv2D"), 53);
    // On a GPU, normalisations are fused with the activations that follow them, except those of the four projections,
    // which have no activation. The gradients of normalisation and activation are fused too if no other node uses the
    // activation's gradient.
    let fused = graph::passes::fuse_norms(model.graph, &|_| true)?;
    let ops = ["_FusedBatchNormEx", "FusedBatchNormV3", "Relu", "_FusedBatchNormActivationGrad", "ReluGrad"];
    assert_eq!(ops.map(|op| count(&fused, op)), [49, 4, 0, 33, 16]);
    Ok(())
}

#[test]
fn lstm_fits_a_batch() -> Fallible {
    let batch = Batch { shape: &[5, 8, 6], examples: 8, classes: 3 };
    let model = learns(batch, 120, |layers, x| {
        let (last, _) = lstm(layers, "lstm", x, 16);
        layers.dense("scores", last, 3)
    })?;
    assert_eq!(model.parameters(), 6 * 64 + 16 * 64 + 64 + 16 * 3 + 3);
    Ok(())
}

#[test]
fn lstm_agrees_with_its_equations() -> Fallible {
    let (steps, n, k, units) = (3, 2, 4, 3);
    let batch = Batch { shape: &[steps, n, k], examples: n, classes: units };
    let made: Cell<Option<(Output, Lstm)>> = Cell::default();
    let model = Model::build("/device:CPU:0", batch, &Optimizer::gradient_descent(0.1), |layers, x| {
        let (last, weights) = lstm(layers, "lstm", x, units);
        made.set(Some((last, weights)));
        last
    })?;
    let (last, weights) = made.take().ok_or("no layer")?;
    let session = Session::local(model.graph.clone())?;
    session.run(&[], &[], &[model.training.initialize])?;
    // A training step runs first, so that the biases are not zero.
    session.run(&[], &[], &[model.step])?;
    let fetches = [model.inputs, weights.inputs, weights.states, weights.biases, last];
    let values = session.run(&[], &fetches, &[])?;
    let doubles = |i: usize| -> Fallible<Vec<f64>> {
        Ok(values[i].values::<f32>()?.iter().map(|&v| f64::from(v)).collect())
    };
    let (x, wx, wh, b) = (doubles(0)?, doubles(1)?, doubles(2)?, doubles(3)?);
    assert!(b.iter().any(|&b| b != 0.0));
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let (mut h, mut c) = (vec![0.0; n * units], vec![0.0; n * units]);
    for t in 0..steps {
        let before = h.clone();
        for i in 0..n {
            // Returns the pre-activation of gate `g` of unit `u`.
            let gate = |g: usize, u: usize| {
                let column = g * units + u;
                let from_input: f64 =
                    (0..k).map(|j| x[(t * n + i) * k + j] * wx[j * 4 * units + column]).sum();
                let from_state: f64 =
                    (0..units).map(|j| before[i * units + j] * wh[j * 4 * units + column]).sum();
                from_input + from_state + b[column]
            };
            for u in 0..units {
                let at = i * units + u;
                c[at] = sigmoid(gate(1, u)) * c[at] + sigmoid(gate(0, u)) * gate(2, u).tanh();
                h[at] = sigmoid(gate(3, u)) * c[at].tanh();
            }
        }
    }
    for (found, expected) in doubles(4)?.into_iter().zip(h) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
    Ok(())
}
