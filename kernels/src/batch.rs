//! Kernels that join the inputs of concurrent steps to batches.

mod unbatch;

use crate::numeric::philox::entropy;
use crate::numeric::scratch::check_scratch;
use crate::objects::batcher::{BatchLimits, BatchTask, Batcher, RunBatch};
use crate::objects::rows;
use device::function::Function;
use device::handle::ObjectName;
use device::kernel::{AsyncContext, Done, Kernel, KernelDef, KernelInit, Step};
use device::rendezvous::LocalRendezvous;
use device::value::Value;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// The size of an element that is an object, such as a string, without its contents, bytes.
const OBJECT: usize = 32;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("BatchFunction", &[], batch_function),
    KernelDef::of("Batch", &[], batch),
    KernelDef::of("Unbatch", &[], unbatch::unbatch),
    KernelDef::of("UnbatchGrad", &[], unbatch::gradient),
];

/// The batches in which a node takes part.
struct BatchNode {
    /// The name of the batcher, which nodes may share.
    name: ObjectName,
    /// The queue of the node's calls within the batcher.
    queue: String,
    limits: BatchLimits,
    /// Largest number of rows of a call.
    max_rows: usize,
}

impl BatchNode {
    fn of(init: &KernelInit<'_>) -> Result<BatchNode> {
        let limits = limits(init)?;
        Ok(BatchNode {
            name: ObjectName::of(init, true)?,
            queue: init.attr("batching_queue")?,
            max_rows: limits.max_size,
            limits,
        })
    }

    /// Adds a call to a batch: the rows of the first `count` inputs, and the inputs behind them, which the batch's function
    /// captures. `run` completes the calls of a batch.
    fn submit(&self, mut ctx: AsyncContext, count: usize, run: RunBatch<Call>) {
        let device = ctx.device.clone();
        let (name, new) = (&self.name, || Ok(Batcher::new(self.limits.clone())));
        let batcher = device.resources().lookup_or_create::<Batcher>(&name.container, &name.name, new);
        let checked = batcher.and_then(|batcher| {
            let rows = row_count(&ctx, count)?;
            if rows > self.max_rows {
                device::invalid!("Batch size {rows} is larger than maximum batch size {}", self.max_rows);
            }
            Ok((batcher, rows))
        });
        let (batcher, rows) = match checked {
            Ok(checked) => checked,
            Err(error) => return (ctx.done)(Err(error)),
        };
        let captured = ctx.inputs.drain(count..).collect();
        let (inputs, answer) = (std::mem::take(&mut ctx.inputs), Answer::new(ctx.step.clone(), ctx.done));
        let task = BatchTask { rows, work: Call { inputs, captured, answer: answer.clone() } };
        if let Err(error) = batcher.submit(&self.queue, task, run) {
            answer.give(Err(error));
        }
    }
}

/// Makes the kernel of BatchFunction: a function that is called once for the rows of several callers.
fn batch_function(init: &KernelInit<'_>) -> Result<Kernel> {
    let function = init.function("f")?;
    let count = init.attr::<Vec<DType>>("Tin")?.len();
    let mut node = BatchNode::of(init)?;
    if init.attr::<bool>("enable_large_batch_splitting")? {
        node.max_rows = usize::MAX;
    }
    let limits = node.limits.clone();
    let run: RunBatch<Call> = Arc::new(move |tasks, finished| run_batch(&function, &limits, tasks, finished));
    Kernel::asynchronous(move |ctx| node.submit(ctx, count, run.clone()))
}

/// Makes the kernel of Batch: the last of the callers of a batch gets the rows of all and the places of each one's rows,
/// and the others get no rows.
fn batch(init: &KernelInit<'_>) -> Result<Kernel> {
    let node = BatchNode::of(init)?;
    let limits = node.limits.clone();
    let run: RunBatch<Call> = Arc::new(move |tasks, finished| {
        give_batch(&limits, &tasks);
        finished();
    });
    Kernel::asynchronous(move |ctx| {
        let count = ctx.inputs.len();
        node.submit(ctx, count, run.clone());
    })
}

/// Answers the callers of Batch whose rows are one batch.
fn give_batch(limits: &BatchLimits, tasks: &[BatchTask<Call>]) {
    let answers = batch_answers(limits, tasks);
    for (i, task) in tasks.iter().enumerate() {
        task.work.answer.give(match &answers {
            Ok(answers) => Ok(answers[i].clone()),
            Err(error) => Err(error.clone()),
        });
    }
}

