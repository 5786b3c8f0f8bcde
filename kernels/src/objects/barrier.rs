//! Barriers: steps insert the components of a tuple under a key, one at a time; complete tuples are taken in the
//! order in which their keys first occurred.

use crate::objects::queue::{Element, Queue, QueueKind, QueueSpec, shapes_text, types_text};
use crate::objects::rows;
use bytes::Bytes;
use device::attempt::Finish;
use device::cancel::Cancellation;
use device::resource::Resource;
use device::value::AnyTensor;
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Tensor};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;

/// A resource that collects the components of keyed tuples and returns complete tuples.
pub struct Barrier {
    name: Arc<str>,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
    state: Mutex<BarrierState>,
    /// Complete tuples; each queue element holds the insertion number, the key and the components.
    ready: Queue,
}

/// The state of a barrier: the incomplete tuples, and whether the barrier is closed.
struct BarrierState {
    /// Insertion number of the next insertion with new keys; complete tuples are taken in the order of these numbers.
    next: i64,
    incomplete: FxHashMap<Bytes, IncompleteTuple>,
    is_closed: bool,
    cancels_pending: bool,
}

/// The components that have been inserted under one key.
struct IncompleteTuple {
    number: i64,
    components: Vec<Option<Tensor>>,
}

impl Resource for Barrier {
    const KIND: &'static str = "Barrier";
}

impl Barrier {
    /// Returns an open, empty barrier for tuples with components of these dtypes and shapes.
    pub fn new(name: Arc<str>, types: Vec<DType>, shapes: Vec<PartialShape>) -> Barrier {
        let prefix = [(DType::Int64, PartialShape::scalar()), (DType::String, PartialShape::scalar())];
        let components = types.iter().copied().zip(shapes.iter().cloned());
        let (ready_types, ready_shapes) = prefix.into_iter().chain(components).unzip();
        let spec = QueueSpec {
            kind: QueueKind::Priority,
            capacity: i32::MAX.into(),
            types: ready_types,
            shapes: ready_shapes,
        };
        let ready = Queue::new(format!("{name}_ready").into(), spec);
        let state = BarrierState {
            next: i64::MIN,
            incomplete: FxHashMap::default(),
            is_closed: false,
            cancels_pending: false,
        };
        Barrier { name, types, shapes, state: Mutex::new(state), ready }
    }

    /// Returns the dtypes of a tuple's components.
    pub fn types(&self) -> &[DType] {
        &self.types
    }

    /// Checks that a node whose components have these dtypes and shapes may share the barrier.
    ///
    /// # Errors
    /// `InvalidArgument` if the dtypes or shapes differ.
    pub fn check_same(&self, types: &[DType], shapes: &[PartialShape]) -> Result<()> {
        let name = &self.name;
        if self.types != types {
            device::invalid!(
                "Shared barrier '{name}' has component types {} but requested component types were {}",
                types_text(&self.types),
                types_text(types)
            );
        }
        if self.shapes != shapes {
            device::invalid!(
                "Shared barrier '{name}' has component shapes {} but requested component shapes were {}",
                shapes_text(&self.shapes),
                shapes_text(shapes)
            );
        }
        Ok(())
    }

    /// Returns the number of complete tuples that have not been taken.
    pub fn ready_size(&self) -> usize {
        self.ready.len()
    }

    /// Returns the number of keys with incomplete tuples.
    pub fn incomplete_size(&self) -> usize {
        self.state.lock().incomplete.len()
    }

    /// Inserts component `index` of several tuples: row `i` of `values` belongs to the tuple with key `i` of `keys`.
    ///
    /// # Errors
    /// `InvalidArgument` if a key has the component already; `Cancelled` if the barrier is closed and a key is new.
    /// Values inserted before the failing key stay.
    pub fn insert(
        &self,
        step: &Arc<Cancellation>,
        keys: &Tensor,
        values: &Tensor,
        index: usize,
        done: Finish<Vec<Element>>,
    ) {
        let mut complete = Vec::new();
        let added = self.add(keys, values, index, &mut complete);
        if complete.is_empty() {
            return done(added.map(|()| Vec::new()));
        }
        self.ready.enqueue_all(step, complete, Box::new(move |result| done(added.and(result))));
        self.close_ready_if_finished(step);
    }

