//! Layers of models. Images are `[n, rows, columns, channels]`.

use graph::{DType, NodeId, Output, Scope};
use std::cell::RefCell;
use train::{Initializer, Variables};

/// Weight of a new batch in the running averages of batch normalisation.
const NEW_BATCH_WEIGHT: f32 = 0.1;

/// A builder of layers, which adds the layers' nodes to a scope and their weights to a collection of variables. Input
/// sizes are inferred from the graph.
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

    /// Adds a dense layer from `[n, k]` to `[n, units]`, without an activation.
    pub(crate) fn dense(&self, name: &str, x: Output, units: usize) -> Output {
        let inputs = self.size(x, 1);
        let weights = self.weights(&format!("{name}/weights"), &[inputs, units], inputs);
        let biases = self.constant_vector(&format!("{name}/biases"), units, 0.0);
        self.scope.bias_add(self.scope.matmul(x, weights), biases)
    }

    /// Adds a convolution without biases, with filters of `size` rows and columns, stride `stride`, and SAME padding.
    pub(crate) fn conv(&self, name: &str, x: Output, filters: usize, size: usize, stride: i64) -> Output {
        let channels = self.size(x, 3);
        let shape = [size, size, channels, filters];
        let weights = self.weights(&format!("{name}/weights"), &shape, size * size * channels);
        self.scope.conv2d(x, weights, [stride, stride], "SAME")
    }

    /// Adds a bias to each channel of images.
    pub(crate) fn add_bias(&self, name: &str, x: Output) -> Output {
        let channels = self.size(x, 3);
        self.scope.bias_add(x, self.constant_vector(&format!("{name}/biases"), channels, 0.0))
    }

    /// Adds the normalisation of each channel over the batch (Ioffe and Szegedy, 2015). The ops returned by
    /// [`Layers::averages`] update the running averages of mean and variance.
    pub(crate) fn batch_norm(&self, name: &str, x: Output) -> Output {
        let channels = self.size(x, 3);
        let scale = self.constant_vector(&format!("{name}/scale"), channels, 1.0);
        let offset = self.constant_vector(&format!("{name}/offset"), channels, 0.0);
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
            .attr("exponential_avg_factor", NEW_BATCH_WEIGHT)
            .outputs();
        let [normal, new_mean, new_variance, ..] = outputs[..] else { return x };
        self.averages.borrow_mut().extend([
            self.scope.assign_variable(mean.handle, new_mean),
            self.scope.assign_variable(variance.handle, new_variance),
        ]);
        normal
    }

    /// Returns the ops that update the running averages of all batch normalisations that have been added.
    pub(crate) fn averages(&self) -> Vec<NodeId> {
        self.averages.borrow().clone()
    }

    /// Returns weights initialised to preserve the variance of activations through a ReLU (He et al., 2015).
    pub(crate) fn weights(&self, name: &str, shape: &[usize], inputs: usize) -> Output {
        *self.seed.borrow_mut() += 1;
        let stddev = (2.0 / inputs as f64).sqrt();
        let first = Initializer::TruncatedNormal { stddev, seed: *self.seed.borrow() };
        self.variables.get(name, DType::Float, shape, &first).value
    }

    /// Returns a trainable vector that is initialised to a constant.
    pub(crate) fn constant_vector(&self, name: &str, size: usize, first: f64) -> Output {
        self.variables.get(name, DType::Float, &[size], &Initializer::Constant(first)).value
    }

    /// Returns the size of an axis of `x`. If the size is unknown, an error is added to the graph.
    pub(crate) fn size(&self, x: Output, axis: usize) -> usize {
        self.scope.shape(x).dim(axis).unwrap_or_else(|| {
            self.scope.fail(graph::Error::invalid(format!("axis {axis} of {x:?} has no size")));
            1
        })
    }
}
