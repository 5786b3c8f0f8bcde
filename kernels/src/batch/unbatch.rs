//! Rows of a batch on their way back to the callers whose rows they are, and gradients of rows on their way to the step
//! that has the batch.

use super::Answer;
use crate::objects::dataset::threads;
use crate::objects::rows;
use device::handle::ObjectName;
use device::kernel::{AsyncContext, Kernel, KernelInit};
use device::resource::Resource;
use device::value::Value;
use device::{Error, Result, invalid};
use graph::{Code, Shape, Tensor};
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use smallvec::smallvec;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two checks whether a waiting caller's step has been cancelled.
const CANCELLATION_POLL: Duration = Duration::from_millis(200);

/// The time after which rows are dropped that nobody has collected.
const KEPT: Duration = Duration::from_secs(600);

/// The longest time for which a caller of Unbatch waits.
const LONGEST_WAIT: Duration = Duration::from_secs(1 << 30);

/// Makes the kernel of Unbatch: the step that has the batch delivers every caller's rows, its own included; each caller
/// collects the rows of its id.
pub(super) fn unbatch(init: &KernelInit<'_>) -> Result<Kernel> {
    let timeout = init.attr::<i64>("timeout_micros")?;
    let timeout = Duration::from_micros(u64::try_from(timeout).unwrap_or(0)).min(LONGEST_WAIT);
    let name = ObjectName::of(init, true)?;
    Kernel::asynchronous(move |ctx| {
        let given = exchange(&ctx, &name).and_then(|exchange| {
            let id = scalar_id(ctx.input(2)?)?;
            let parts = parts_of(ctx.input(0)?, ctx.input(1)?)?;
            if !parts.is_empty() && parts.iter().all(|(of, _)| *of != id) {
                invalid!("batch_index has no rows of id {id}");
            }
            Ok((exchange, id, parts))
        });
        let (exchange, id, parts) = match given {
            Ok(given) => given,
            Err(error) => return (ctx.done)(Err(error)),
        };
        let until = Instant::now() + timeout;
        let mut own = None;
        for (of, part) in parts {
            if of == id {
                own = Some(part);
            } else {
                exchange.deliver(of, part, until);
            }
        }
        if let Some(own) = own {
            return (ctx.done)(Ok(smallvec![Value::Host(own)]));
        }
        let answer = Answer::new(ctx.step.clone(), ctx.done);
        exchange.collect(Collection { ids: vec![id], rows: vec![None], answer }, Some(until));
    })
}

/// Makes the kernel of UnbatchGrad: each caller delivers the gradient of its rows and returns no rows; the step that has
/// the batch collects the gradients of all, in the order of the batch.
pub(super) fn gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let name = ObjectName::of(init, true)?;
    Kernel::asynchronous(move |ctx| {
        let given = exchange(&ctx, &name).and_then(|exchange| {
            let id = scalar_id(ctx.input(3)?)?;
            let gradient = ctx.input(2)?.clone();
            let Some(rest) = gradient.shape().get(1..) else { invalid!("grad must have a first axis") };
            let none = rows::elements(&gradient, 0, 0, Shape::new(&[&[0], rest].concat())?)?;
            let ids: Vec<i64> = ranges_of(ctx.input(1)?)?.iter().map(|range| range[0]).collect();
            Ok((exchange, id, gradient, none, ids))
        });
        let (exchange, id, gradient, none, ids) = match given {
            Ok(given) => given,
            Err(error) => return (ctx.done)(Err(error)),
        };
        exchange.deliver(id, gradient, Instant::now() + KEPT);
        if ids.is_empty() {
            return (ctx.done)(Ok(smallvec![Value::Host(none)]));
        }
        let (rows, answer) = (vec![None; ids.len()], Answer::new(ctx.step.clone(), ctx.done));
        exchange.collect(Collection { ids, rows, answer }, None);
    })
}

fn exchange(ctx: &AsyncContext, name: &ObjectName) -> Result<Arc<Exchange>> {
    ctx.device
        .resources()
        .lookup_or_create::<Exchange>(&name.container, &name.name, || Ok(Exchange::default()))
}

fn scalar_id(id: &Tensor) -> Result<i64> {
    if id.shape().rank() != 0 {
        invalid!("Input id should be scalar; got shape {}", id.shape());
    }
    Ok(id.item()?)
}

/// Returns the rows `[id, start, end]` of a batch index.
fn ranges_of(index: &Tensor) -> Result<&[[i64; 3]]> {
    if index.shape().rank() != 2 || index.shape()[1] != 3 {
        invalid!("Wrong shape for index tensor, which should have shape [n, 3]; got {}", index.shape());
    }
    Ok(index.values::<i64>()?.as_chunks::<3>().0)
}

