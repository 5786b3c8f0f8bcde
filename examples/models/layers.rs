//! What models are made of. Images are `[n, rows, columns, channels]`.

use graph::{DType, NodeId, Output, Scope};
use std::cell::RefCell;
use train::{Initializer, Variables};

/// How much of a batch goes into the averages of a normalisation.
const NEW: f32 = 0.1;

/// Adds layers: their nodes to a scope, their weights to variables. Sizes of inputs are taken from the graph.
#[derive(Debug)]
pub(crate) struct Layers<'a> {
    pub(crate) scope: &'a Scope,
    variables: &'a Variables,
    seed: RefCell<i64>,
    averages: RefCell<Vec<NodeId>>,
}

impl<'a> Layers<'a> {
    pub(crate) fn new(scope: &'a Scope, variables: &'a Variables) -> Layers<'a> {
        Layers { scope, variables, seed: RefCell::new(0), averages: RefCell::default() }
    }

    /// `[n, k]` to `[n, units]`, without an activation.
    pub(crate) fn dense(&self, name: &str, x: Output, units: usize) -> Output {
        let inputs = self.size(x, 1);
        let weights = self.weights(&format!("{name}/weights"), &[inputs, units], inputs);
        let biases = self.filled(&format!("{name}/biases"), units, 0.0);
        self.scope.bias_add(self.scope.matmul(x, weights), biases)
    }

    /// Filters of `size` rows and columns, `stride` apart, over images whose edges are padded; without biases.
    pub(crate) fn conv(&self, name: &str, x: Output, filters: usize, size: usize, stride: i64) -> Output {
        let channels = self.size(x, 3);
        let shape = [size, size, channels, filters];
        let weights = self.weights(&format!("{name}/weights"), &shape, size * size * channels);
        self.scope.conv2d(x, weights, [stride, stride], "SAME")
    }

    /// Adds to each channel of images, or to each unit.
    pub(crate) fn biased(&self, name: &str, x: Output) -> Output {
        let channels = self.size(x, 3);
        self.scope.bias_add(x, self.filled(&format!("{name}/biases"), channels, 0.0))
    }

    /// Normalises each channel over the batch (Ioffe and Szegedy, 2015). Its mean and variance go into running
    /// averages, by what [`Layers::averages`] gives.
    pub(crate) fn batch_norm(&self, name: &str, x: Output) -> Output {
        let channels = self.size(x, 3);
        let scale = self.filled(&format!("{name}/scale"), channels, 1.0);
        let offset = self.filled(&format!("{name}/offset"), channels, 0.0);
        let average = |which: &str, first| {
            let first = Initializer::Constant(first);
            self.variables.get_untrained(&format!("{name}/{which}"), DType::Float, &[channels], &first)
        };
        let (mean, variance) = (average("mean", 0.0), average("variance", 1.0));
        let outputs = self
            .scope
            .op("FusedBatchNormV3")
            .input(x)
            .input(scale)
            .input(offset)
            .input(mean.value)
            .input(variance.value)
            .attr("epsilon", 1e-5f32)
            .attr("exponential_avg_factor", NEW)
            .outputs();
        let [normal, new_mean, new_variance, ..] = outputs[..] else { return x };
        self.averages.borrow_mut().extend([
            self.scope.assign_variable(mean.handle, new_mean),
            self.scope.assign_variable(variance.handle, new_variance),
        ]);
        normal
    }

    /// What takes the batch into the running averages of all normalisations so far.
    pub(crate) fn averages(&self) -> Vec<NodeId> {
        self.averages.borrow().clone()
    }

    /// Weights that keep the size of what flows through them and a ReLU (He et al., 2015).
    pub(crate) fn weights(&self, name: &str, shape: &[usize], inputs: usize) -> Output {
        *self.seed.borrow_mut() += 1;
        let stddev = (2.0 / inputs as f64).sqrt();
        let first = Initializer::TruncatedNormal { stddev, seed: *self.seed.borrow() };
        self.variables.get(name, DType::Float, shape, &first).value
    }

    /// A trained vector that begins with one number everywhere.
    pub(crate) fn filled(&self, name: &str, size: usize, first: f64) -> Output {
        self.variables.get(name, DType::Float, &[size], &Initializer::Constant(first)).value
    }

    /// The size of an axis. A graph that does not know it is in error.
    pub(crate) fn size(&self, x: Output, axis: usize) -> usize {
        self.scope.shape(x).dim(axis).unwrap_or_else(|| {
            self.scope.fail(graph::Error::invalid(format!("axis {axis} of {x:?} has no size")));
            1
        })
    }
}
