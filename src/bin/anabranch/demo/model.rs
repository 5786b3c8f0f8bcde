//! The model: the same function in every mode.

use super::data::{CLASSES, PIXELS};
use graph::{DType, Error, Graph, NodeId, Output, PartialShape, Result, Scope};
use train::{Initializer, Optimizer, Strategy, Training, Variables};

/// Units of the hidden layer.
const HIDDEN: usize = 96;

/// Scores of each class `[n, 10]` for images `[n, 64]`.
fn scores(scope: &Scope, variables: &Variables, images: Output) -> Output {
    let hidden = scope.relu(dense(scope, variables, "hidden", images, PIXELS, HIDDEN));
    dense(scope, variables, "scores", hidden, HIDDEN, CLASSES)
}

fn dense(scope: &Scope, variables: &Variables, name: &str, x: Output, from: usize, to: usize) -> Output {
    let first = Initializer::GlorotUniform { seed: to as i64 };
    let weights = variables.get(&format!("{name}/weights"), DType::Float, &[from, to], &first);
    let biases = variables.get(&format!("{name}/biases"), DType::Float, &[to], &Initializer::Zeros);
    scope.bias_add(scope.matmul(x, weights.value), biases.value)
}

/// A model with its inputs, ready to be trained and asked.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) graph: Graph,
    pub(super) images: Output,
    pub(super) digits: Output,
    pub(super) training: Training,
    /// The likeliest class of each image, `[n]`.
    pub(super) predictions: Output,
    /// Whether each variable has a value.
    pub(super) probes: Vec<(String, Output)>,
}

impl Model {
    pub(super) fn build(strategy: &Strategy) -> Result<Model> {
        let root = Scope::new();
        let (scope, for_variables) = strategy.scopes(&root);
        let variables = Variables::new(&for_variables);
        let images = scope.placeholder("images", DType::Float, PartialShape::from([None, Some(PIXELS)]));
        let digits = scope.placeholder("digits", DType::Int32, PartialShape::from([None]));
        let optimizer = Optimizer::adam(0.002);
        let training = strategy.minimize(
            &scope,
            &variables,
            &optimizer,
            &[images, digits],
            |scope, variables, batch| {
                let scores = scores(scope, variables, batch[0]);
                mean(scope, scope.sparse_softmax_cross_entropy(scores, batch[1]))
            },
        )?;
        let asked = scores(&scope.name_scope("evaluate"), &variables, images);
        let axis = scope.constant(1i32);
        let predictions =
            scope.op("ArgMax").input(asked).input(axis).attr("output_type", DType::Int32).output();
        let probes = variables.are_initialized();
        Ok(Model { graph: root.finish()?, images, digits, training, predictions, probes })
    }

    /// Names of variables with the node that holds each.
    pub(super) fn variables(&self) -> Vec<(String, NodeId)> {
        self.training.variables.all().iter().map(|v| (v.name.clone(), v.handle.node)).collect()
    }

    /// The node's name in the graph.
    pub(super) fn name_of(&self, node: NodeId) -> Result<&str> {
        if node.index() < self.graph.len() {
            Ok(&self.graph.node(node).name)
        } else {
            Err(Error::invalid("a node of another graph"))
        }
    }
}

fn mean(scope: &Scope, losses: Output) -> Output {
    scope.op("Mean").input(losses).input(scope.constant(0i32)).output()
}
