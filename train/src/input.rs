//! Input pipelines: elements from memory or files, shuffled, batched, repeated, sharded over workers, and prefetched
//! while steps run, optionally to a device. Pipelines consist of TensorFlow's dataset ops, which run on the scope's
//! device.

use crate::error::{Error, Result};
use crate::initializer::strings;
use crate::session::{Hook, HookContext, QueueRunner};
use graph::{DType, NodeId, Output, PartialShape, Scope, Tensor};
use std::path::Path;

/// A dataset under construction; each method adds one of TensorFlow's dataset ops.
#[derive(Clone, Debug)]
pub struct Dataset {
    scope: Scope,
    handle: Output,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
    /// The default value of each column of CSV lines; empty if elements are not CSV lines.
    columns: Vec<Tensor>,
}

/// An input pipeline with an iterator.
#[derive(Clone, Debug)]
pub struct Input {
    /// Starts the pipeline at its first element. Each replica runs this node, or uses [`Input::hook`].
    pub initialize: NodeId,
    /// The components of the next element. A step that finds no element fails with `OutOfRange`, which ends
    /// training.
    pub next: Vec<Output>,
    /// The queue runners that prefetch elements; see [`Input::prefetch_to_device`].
    runners: Vec<QueueRunner>,
}

/// The number of bytes in one read from a file.
const BUFFER: i64 = 256 << 10;

impl Dataset {
    /// Returns a dataset of one element for each index of the tensors' first axis, whose size must be the same for all
    /// tensors.
    pub fn from_tensors(scope: &Scope, tensors: &[Tensor]) -> Dataset {
        let types: Vec<DType> = tensors.iter().map(Tensor::dtype).collect();
        let shapes: Vec<PartialShape> = tensors
            .iter()
            .map(|t| PartialShape::of_dims(t.shape().iter().skip(1).map(|&d| Some(d))))
            .collect();
        let components: Vec<Output> = tensors.iter().map(|t| scope.constant(t.clone())).collect();
        let call = scope.op("TensorSliceDataset").input(components);
        let call = call.attr("Toutput_types", types.clone()).attr("output_shapes", shapes.clone());
        Dataset { scope: scope.clone(), handle: call.output(), types, shapes, columns: Vec::new() }
    }

    /// Returns a dataset of one element for each index of the first axis of arrays in `.npy` files. The files
    /// are read immediately, by this process.
    ///
    /// # Errors
    /// A file that cannot be read or contains no array.
    pub fn from_npy(scope: &Scope, files: &[impl AsRef<Path>]) -> Result<Dataset> {
        let read = |file: &Path| {
            let bytes = std::fs::read(file).map_err(|e| Error::file(file, &e))?;
            let wrong = |e: checkpoint::Error| checkpoint::Error::corrupt(file, e.to_string());
            Ok(checkpoint::npy::decode(&bytes).map_err(wrong)?)
        };
        let tensors = files.iter().map(|file| read(file.as_ref())).collect::<Result<Vec<_>>>()?;
        Ok(Dataset::from_tensors(scope, &tensors))
    }

    /// Returns a dataset of the records of TFRecord files, one `string` each. The task of the scope's device reads the
    /// files.
    pub fn from_tf_record(scope: &Scope, files: &[&str]) -> Dataset {
        let (files, none) = (strings(scope, files.iter().map(|f| (*f).to_owned())), scope.constant(""));
        let call = scope.op("TFRecordDataset").input(files).input(none).input(scope.constant(BUFFER));
        let (types, shapes) = (vec![DType::String], vec![PartialShape::scalar()]);
        Dataset { scope: scope.clone(), handle: call.output(), types, shapes, columns: Vec::new() }
    }

    /// Returns a dataset of the lines of CSV files. Each default gives the type of a column and the value of its empty
    /// fields: a vector of one element, or of no element if the field must not be empty. Lines are parsed in batches,
    /// by the step that takes a batch. The task of the scope's device reads the files, and skips the first line of each
    /// file if `has_header`.
    pub fn from_csv(scope: &Scope, files: &[&str], has_header: bool, defaults: &[Tensor]) -> Dataset {
        let of_file = |file: &&str| {
            let names = strings(scope, std::iter::once((*file).to_owned()));
            let call = scope.op("TextLineDataset").input(names).input(scope.constant(""));
            let handle = call.input(scope.constant(BUFFER)).output();
            let (types, shapes) = (vec![DType::String], vec![PartialShape::scalar()]);
            let lines = Dataset { scope: scope.clone(), handle, types, shapes, columns: defaults.to_vec() };
            if has_header { lines.apply("SkipDataset", &[1i64.into()]) } else { lines }
        };
        let all = files.iter().map(of_file).reduce(|all, lines| {
            let handle = scope.op("ConcatenateDataset").input(all.handle).input(lines.handle);
            let handle = handle.attr("output_types", all.types.clone());
            Dataset { handle: handle.attr("output_shapes", all.shapes.clone()).output(), ..all }
        });
        all.unwrap_or_else(|| {
            scope.fail(graph::Error::invalid("a dataset of no CSV files"));
            Dataset::from_tensors(scope, &[])
        })
    }

    /// Returns the elements whose index in the dataset is `index` modulo `count`: the share of worker `index` of
    /// `count` workers.
    pub fn shard(&self, count: u32, index: u32) -> Dataset {
        self.apply("ShardDataset", &[i64::from(count).into(), i64::from(index).into()])
    }

    /// Shuffles with a buffer of `buffer` elements, in another order in each repetition. Seed 0 requests a
    /// random seed.
    pub fn shuffle(&self, buffer: i64, seed: i64) -> Dataset {
        self.apply("ShuffleDataset", &[buffer.into(), seed.into(), seed.into()])
    }

