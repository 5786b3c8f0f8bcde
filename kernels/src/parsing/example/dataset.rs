//! Datasets of the features of batches of serialized examples. A component is a feature: a dense tensor, a vector of the
//! three parts of a sparse tensor as variants, or a variant that holds a ragged tensor. Components are in the order of
//! the features' names.

use super::{EXAMPLE_TYPES, FeatureTypes, RequestedFeatures, batch};
use crate::objects::dataset::argument::{dataset, dataset_kernel, integer, spec, tensors};
use crate::objects::dataset::function::{CapturedFunction, ElementFunction, FunctionDone};
use crate::objects::dataset::parallel_map::{Parallelism, parallel_map_of};
use crate::objects::dataset::{Element, threads};
use crate::ragged::variant::RaggedVariant;
use crate::sparse::carried::serialized_parts;
use bytes::Bytes;
use device::Result;
use device::cancel::Cancellation;
use device::kernel::{Kernel, KernelInit};
use graph::{DType, Tensor};
use std::sync::Arc;

/// Makes the kernel of a dataset that parses batches of examples. Elements keep their order if `deterministic` is true;
/// if it is `None`, the options of the dataset decide.
pub(crate) fn parsed(init: &KernelInit<'_>, deterministic: Option<bool>) -> Result<Kernel> {
    let (types, spec) = (FeatureTypes::of(init, &EXAMPLE_TYPES)?, spec(init)?);
    let keys = |name: &str| match init.node.op.attr_spec(name) {
        Some(_) => init.attr::<Vec<Bytes>>(name),
        None => Ok(Vec::new()),
    };
    let keys = [keys("sparse_keys")?, keys("dense_keys")?, keys("ragged_keys")?];
    dataset_kernel(init, move |ctx| {
        let input = dataset(ctx, 0)?;
        if input.spec.dtypes.iter().any(|&dtype| dtype != DType::String) {
            device::invalid!("Expected the elements of the input dataset to be strings");
        }
        let how = Parallelism { calls: integer(ctx, 1, "num_parallel_calls")?, deterministic };
        let features = types.with_defaults(keys.clone(), tensors(ctx, 2..ctx.num_inputs())?)?;
        if spec.dtypes.len() != features.order().len() {
            device::invalid!(
                "there are {} output_types for {} features",
                spec.dtypes.len(),
                features.order().len()
            );
        }
        let f =
            CapturedFunction { function: Arc::new(ExampleParser(Arc::new(features))), arguments: Vec::new() };
        let batch_size = input.batch_size;
        parallel_map_of("ParseExample", input, f, spec.clone(), true, how)
            .map(|parsed| parsed.with_batch_size(batch_size))
    })
}

/// The function that parses a vector of serialized examples.
#[derive(Debug)]
struct ExampleParser(Arc<RequestedFeatures>);

impl ElementFunction for ExampleParser {
    fn start(&self, _: &Arc<Cancellation>, arguments: Element, done: FunctionDone) {
        let features = self.0.clone();
        // The new thread shares the callback, so that this thread can still call it if the new thread cannot be
        // started.
        let done = Arc::new(parking_lot::Mutex::new(Some(done)));
        let answer = done.clone();
        let started = threads::spawn(move || {
            let result = features.components(&arguments);
            if let Some(done) = answer.lock().take() {
                done(result);
            }
        });
        if let Err(error) = started
            && let Some(done) = done.lock().take()
        {
            done(Err(error));
        }
    }

    fn instance(&self) -> Result<Arc<dyn ElementFunction>> {
        Ok(Arc::new(ExampleParser(self.0.clone())))
    }

    fn is_user_defined(&self) -> bool {
        false
    }
}

impl RequestedFeatures {
    /// Returns the features in the order of their names, each as its index among all sparse, then all ragged, then
    /// all dense features.
    fn order(&self) -> Vec<usize> {
        let keys =
            self.sparse.iter().chain(&self.ragged).map(|f| &f.key).chain(self.dense.iter().map(|f| &f.key));
        let mut named: Vec<(&Bytes, usize)> = keys.zip(0..).collect();
        named.sort();
        named.into_iter().map(|(_, i)| i).collect()
    }

    /// Parses the serialized examples of an element.
    fn components(&self, element: &[Tensor]) -> Result<Element> {
        let mut messages = Vec::new();
        for tensor in element {
            messages.extend_from_slice(tensor.as_strings()?);
        }
        let mut tensors = batch::parse(&messages, &[], self)?.into_iter();
        let mut take = |count: usize| tensors.by_ref().take(count).collect::<Vec<Tensor>>();
        let (indices, values, shapes) =
            (take(self.sparse.len()), take(self.sparse.len()), take(self.sparse.len()));
        let dense = take(self.dense.len());
        let (ragged_values, ragged_splits) = (take(self.ragged.len()), take(self.ragged.len()));
        let mut components = Vec::with_capacity(indices.len() + dense.len() + ragged_values.len());
        for ((indices, values), shape) in indices.into_iter().zip(values).zip(shapes) {
            components.push(serialized_parts(indices, values, shape)?);
        }
        for (values, splits) in ragged_values.into_iter().zip(ragged_splits) {
            components.push(Tensor::variant(RaggedVariant { splits: vec![splits], values }));
        }
        components.extend(dense);
        Ok(self.order().into_iter().map(|i| components[i].clone()).collect())
    }
}
