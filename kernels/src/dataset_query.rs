//! Kernels that compute a result from a dataset: its cardinality, its single element, a reduction, or its graph.

use super::dataset_memory::anonymous;
use super::iterator::dataset_thread_kernel;
use crate::objects::dataset::argument::{count, dataset, dataset_kernel, function, spec};
use crate::objects::dataset::function::CapturedFunction;
use crate::objects::dataset::{DatasetVariant, ElementSpec, IteratorContext, Pull};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::resource::Resource;
use device::value::Value;
use device::{Error, Result};
use graph::Tensor;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DatasetCardinality", &[], cardinality),
    KernelDef::of("ExperimentalDatasetCardinality", &[], cardinality),
    KernelDef::of("DatasetToGraph", &[], to_graph),
    KernelDef::of("DatasetToGraphV2", &[], to_graph),
    KernelDef::of("DatasetFromGraph", &[], from_graph),
    KernelDef::of("DatasetToSingleElement", &[], |_| {
        dataset_thread_kernel(|ctx| {
            let dataset = DatasetVariant::of(ctx.input(0)?)?;
            let mut iterator = dataset.iterator(&IteratorContext::root(dataset.deterministic))?;
            let pull = Pull { cancellation: ctx.step.cancellation.clone() };
            let Some(element) = iterator.next(&pull)? else { device::invalid!("Dataset was empty.") };
            if iterator.next(&pull)?.is_some() {
                device::invalid!("Dataset had more than one element.");
            }
            Ok(element.into_iter().map(Value::Host).collect())
        })
    }),
    KernelDef::of("ReduceDataset", &[], reduce),
    KernelDef::of("WrapDatasetVariant", &[], |_| dataset_kernel(|ctx| dataset(ctx, 0))),
    KernelDef::of("UnwrapDatasetVariant", &[], |_| dataset_kernel(|ctx| dataset(ctx, 0))),
];

/// A dataset stored under a name for the rest of the step. `DatasetFromGraph` finds it when a distribution strategy
/// converts a dataset to a graph and back within one step to rewrite the input pipeline.
#[derive(Debug)]
struct NamedDataset(Tensor);

impl Resource for NamedDataset {
    const KIND: &'static str = "DatasetGraph";
}

/// `DatasetToGraph`: stores the dataset for the step and outputs its name instead of a serialized graph.
fn to_graph(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let (dataset, name) = (ctx.input(0)?.clone(), anonymous(NamedDataset::KIND));
        DatasetVariant::of(&dataset)?;
        ctx.step().resources.lookup_or_create("", &name, || Ok(NamedDataset(dataset)))?;
        ctx.set_output(0, Tensor::string(name));
        Ok(())
    })
}

/// `DatasetFromGraph`: outputs the dataset whose name was made by [`to_graph`] in the same step.
fn from_graph(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let [name] = ctx.input(0)?.as_strings()? else { device::invalid!("graph_def must be a scalar") };
        let Some(stored) = ctx.step().resources.find::<NamedDataset>("", &String::from_utf8_lossy(name))
        else {
            return Err(Error::unimplemented(
                "a dataset from a graph that was not made by DatasetToGraph in the same step on the same device",
            ));
        };
        ctx.set_output(0, stored.0.clone());
        Ok(())
    })
}

/// `ReduceDataset`: calls the function with the state and each element in turn; outputs the last state.
fn reduce(init: &KernelInit<'_>) -> Result<Kernel> {
    let (f, states, spec) = (function(init, "f")?, count(init, "Tstate")?, spec(init)?);
    dataset_thread_kernel(move |ctx| {
        let tensors = (1..ctx.inputs.len()).map(|i| ctx.input(i).cloned()).collect::<Result<Vec<_>>>()?;
        let (mut state, arguments) = match tensors.split_at_checked(states) {
            Some((state, arguments)) => (state.to_vec(), arguments.to_vec()),
            None => device::invalid!("initial_state has {} tensors, not {states}", tensors.len()),
        };
        let dataset = DatasetVariant::of(ctx.input(0)?)?;
        let root = IteratorContext::root(dataset.deterministic);
        let mut iterator = dataset.iterator(&root)?;
        let f = CapturedFunction { function: f.clone(), arguments }.instance(&root.within("Reduce"))?;
        let pull = Pull { cancellation: ctx.step.cancellation.clone() };
        while let Some(element) = iterator.next(&pull)? {
            pull.check()?;
            state = f.call(&pull, state.into_iter().chain(element).collect())?;
        }
        spec.check(&ElementSpec::of(&state))?;
        Ok(state.into_iter().map(Value::Host).collect())
    })
}

fn cardinality(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let cardinality = dataset(ctx, 0)?.cardinality;
        ctx.set_output(0, Tensor::scalar(cardinality));
        Ok(())
    })
}