fn batch_answers(limits: &BatchLimits, tasks: &[BatchTask<Call>]) -> Result<Vec<SmallVec<[Value; 4]>>> {
    let (joined, _) = joined_arguments(tasks, limits)?;
    // The ids are unique among batches that are unbatched at the same time, also of other processes.
    let ids: Vec<i64> = tasks.iter().map(|_| entropy() as i64).collect();
    let mut answers = Vec::with_capacity(tasks.len());
    for (i, &id) in ids.iter().enumerate() {
        let index = if i + 1 == tasks.len() { row_ranges(tasks, &ids) } else { Vec::new() };
        let mut answer: SmallVec<[Value; 4]> = SmallVec::new();
        for all in &joined {
            let Value::Host(all) = all else {
                return Err(Error::internal("rows of a batch are not in host memory"));
            };
            answer.push(if index.is_empty() {
                let shape = Shape::new(&[&[0], &all.shape()[1..]].concat())?;
                Value::Host(rows::elements(all, 0, 0, shape)?)
            } else {
                Value::Host(all.clone())
            });
        }
        answer.push(Value::Host(Tensor::from_slice(&index, Shape::new(&[index.len() / 3, 3])?)?));
        answer.push(Value::Host(Tensor::scalar(id)));
        answers.push(answer);
    }
    Ok(answers)
}

/// Returns the id, the first row and the end of the rows of each task.
fn row_ranges(tasks: &[BatchTask<Call>], ids: &[i64]) -> Vec<i64> {
    let mut start = 0;
    let range = |(task, &id): (&BatchTask<Call>, &i64)| {
        let end = start + task.rows as i64;
        [id, std::mem::replace(&mut start, end), end]
    };
    tasks.iter().zip(ids).flat_map(range).collect()
}

/// The work of one call in a batch: the inputs of its node, and the receiver of its results.
pub(crate) struct Call {
    inputs: SmallVec<[Value; 4]>,
    captured: SmallVec<[Value; 4]>,
    answer: Arc<Answer>,
}

/// The completion callback of one call in a batch. It is called once: with the call's results, or when its step is
/// cancelled.
struct Answer(Mutex<Option<Done>>);

impl Answer {
    fn new(step: Arc<Step>, done: Done) -> Arc<Answer> {
        let answer = Arc::new(Answer(Mutex::new(Some(done))));
        let waiting = Arc::downgrade(&answer);
        let registered = step.cancellation.register(move |reason| {
            if let Some(answer) = waiting.upgrade() {
                answer.give(Err(reason.clone().derived()));
            }
        });
        match registered {
            Ok(registration) => {
                // The callback is extended to remove the registration. A concurrent cancellation waits for the lock.
                let mut held = answer.0.lock();
                if let Some(done) = held.take() {
                    *held = Some(Box::new(move |result| {
                        step.cancellation.deregister(registration);
                        done(result);
                    }));
                }
            }
            Err(error) => answer.give(Err(error)),
        }
        answer
    }

    /// Returns whether the caller has its answer.
    fn is_given(&self) -> bool {
        self.0.lock().is_none()
    }

    fn give(&self, result: Result<SmallVec<[Value; 4]>>) {
        let done = self.0.lock().take();
        if let Some(done) = done {
            done(result);
        }
    }
}

fn limits(init: &KernelInit<'_>) -> Result<BatchLimits> {
    let positive = |attr: &str| -> Result<usize> {
        let value = init.attr::<i64>(attr)?;
        match usize::try_from(value) {
            Ok(value) if value > 0 => Ok(value),
            _ => device::invalid!("{attr} must be positive; was {value}"),
        }
    };
    let threads = init.attr::<i64>("num_batch_threads")?;
    let timeout = init.attr::<i64>("batch_timeout_micros")?;
    let allowed = init.attr::<Vec<i64>>("allowed_batch_sizes")?;
    let max_size = positive("max_batch_size")?;
    if allowed.first().is_some_and(|&first| first <= 0) || allowed.windows(2).any(|pair| pair[0] >= pair[1]) {
        device::invalid!("allowed_batch_sizes entries must be monotonically increasing");
    }
    if allowed.last().is_some_and(|&last| last as usize != max_size) {
        device::invalid!(
            "final entry in allowed_batch_sizes must equal max_batch_size when enable_large_batch_splitting is False"
        );
    }
    Ok(BatchLimits {
        threads: match usize::try_from(threads) {
            Ok(threads) if threads > 0 => threads,
            _ => std::thread::available_parallelism().map_or(1, usize::from),
        },
        max_size,
        max_waiting: positive("max_enqueued_batches")?,
        timeout: Duration::from_micros(u64::try_from(timeout).unwrap_or(0)),
        allowed: allowed.into_iter().map(|size| size as usize).collect(),
    })
}

