//! Input pipelines: elements from memory or files, shuffled, batched, repeated, dealt out to workers, and fetched ahead
//! beside the steps, to a device if wanted. They are TensorFlow's dataset ops, and run where the scope is.

use crate::error::{Error, Result};
use crate::initializer::strings;
use crate::session::{Hook, HookContext, QueueRunner};
use graph::{DType, NodeId, Output, PartialShape, Scope, Tensor};
use std::path::Path;

/// A dataset in the making: each method adds one of TensorFlow's dataset ops.
#[derive(Clone, Debug)]
pub struct Dataset {
    scope: Scope,
    handle: Output,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
    /// Defaults of the columns of lines of CSV; empty where elements are as they are.
    columns: Vec<Tensor>,
}

/// A pipeline that steps take elements from.
#[derive(Clone, Debug)]
pub struct Input {
    /// Starts it, from its first element; each replica runs it for itself, or has [`Input::hook`] do it.
    pub initialize: NodeId,
    /// The components of the next element; a step that finds none fails with `OutOfRange`, which ends training.
    pub next: Vec<Output>,
    /// What brings elements [ahead](Input::ahead) of the steps.
    runners: Vec<QueueRunner>,
}

/// Bytes that are read from a file at once.
const BUFFER: i64 = 256 << 10;

impl Dataset {
    /// An element for each index of the tensors' first axis, which must be of one size.
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

    /// An element for each index of the first axis of arrays in `.npy` files. The files are read now, by this process.
    ///
    /// # Errors
    /// Of a file that cannot be read or is no array.
    pub fn from_npy(scope: &Scope, files: &[impl AsRef<Path>]) -> Result<Dataset> {
        let read = |file: &Path| {
            let bytes = std::fs::read(file).map_err(|e| Error::file(file, &e))?;
            let wrong = |e: checkpoint::Error| checkpoint::Error::corrupt(file, e.to_string());
            Ok(checkpoint::npy::decode(&bytes).map_err(wrong)?)
        };
        let tensors = files.iter().map(|file| read(file.as_ref())).collect::<Result<Vec<_>>>()?;
        Ok(Dataset::from_tensors(scope, &tensors))
    }

    /// An element a record of TFRecord files: one `string`. The files are read by the task where the scope is.
    pub fn from_tf_record(scope: &Scope, files: &[&str]) -> Dataset {
        let (files, none) = (strings(scope, files.iter().map(|f| (*f).to_owned())), scope.constant(""));
        let call = scope.op("TFRecordDataset").input(files).input(none).input(scope.constant(BUFFER));
        let (types, shapes) = (vec![DType::String], vec![PartialShape::scalar()]);
        Dataset { scope: scope.clone(), handle: call.output(), types, shapes, columns: Vec::new() }
    }