    /// Inserts the values key by key, and appends the tuples that become complete to `complete`.
    fn add(&self, keys: &Tensor, values: &Tensor, index: usize, complete: &mut Vec<Element>) -> Result<()> {
        if keys.shape().rank() != 1 {
            device::invalid!("keys must be a vector, got shape {}", keys.shape());
        }
        let keys = keys.as_strings()?;
        if values.shape().first() != Some(&keys.len()) {
            device::invalid!(
                "{} keys do not name the rows of values of shape {}",
                keys.len(),
                values.shape()
            );
        }
        if !keys.is_empty() && values.num_elements() == 0 {
            device::invalid!(
                "Tensors with no elements are not supported {}: received shape {}",
                self.name,
                values.shape()
            );
        }
        let values = rows::split(values)?;
        let declared = &self.shapes[index];
        if let Some(value) = values.iter().find(|value| !declared.accepts(value.shape())) {
            // The error message counts the components of a queue element, the first two of which are the insertion
            // number and the key.
            device::invalid!(
                "Shape mismatch in tuple component {}. Expected {declared}, got {}",
                index + 2,
                value.shape()
            );
        }
        let mut state = self.state.lock();
        let BarrierState { next, incomplete, is_closed, cancels_pending } = &mut *state;
        if *is_closed && (*cancels_pending || (!keys.is_empty() && incomplete.is_empty())) {
            let message = format!(
                "Barrier {} is closed.  Pending enqueues cancelled: {}.  Number of new insertions: {}.  Number of \
                 incomplete keys: {}.",
                self.name,
                u8::from(*cancels_pending),
                keys.len(),
                incomplete.len()
            );
            return Err(Error::new(Code::Cancelled, message));
        }
        let number = *next;
        for (i, (key, value)) in keys.iter().zip(values).enumerate() {
            if !incomplete.contains_key(key) {
                if *is_closed {
                    let message = format!(
                        "Barrier {} is closed, but attempted to insert a brand new key: {}.  Pending enqueues \
                         cancelled: {}.  Insertion index: {i}.  Number of incomplete keys: {}.",
                        self.name,
                        String::from_utf8_lossy(key),
                        u8::from(*cancels_pending),
                        incomplete.len()
                    );
                    return Err(Error::new(Code::Cancelled, message));
                }
                let components = vec![None; self.types.len()];
                incomplete.insert(key.clone(), IncompleteTuple { number, components });
                // All new keys of one insertion get the same insertion number.
                *next = number.saturating_add(1);
            }
            let Some(of_key) = incomplete.get_mut(key) else { continue };
            if of_key.components[index].is_some() {
                device::invalid!(
                    "Key {} already has a value for component {index} in barrier {}",
                    String::from_utf8_lossy(key),
                    self.name
                );
            }
            of_key.components[index] = Some(value);
            if of_key.components.iter().all(Option::is_some)
                && let Some(IncompleteTuple { number, components }) = incomplete.remove(key)
            {
                let mut element = Element::new();
                element.push(Tensor::from(number).into());
                element.push(Tensor::string(key.clone()).into());
                element.extend(components.into_iter().flatten().map(AnyTensor::from));
                complete.push(element);
            }
        }
        Ok(())
    }

    /// Takes `count` complete tuples once that many are complete. With `allow_small`, a closed barrier returns its
    /// remaining tuples.
    pub fn take(
        &self,
        step: &Arc<Cancellation>,
        count: usize,
        allow_small: bool,
        done: Finish<Vec<Element>>,
    ) {
        let state = self.state.lock();
        let mut requested = count;
        if state.is_closed {
            let mut available = self.ready.len();
            if allow_small {
                requested = count.min(available);
            } else {
                available += state.incomplete.len();
            }
            if available < requested.max(1) {
                let message = format!(
                    "Barrier '{}' is closed and has insufficient elements (requested {requested}, total size {available})",
                    self.name
                );
                drop(state);
                return done(Err(Error::new(Code::OutOfRange, message)));
            }
        }
        drop(state);
        self.ready.dequeue_many(step, requested, allow_small, done);
    }

    /// Returns the insertion numbers, the keys and the components of taken tuples, each as one batch.
    pub fn batch(&self, elements: &[Element]) -> Result<impl Iterator<Item = Tensor> + use<>> {
        Ok(self.ready.batch(elements)?.into_iter())
    }

    /// Closes the barrier for new keys; `cancel_pending` also drops the incomplete tuples.
    pub fn close(&self, step: &Arc<Cancellation>, cancel_pending: bool) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_closed && (state.cancels_pending || !cancel_pending) {
            let message = format!("Barrier '{}' is already closed.", self.name);
            return Err(Error::new(Code::Cancelled, message));
        }
        state.is_closed = true;
        if cancel_pending {
            state.cancels_pending = true;
            state.incomplete.clear();
        }
        drop(state);
        self.close_ready_if_finished(step);
        Ok(())
    }

    /// Closes the queue of complete tuples once no further tuple can become complete, so that takes that wait for
    /// more fail.
    fn close_ready_if_finished(&self, step: &Arc<Cancellation>) {
        let is_finished = {
            let state = self.state.lock();
            state.is_closed && state.incomplete.is_empty()
        };
        if is_finished && !self.ready.is_closed() {
            // Another thread may have closed the queue in the meantime, so the result is ignored.
            self.ready.close(step, false, Box::new(|_| {}));
        }
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Barrier '{}' ({} ready)", self.name, self.ready_size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(values: &[&'static str]) -> Result<Tensor> {
        let bytes = values.iter().map(|v| Bytes::from_static(v.as_bytes())).collect();
        Ok(Tensor::strings(bytes, [values.len()].try_into()?)?)
    }

    #[test]
    fn tuples_completed_before_a_failing_key_are_kept() -> Result<()> {
        let shapes = vec![PartialShape::scalar(), PartialShape::scalar()];
        let barrier = Barrier::new("b".into(), vec![DType::Int32, DType::Int32], shapes);
        let step = Arc::new(Cancellation::new());
        let insert = |keys: &[&'static str], index: usize| -> Result<Option<Code>> {
            let values = Tensor::zeros(DType::Int32, [keys.len()].try_into()?)?;
            let failed = Arc::new(Mutex::new(None));
            let answer = failed.clone();
            let done = move |result: Result<Vec<Element>>| *answer.lock() = result.err().map(|e| e.code());
            barrier.insert(&step, &strings(keys)?, &values, index, Box::new(done));
            let failed = failed.lock().take();
            Ok(failed)
        };
        assert_eq!(insert(&["a", "b"], 0)?, None);
        assert_eq!(insert(&["b", "c"], 1)?, None);
        assert_eq!((barrier.ready_size(), barrier.incomplete_size()), (1, 2));
        assert_eq!(insert(&["a", "c"], 1)?, Some(Code::InvalidArgument));
        assert_eq!((barrier.ready_size(), barrier.incomplete_size()), (2, 1));
        Ok(())
    }
}
