//! Kernels that compute a result from a dataset: its cardinality, its single element, a reduction, or its graph.

use super::dataset_memory::anonymous;
use super::file::scalar_string;
use super::iterator::dataset_thread_kernel;
use crate::objects::dataset::argument::{count, dataset, dataset_kernel, function, spec};
use crate::objects::dataset::function::CapturedFunction;
use crate::objects::dataset::on_device::{components, spec_of};
use crate::objects::dataset::{DatasetVariant, ElementSpec, IteratorContext, Pull, RandomAccess};
use crate::objects::io::{Compression, RecordWriter, path_of};
use device::handle::hash_of;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::resource::Resource;
use device::value::Value;
use device::{Error, Result};
use graph::{DType, ResourceHandle, Tensor};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DatasetCardinality", &[], cardinality),
    KernelDef::of("ExperimentalDatasetCardinality", &[], cardinality),
    KernelDef::of("DatasetFingerprint", &[], |_| {
        Kernel::sync(|ctx| {
            let fingerprint = dataset(ctx, 0)?.fingerprint()?;
            ctx.set_output(0, Tensor::scalar(fingerprint));
            Ok(())
        })
    }),
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
    KernelDef::of("GetElementAtIndex", &[], |init| {
        let spec = spec(init)?;
        dataset_thread_kernel(move |ctx| {
            let dataset = DatasetVariant::of(ctx.input(0)?)?;
            spec.check(&dataset.spec)?;
            let index = ctx.input(1)?;
            if index.num_elements() != 1 {
                device::invalid!("index must be a scalar");
            }
            let pull = Pull { cancellation: ctx.step.cancellation.clone() };
            let ctx = IteratorContext::root(dataset.deterministic);
            let access = RandomAccess { ctx, pull, orders: None };
            let element = dataset.element_at(index.item::<i64>()?, &access)?;
            spec.check(&spec_of(&element))?;
            Ok(components(element))
        })
    }),
    KernelDef::of("DatasetToTFRecord", &[], to_records),
    KernelDef::of("ExperimentalDatasetToTFRecord", &[], to_records),
    KernelDef::of("GetOptions", &[], |_| {
        Kernel::sync(|ctx| {
            let options = dataset(ctx, 0)?.options.clone();
            ctx.set_output(0, Tensor::string(options));
            Ok(())
        })
    }),
    KernelDef::of("ComputeBatchSize", &[], |_| {
        Kernel::sync(|ctx| {
            let size = dataset(ctx, 0)?.batch_size.unwrap_or(-1);
            ctx.set_output(0, Tensor::scalar(size));
            Ok(())
        })
    }),
    KernelDef::of("DummyIterationCounter", &[], |_| {
        Kernel::sync(|ctx| {
            // No op reads the object, so there is none.
            let handle = ResourceHandle {
                device: ctx.device().name().to_string().into(),
                container: ctx.resources().default_container().clone(),
                name: "dummy_resource".into(),
                hash_code: hash_of(ITERATION_COUNTER),
                type_name: ITERATION_COUNTER.into(),
                dtypes_and_shapes: Vec::new(),
            };
            ctx.set_output(0, Tensor::resource(handle));
            Ok(())
        })
    }),
    KernelDef::of("WrapDatasetVariant", &[], |init| dataset_kernel(init, |ctx| dataset(ctx, 0))),
    KernelDef::of("UnwrapDatasetVariant", &[], |init| dataset_kernel(init, |ctx| dataset(ctx, 0))),
];

/// The type of the resource of DummyIterationCounter.
const ITERATION_COUNTER: &str = "tensorflow::data::IterationCounter";

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

/// `DatasetToTFRecord`: writes the elements, each a string, to a file of records.
fn to_records(_: &KernelInit<'_>) -> Result<Kernel> {
    dataset_thread_kernel(|ctx| {
        let dataset = DatasetVariant::of(ctx.input(0)?)?;
        match &dataset.spec.dtypes[..] {
            [DType::String] => {}
            [other] => {
                device::invalid!("ToTFRecordOp currently only supports DT_STRING dataypes, but got {other}")
            }
            many => device::invalid!(
                "ToTFRecordOp currently only support datasets of 1 single column, but got {}",
                many.len()
            ),
        }
        let path = path_of(scalar_string(ctx.input(1)?, "filename")?);
        let compression = Compression::parse(scalar_string(ctx.input(2)?, "compression_type")?)?;
        let mut writer = RecordWriter::create(path, compression)?;
        let mut iterator = dataset.iterator(&IteratorContext::root(dataset.deterministic))?;
        let pull = Pull { cancellation: ctx.step.cancellation.clone() };
        while let Some(element) = iterator.next(&pull)? {
            pull.check()?;
            let [record] = &element[..] else { device::invalid!("an element with several components") };
            let [record] = record.as_strings()? else {
                device::invalid!("each element must be one string, got a tensor of shape {}", record.shape())
            };
            writer.write(record)?;
        }
        writer.finish()?;
        Ok(SmallVec::new())
    })
}

fn cardinality(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let cardinality = dataset(ctx, 0)?.cardinality;
        ctx.set_output(0, Tensor::scalar(cardinality));
        Ok(())
    })
}