    /// An element a line of CSV files: a column of each default's type, which stands for fields that are empty; a
    /// default is a vector of one or, where a field must be there, of none. Lines are taken apart as batches, by the
    /// step that takes them. The files are read by the task where the scope is, a header of each by none.
    pub fn from_csv(scope: &Scope, files: &[&str], has_header: bool, defaults: &[Tensor]) -> Dataset {
        let of_file = |file: &&str| {
            let names = strings(scope, std::iter::once((*file).to_owned()));
            let call = scope.op("TextLineDataset").input(names).input(scope.constant(""));
            let handle = call.input(scope.constant(BUFFER)).output();
            let (types, shapes) = (vec![DType::String], vec![PartialShape::scalar()]);
            let lines = Dataset { scope: scope.clone(), handle, types, shapes, columns: defaults.to_vec() };
            if has_header { lines.then("SkipDataset", &[1i64.into()]) } else { lines }
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

    /// The elements whose number is `index` modulo `count`: those of one of so many workers.
    pub fn shard(&self, count: u32, index: u32) -> Dataset {
        self.then("ShardDataset", &[i64::from(count).into(), i64::from(index).into()])
    }

    /// In an order by chance, among `buffer` elements at a time; another one each time round. Seed 0 is one by chance.
    pub fn shuffle(&self, buffer: i64, seed: i64) -> Dataset {
        self.then("ShuffleDataset", &[buffer.into(), seed.into(), seed.into()])
    }

    /// So many times; without a number, without end.
    pub fn repeat(&self, count: Option<i64>) -> Dataset {
        self.then("RepeatDataset", &[count.unwrap_or(-1).into()])
    }

    /// So many elements at most.
    pub fn take(&self, count: i64) -> Dataset {
        self.then("TakeDataset", &[count.into()])
    }

    /// `size` elements as one, along a new first axis; the last one has fewer, unless it is dropped.
    pub fn batch(&self, size: i64, drop_remainder: bool) -> Dataset {
        let known = drop_remainder.then(|| usize::try_from(size).ok()).flatten();
        let outer = |shape: &PartialShape| match shape.rank() {
            Some(rank) => {
                PartialShape::of_dims(std::iter::once(known).chain((0..rank).map(|i| shape.dim(i))))
            }
            None => PartialShape::unknown(),
        };
        let batched = Dataset { shapes: self.shapes.iter().map(outer).collect(), ..self.clone() };
        let handle = batched.after(self.handle, "BatchDatasetV2", &[size.into(), drop_remainder.into()]);
        Dataset { handle, ..batched }
    }

    /// Keeps so many elements ready, made beside the steps.
    pub fn prefetch(&self, elements: i64) -> Dataset {
        self.then("PrefetchDataset", &[elements.into()])
    }

    /// Makes steps take elements from it.
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

    /// The same types and shapes after another op.
    fn then(&self, op: &str, arguments: &[Tensor]) -> Dataset {
        Dataset { handle: self.after(self.handle, op, arguments), ..self.clone() }
    }

    fn after(&self, input: Output, op: &str, arguments: &[Tensor]) -> Output {
        let arguments: Vec<Output> = arguments.iter().map(|a| self.scope.constant(a.clone())).collect();
        let call =
            arguments.iter().fold(self.scope.op(op).input(input), |call, argument| call.input(*argument));
        call.attr("output_types", self.types.clone()).attr("output_shapes", self.shapes.clone()).output()
    }
}

impl Input {
    /// The same, whose elements are brought to the device of `scope` by a thread beside the steps: so many, 1 or more, wait
    /// there. A GPU computes on one while the next comes to it. It takes [`Input::hook`] to bring them.
    pub fn ahead(&self, scope: &Scope, elements: i64) -> Input {
        let forms: Vec<(DType, PartialShape)> =
            self.next.iter().map(|&part| (scope.dtype(part), scope.shape(part))).collect();
        let types: Vec<DType> = forms.iter().map(|(dtype, _)| *dtype).collect();
        // A queue is told all shapes or none.
        let are_known = forms.iter().all(|(_, shape)| shape.is_fully_defined());
        let known =
            if are_known { forms.iter().map(|(_, shape)| shape.clone()).collect() } else { Vec::new() };
        let queue = scope.op("FIFOQueueV2").attr("component_types", types.clone());
        let queue = queue.attr("shapes", known).attr("capacity", elements).output();
        let enqueue = scope.op("QueueEnqueueV2").input(queue).input(self.next.clone()).node();
        let closes = |cancels: bool| {
            scope.op("QueueCloseV2").input(queue).attr("cancel_pending_enqueues", cancels).node()
        };
        let runner = QueueRunner { enqueue: vec![enqueue], close: closes(false), cancel: closes(true) };
        let taken = scope.op("QueueDequeueV2").input(queue).attr("component_types", types).outputs();
        let next = taken.into_iter().zip(&forms);
        let next = next.map(|(part, (_, shape))| scope.ensure_shape(part, shape.clone())).collect();
        let runners = self.runners.iter().cloned().chain([runner]).collect();
        Input { initialize: self.initialize, next, runners }
    }

    /// Starts the pipeline when a session is opened; it starts again from its first element where training goes on in
    /// a new session.
    pub fn hook(&self) -> Box<dyn Hook> {
        Box::new(Starts { first: self.initialize, runners: QueueRunner::hook(self.runners.clone()) })
    }
}

/// Starts what gives elements, and then what takes them ahead.
struct Starts {
    first: NodeId,
    runners: Box<dyn Hook>,
}

impl Hook for Starts {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        context.session.run(&[], &[], &[self.first])?;
        self.runners.after_create_session(context)
    }

    fn before_recovery(&mut self, context: &HookContext<'_>) {
        self.runners.before_recovery(context);
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.runners.end(context)
    }
}