/// Returns the number of rows of the first `count` inputs, which must be equal.
fn row_count(ctx: &AsyncContext, count: usize) -> Result<usize> {
    let mut rows = None;
    for i in 0..count {
        let Some(&size) = ctx.input(i)?.shape().first() else {
            device::invalid!("Batching input tensors must have at least one dimension");
        };
        if *rows.get_or_insert(size) != size {
            device::invalid!(
                "Batching input tensors supplied in a given op invocation must have equal 0th-dimension size"
            );
        }
    }
    Ok(rows.unwrap_or(0))
}

/// Calls the function once with the rows of all tasks of a batch, and completes each task with its rows of the results.
fn run_batch(
    function: &Arc<dyn Function>,
    limits: &BatchLimits,
    tasks: Vec<BatchTask<Call>>,
    finished: Box<dyn FnOnce() + Send>,
) {
    let fail = |tasks: Vec<BatchTask<Call>>, error: &Error| {
        for task in tasks {
            task.work.answer.give(Err(error.clone()));
        }
    };
    let arguments = match joined_arguments(&tasks, limits) {
        Ok(arguments) => arguments,
        Err(error) => {
            fail(tasks, &error);
            return finished();
        }
    };
    // The function call serves several steps, so it has a step of its own, which none of these steps can cancel.
    let step = Arc::new(Step::new(0, Arc::new(LocalRendezvous::new()), Arc::default()));
    let total = arguments.1;
    let done: Done = Box::new(move |results| {
        match results.and_then(|results| split_results(&tasks, results, total)) {
            Ok(parts) => {
                for (task, part) in tasks.iter().zip(parts) {
                    task.work.answer.give(Ok(part));
                }
            }
            Err(error) => fail(tasks, &error),
        }
        finished();
    });
    function.call(&step, arguments.0, done);
}

/// Returns the function's arguments and their number of rows: the rows of all tasks, padded to an allowed size by copies
/// of the first row, and the captured tensors of the first task.
fn joined_arguments(
    tasks: &[BatchTask<Call>],
    limits: &BatchLimits,
) -> Result<(SmallVec<[Value; 4]>, usize)> {
    let Some(first) = tasks.first() else { return Err(Error::internal("an empty batch")) };
    let rows: usize = tasks.iter().map(|task| task.rows).sum();
    let padded = limits.allowed.iter().copied().find(|&size| size >= rows).unwrap_or(rows);
    let mut arguments = SmallVec::new();
    for i in 0..first.work.inputs.len() {
        let mut parts = Vec::with_capacity(tasks.len());
        for task in tasks {
            let Some(Value::Host(tensor)) = task.work.inputs.get(i) else {
                device::invalid!("input {i} of a batch is not in host memory");
            };
            parts.push(tensor);
        }
        let padding = match tasks.iter().position(|task| task.rows > 0) {
            Some(filled) if padded > rows => {
                let (from, dims) = (parts[filled], parts[filled].shape());
                let row = Shape::new(&[&[1], &dims[1..]].concat())?;
                let elements = row.num_elements().saturating_mul(padded);
                // The rows, a reference to each, and for objects a reference to each element.
                check_scratch::<u8>(elements.saturating_mul(from.dtype().size().unwrap_or(OBJECT)))?;
                check_scratch::<&Tensor>(padded)?;
                Some(rows::elements(from, 0, row.num_elements(), row)?)
            }
            _ => None,
        };
        parts.extend(padding.iter().flat_map(|row| std::iter::repeat_n(row, padded - rows)));
        arguments.push(Value::Host(rows::concatenate(&parts)?));
    }
    arguments.extend(first.work.captured.iter().cloned());
    Ok((arguments, if padded > rows && rows > 0 { padded } else { rows }))
}

/// Returns the rows of the results for each task; `total` is the number of rows of the arguments.
fn split_results(
    tasks: &[BatchTask<Call>],
    results: SmallVec<[Value; 4]>,
    total: usize,
) -> Result<Vec<SmallVec<[Value; 4]>>> {
    let mut parts: Vec<SmallVec<[Value; 4]>> = tasks.iter().map(|_| SmallVec::new()).collect();
    for result in &results {
        let Value::Host(result) = result else {
            device::invalid!("a result of a batch function is not in host memory");
        };
        let shape = result.shape();
        let Some(&rows) = shape.first() else {
            return Err(failed("Batched output tensor has 0 dimensions"));
        };
        if rows != total {
            return Err(failed(
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input \
                 tensors",
            ));
        }
        let (width, mut start) = (shape[1..].iter().product::<usize>(), 0);
        for (task, part) in tasks.iter().zip(&mut parts) {
            let own = Shape::new(&[&[task.rows], &shape[1..]].concat())?;
            part.push(Value::Host(rows::elements(result, start * width, task.rows * width, own)?));
            start += task.rows;
        }
    }
    Ok(parts)
}

fn failed(message: &str) -> Error {
    Error::new(graph::Code::FailedPrecondition, message.to_owned())
}