/// Returns the rows of each id of a batch.
fn parts_of(batch: &Tensor, index: &Tensor) -> Result<Vec<(i64, Tensor)>> {
    let ranges = ranges_of(index)?;
    let Some((&count, rest)) = batch.shape().split_first() else {
        invalid!("batched_tensor must have a first axis, but is a scalar");
    };
    let width: usize = rest.iter().product();
    let part = |&[id, start, end]: &[i64; 3]| {
        let range = (usize::try_from(start), usize::try_from(end));
        let (Ok(start), Ok(end)) = range else {
            invalid!("batch_index has rows {start} to {end} of id {id}");
        };
        if start > end || end > count {
            invalid!("batch_index has rows {start} to {end} of id {id}, but the batch has {count} rows");
        }
        let shape = Shape::new(&[&[end - start], rest].concat())?;
        Ok((id, rows::elements(batch, start * width, (end - start) * width, shape)?))
    };
    ranges.iter().map(part).collect()
}

/// A caller that waits for the rows of several ids, which are its result in this order.
struct Collection {
    ids: Vec<i64>,
    rows: Vec<Option<Tensor>>,
    answer: Arc<Answer>,
}

impl Collection {
    /// Sets the rows of an id and returns true, if the collection lacks them.
    fn set(&mut self, id: i64, part: &Tensor) -> bool {
        let lacking = self.ids.iter().zip(&mut self.rows).find(|(of, rows)| **of == id && rows.is_none());
        match lacking {
            Some((_, rows)) => {
                *rows = Some(part.clone());
                true
            }
            None => false,
        }
    }

    fn is_complete(&self) -> bool {
        self.rows.iter().all(Option::is_some)
    }

    /// Answers the caller with all rows.
    fn finish(self) {
        let parts: Vec<&Tensor> = self.rows.iter().flatten().collect();
        let joined = match &parts[..] {
            [only] => Ok((*only).clone()),
            parts => rows::concatenate(parts),
        };
        self.answer.give(joined.map(|rows| smallvec![Value::Host(rows)]));
    }
}

#[derive(Default)]
struct ExchangeState {
    /// Rows that no collection lacks yet, with the time when they are dropped.
    delivered: FxHashMap<i64, (Tensor, Instant)>,
    collections: Vec<Collection>,
}

/// Rows by the ids of the callers whose rows they are.
#[derive(Default)]
struct Exchange {
    state: Mutex<ExchangeState>,
    /// Notified when a collection ends.
    ended: Condvar,
}

impl Resource for Exchange {
    const KIND: &'static str = "Unbatch";
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Exchange({} delivered, {} wait)", state.delivered.len(), state.collections.len())
    }
}

impl Exchange {
    /// Gives the rows of an id to the caller that waits for them, or keeps them until the given time.
    fn deliver(&self, id: i64, part: Tensor, until: Instant) {
        let complete = {
            let mut state = self.state.lock();
            let now = Instant::now();
            state.delivered.retain(|_, (_, until)| *until > now);
            // Callers whose steps were cancelled wait no longer.
            state.collections.retain(|collection| !collection.answer.is_given());
            match state.collections.iter_mut().position(|collection| collection.set(id, &part)) {
                Some(at) if state.collections[at].is_complete() => Some(state.collections.swap_remove(at)),
                Some(_) => None,
                None => {
                    state.delivered.insert(id, (part, until));
                    None
                }
            }
        };
        if let Some(collection) = complete {
            collection.finish();
            let _state = self.state.lock();
            self.ended.notify_all();
        }
    }

    /// Answers the caller when all its rows are there, or with an error after the given time.
    fn collect(self: &Arc<Exchange>, mut collection: Collection, until: Option<Instant>) {
        let answer = collection.answer.clone();
        {
            let mut state = self.state.lock();
            for id in collection.ids.clone() {
                if let Some((part, _)) = state.delivered.remove(&id) {
                    collection.set(id, &part);
                }
            }
            if !collection.is_complete() {
                state.collections.push(collection);
                drop(state);
                until.into_iter().for_each(|until| self.end_at(until, answer.clone()));
                return;
            }
        }
        collection.finish();
    }

    /// Ends the wait of a caller at the given time.
    fn end_at(self: &Arc<Exchange>, until: Instant, answer: Arc<Answer>) {
        let (exchange, waiting) = (self.clone(), answer.clone());
        let wait = move || {
            let mut state = exchange.state.lock();
            // The step of the caller may be cancelled without a notice.
            while !waiting.is_given() && Instant::now() < until {
                exchange.ended.wait_until(&mut state, until.min(Instant::now() + CANCELLATION_POLL));
            }
            state.collections.retain(|collection| !Arc::ptr_eq(&collection.answer, &waiting));
            drop(state);
            let late = "Batched data did not arrive within timeout window.";
            waiting.give(Err(Error::new(Code::DeadlineExceeded, late.to_owned())));
        };
        if let Err(error) = threads::spawn(wait) {
            answer.give(Err(error));
        }
    }
}