    /// Repeats the dataset `count` times, or without end if there is no count.
    pub fn repeat(&self, count: Option<i64>) -> Dataset {
        self.apply("RepeatDataset", &[count.unwrap_or(-1).into()])
    }

    /// Limits the dataset to `count` elements.
    pub fn take(&self, count: i64) -> Dataset {
        self.apply("TakeDataset", &[count.into()])
    }

    /// Combines `size` elements into one along a new first axis. A last batch of fewer elements is dropped if
    /// `drop_remainder`.
    pub fn batch(&self, size: i64, drop_remainder: bool) -> Dataset {
        let known = drop_remainder.then(|| usize::try_from(size).ok()).flatten();
        let outer = |shape: &PartialShape| match shape.rank() {
            Some(rank) => {
                PartialShape::of_dims(std::iter::once(known).chain((0..rank).map(|i| shape.dim(i))))
            }
            None => PartialShape::unknown(),
        };
        let batched = Dataset { shapes: self.shapes.iter().map(outer).collect(), ..self.clone() };
        let handle = batched.add_op(self.handle, "BatchDatasetV2", &[size.into(), drop_remainder.into()]);
        Dataset { handle, ..batched }
    }

    /// Prefetches up to `elements` elements on a separate thread while steps run.
    pub fn prefetch(&self, elements: i64) -> Dataset {
        self.apply("PrefetchDataset", &[elements.into()])
    }

    /// Adds an iterator named `name`, from which steps take elements.
    pub fn input(&self, name: &str) -> Input {
        let iterator = self
            .scope
            .op("IteratorV2")
            .name(name)
            .attr("shared_name", name)
            .attr("container", "")
            .attr("output_types", self.types.clone())
            .attr("output_shapes", self.shapes.clone())
            .output();
        let next = self.scope.op("IteratorGetNext").input(iterator);
        let next = next.attr("output_types", self.types.clone()).attr("output_shapes", self.shapes.clone());
        let next = next.outputs();
        let columns: Vec<Output> = self.columns.iter().map(|c| self.scope.constant(c.clone())).collect();
        let next = match next[..] {
            [lines] if !columns.is_empty() => {
                self.scope.op("DecodeCSV").input(lines).input(columns).outputs()
            }
            _ => next,
        };
        let initialize = self.scope.op("MakeIterator").input(self.handle).input(iterator).node();
        Input { next, initialize, runners: Vec::new() }
    }

    /// Applies a dataset op whose elements have the types and shapes of this dataset's elements.
    fn apply(&self, op: &str, arguments: &[Tensor]) -> Dataset {
        Dataset { handle: self.add_op(self.handle, op, arguments), ..self.clone() }
    }

    /// Adds a dataset op whose elements have this dataset's types and shapes.
    fn add_op(&self, input: Output, op: &str, arguments: &[Tensor]) -> Output {
        let arguments: Vec<Output> = arguments.iter().map(|a| self.scope.constant(a.clone())).collect();
        let call =
            arguments.iter().fold(self.scope.op(op).input(input), |call, argument| call.input(*argument));
        call.attr("output_types", self.types.clone()).attr("output_shapes", self.shapes.clone()).output()
    }
}

impl Input {
    /// Returns this pipeline with a queue of `elements` elements, at least 1, on the device of `scope`, so that a GPU
    /// computes on one element while the next is transferred to it. The threads of [`Input::hook`] fill the queue.
    pub fn prefetch_to_device(&self, scope: &Scope, elements: i64) -> Input {
        let components: Vec<(DType, PartialShape)> =
            self.next.iter().map(|&part| (scope.dtype(part), scope.shape(part))).collect();
        let types: Vec<DType> = components.iter().map(|(dtype, _)| *dtype).collect();
        // A queue op is given the shapes of all components or of none.
        let are_all_known = components.iter().all(|(_, shape)| shape.is_fully_defined());
        let known = if are_all_known {
            components.iter().map(|(_, shape)| shape.clone()).collect()
        } else {
            Vec::new()
        };
        let queue = scope.op("FIFOQueueV2").attr("component_types", types.clone());
        let queue = queue.attr("shapes", known).attr("capacity", elements).output();
        let enqueue = scope.op("QueueEnqueueV2").input(queue).input(self.next.clone()).node();
        let close_queue = |cancels: bool| {
            scope.op("QueueCloseV2").input(queue).attr("cancel_pending_enqueues", cancels).node()
        };
        let runner =
            QueueRunner { enqueue: vec![enqueue], close: close_queue(false), cancel: close_queue(true) };
        let taken = scope.op("QueueDequeueV2").input(queue).attr("component_types", types).outputs();
        let next = taken.into_iter().zip(&components);
        let next = next.map(|(part, (_, shape))| scope.ensure_shape(part, shape.clone())).collect();
        let runners = self.runners.iter().cloned().chain([runner]).collect();
        Input { initialize: self.initialize, next, runners }
    }

    /// Returns a hook that starts the pipeline when a session is opened. The pipeline starts at its first
    /// element again when training recovers in a new session.
    pub fn hook(&self) -> Box<dyn Hook> {
        Box::new(InputHook { initialize: self.initialize, runners: QueueRunner::hook(self.runners.clone()) })
    }
}

/// The hook that starts an iterator and then its queue runners.
struct InputHook {
    initialize: NodeId,
    runners: Box<dyn Hook>,
}

impl Hook for InputHook {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        context.session.run(&[], &[], &[self.initialize])?;
        self.runners.after_create_session(context)
    }

    fn before_recovery(&mut self, context: &HookContext<'_>) {
        self.runners.before_recovery(context);
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.runners.end(context)
    }
}
