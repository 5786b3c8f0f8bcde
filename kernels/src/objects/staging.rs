//! Staging areas: one step puts tensors and another step takes them, in order (`Stage`) or by key (`MapStage`). Both
//! kinds of areas may have a maximum number of elements and of bytes; a put into a full area waits.

use device::attempt::{AttemptQueues, Finish, Progress};
use device::cancel::Cancellation;
use device::resource::Resource;
use device::value::{AnyTensor, ListElement};
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The tensors of one element of a staging area, each in the memory of the area's device or of the host.
pub type Tuple = Vec<AnyTensor>;

/// The bounds of a staging area; 0 means unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of elements in the staging area.
    pub capacity: usize,
    /// Maximum total bytes of the elements in the staging area.
    pub bytes: usize,
}

impl Bounds {
    /// Returns whether an element of `more` bytes fits into an area that has `count` elements with `bytes` bytes in
    /// total.
    fn has_room(self, count: usize, bytes: usize, more: usize) -> bool {
        (self.capacity == 0 || count < self.capacity) && self.has_memory(bytes, more)
    }

    fn has_memory(self, bytes: usize, more: usize) -> bool {
        self.bytes == 0 || bytes.saturating_add(more) <= self.bytes
    }

    fn check(self, bytes: usize) -> Result<()> {
        if self.has_memory(0, bytes) {
            return Ok(());
        }
        let message = format!(
            "Attempted to insert tensors with combined size of '{bytes}' bytes into Staging Area with a memory limit \
             of '{}'.",
            self.bytes
        );
        Err(Error::new(Code::ResourceExhausted, message))
    }
}

fn num_bytes(tensors: &[AnyTensor]) -> usize {
    tensors.iter().map(AnyTensor::num_bytes).sum()
}

/// Indices of the lists of waiting operations: puts in the first list, takes and peeks in the second.
const PUT: usize = 0;
const TAKE: usize = 1;

/// A staging area whose elements are taken in the order of their puts.
#[derive(Debug)]
pub struct StagingArea {
    bounds: Bounds,
    waiting: AttemptQueues<StagedTuples, Tuple>,
}

/// The elements of a staging area in the order of their puts, and their total bytes.
#[derive(Default)]
struct StagedTuples {
    tuples: VecDeque<Tuple>,
    bytes: usize,
}

impl Resource for StagingArea {
    const KIND: &'static str = "StagingArea";
}

impl StagingArea {
    /// Returns an empty staging area with these bounds.
    pub fn new(bounds: Bounds) -> StagingArea {
        StagingArea { bounds, waiting: AttemptQueues::in_any_order(StagedTuples::default(), 2) }
    }

    /// Returns the number of elements in the staging area.
    pub fn len(&self) -> usize {
        self.waiting.look(|staged| staged.tuples.len())
    }

    /// Returns whether the staging area has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all elements of the staging area.
    pub fn clear(&self) {
        self.waiting.with(|staged| *staged = StagedTuples::default());
    }

    /// Puts an element as soon as there is room, and then calls `done`.
    pub fn put(&self, step: &Arc<Cancellation>, tuple: Tuple, done: Finish<Tuple>) {
        let (bounds, bytes) = (self.bounds, num_bytes(&tuple));
        if let Err(error) = bounds.check(bytes) {
            return done(Err(error));
        }
        let mut tuple = Some(tuple);
        let attempt = move |staged: &mut StagedTuples| {
            if !bounds.has_room(staged.tuples.len(), staged.bytes, bytes) {
                return Progress::Waits;
            }
            staged.tuples.extend(tuple.take());
            staged.bytes += bytes;
            Progress::Done(Ok(Tuple::new()))
        };
        self.waiting.attempt(PUT, step, attempt, done);
    }

    /// Takes the first element as soon as there is one, and passes it to `done`.
    pub fn get(&self, step: &Arc<Cancellation>, done: Finish<Tuple>) {
        let attempt = |staged: &mut StagedTuples| match staged.tuples.pop_front() {
            None => Progress::Waits,
            Some(tuple) => {
                staged.bytes -= num_bytes(&tuple);
                Progress::Done(Ok(tuple))
            }
        };
        self.waiting.attempt(TAKE, step, attempt, done);
    }

    /// Passes a copy of the element at `index` to `done` as soon as there is one.
    pub fn peek(&self, step: &Arc<Cancellation>, index: usize, done: Finish<Tuple>) {
        let attempt = move |staged: &mut StagedTuples| match staged.tuples.get(index) {
            None => Progress::Waits,
            Some(tuple) => Progress::Done(Ok(tuple.clone())),
        };
        self.waiting.attempt(TAKE, step, attempt, done);
    }
}

/// A staging area whose elements are taken by key, or in order of keys. Several operations may put the tensors of one
/// element, and several operations may take them.
#[derive(Debug)]
pub struct StagingMap {
    bounds: Bounds,
    /// Number of tensors per element.
    width: usize,
    waiting: AttemptQueues<MappedTuples, (i64, Tuple)>,
}

/// The elements of a staging map by key, and their total bytes.
#[derive(Default)]
struct MappedTuples {
    complete: BTreeMap<i64, Vec<Option<AnyTensor>>>,
    incomplete: BTreeMap<i64, Vec<Option<AnyTensor>>>,
    bytes: usize,
}

impl Resource for StagingMap {
    const KIND: &'static str = "StagingMap";
}

/// The indices of the tensors of an element that an operation puts or takes, in ascending order.
#[derive(Clone, Debug)]
pub struct TupleIndices(Vec<usize>);

impl TupleIndices {
    /// Returns the indices in a tensor of the op, for the element with this key.
    ///
    /// # Errors
    /// `InvalidArgument` unless the indices are strictly ascending and below `width`.
    pub fn of(indices: &Tensor, key: i64, width: usize) -> Result<TupleIndices> {
        let indices = indices.values::<i32>()?;
        if indices.windows(2).any(|pair| pair[0] >= pair[1]) {
            device::invalid!("Indices are not strictly ordered");
        }
        let index = |&index: &i32| {
            usize::try_from(index).ok().filter(|&index| index < width).ok_or_else(|| {
                let unsigned = i64::from(index) as u64;
                Error::invalid(format!("Index '{unsigned}' for key '{key}' was out of bounds '{width}'."))
            })
        };
        Ok(TupleIndices(indices.iter().map(index).collect::<Result<_>>()?))
    }

    /// Returns the number of tensors that the operation puts or takes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the operation puts or takes no tensor.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the tensors that an operation puts or takes against its indices.
    ///
    /// # Errors
    /// `InvalidArgument` unless there is one tensor per index, with the dtype that `types` has at that index.
    pub fn check(&self, tensors: &[AnyTensor], types: &[DType]) -> Result<()> {
        if tensors.len() != self.len() {
            device::invalid!("{} indices for {} tensors: each tensor needs one", self.len(), tensors.len());
        }
        for (&index, tensor) in self.0.iter().zip(tensors) {
            if tensor.dtype() != types[index] {
                device::invalid!(
                    "the tensor for index {index} is of {}, not of {}",
                    tensor.dtype(),
                    types[index]
                );
            }
        }
        Ok(())
    }
}

impl StagingMap {
    /// Returns an empty map for elements of `width` tensors.
    pub fn new(bounds: Bounds, width: usize) -> StagingMap {
        StagingMap { bounds, width, waiting: AttemptQueues::in_any_order(MappedTuples::default(), 2) }
    }

    /// Returns the number of elements all of whose tensors have been put.
    pub fn len(&self) -> usize {
        self.waiting.look(|mapped| mapped.complete.len())
    }

    /// Returns whether there is no complete element, even if there are incomplete ones.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of elements some of whose tensors have not been put.
    pub fn incomplete_len(&self) -> usize {
        self.waiting.look(|mapped| mapped.incomplete.len())
    }

    /// Removes all elements, complete and incomplete.
    pub fn clear(&self) {
        self.waiting.with(|mapped| *mapped = MappedTuples::default());
    }

    /// Puts the tensors at `indices` of the element with this key as soon as there is room. If the key has a complete
    /// element, nothing changes. A put of all tensors does not combine with an incomplete element of the same key.
    pub fn put(
        &self,
        step: &Arc<Cancellation>,
        key: i64,
        indices: TupleIndices,
        tensors: Tuple,
        done: Finish<(i64, Tuple)>,
    ) {
        let (bounds, width, bytes) = (self.bounds, self.width, num_bytes(&tensors));
        if let Err(error) = bounds.check(bytes) {
            return done(Err(error));
        }
        let mut tensors = Some(tensors);
        let attempt = move |mapped: &mut MappedTuples| {
            if mapped.complete.contains_key(&key) {
                return Progress::Done(Ok((key, Tuple::new())));
            }
            let present = if indices.len() < width { mapped.incomplete.get(&key) } else { None };
            if let Some(index) =
                indices.0.iter().find(|&&index| present.is_some_and(|tuple| tuple[index].is_some()))
            {
                let message = format!(
                    "The tensor for index '{index}' for key '{key}' was already initialized '{width}'."
                );
                return Progress::Done(Err(Error::invalid(message)));
            }
            let missing = present.map_or(width, |tuple| tuple.iter().filter(|t| t.is_none()).count());
            let completes = missing == indices.len();
            let has_room = match completes {
                true => bounds.has_room(mapped.complete.len(), mapped.bytes, bytes),
                false => bounds.has_memory(mapped.bytes, bytes),
            };
            if !has_room {
                return Progress::Waits;
            }
            let incomplete = if indices.len() < width { mapped.incomplete.remove(&key) } else { None };
            let mut tuple = incomplete.unwrap_or_else(|| vec![None; width]);
            for (&index, tensor) in indices.0.iter().zip(tensors.take().unwrap_or_default()) {
                tuple[index] = Some(tensor);
            }
            mapped.bytes += bytes;
            let to = if completes { &mut mapped.complete } else { &mut mapped.incomplete };
            to.insert(key, tuple);
            Progress::Done(Ok((key, Tuple::new())))
        };
        self.waiting.attempt(PUT, step, attempt, done);
    }

    /// Passes copies of the tensors at `indices` of a key's element to `done` as soon as the element is complete.
    pub fn peek(
        &self,
        step: &Arc<Cancellation>,
        key: i64,
        indices: TupleIndices,
        done: Finish<(i64, Tuple)>,
    ) {
        let attempt = move |mapped: &mut MappedTuples| match mapped.complete.get(&key) {
            None => Progress::Waits,
            Some(tuple) => Progress::Done(pick(tuple, key, &indices).map(|picked| (key, picked))),
        };
        self.waiting.attempt(TAKE, step, attempt, done);
    }

    /// Takes the tensors at `indices` of a key's element as soon as the element is complete; without a key, of the
    /// element with the least key.
    pub fn take(
        &self,
        step: &Arc<Cancellation>,
        key: Option<i64>,
        indices: TupleIndices,
        done: Finish<(i64, Tuple)>,
    ) {
        let attempt = move |mapped: &mut MappedTuples| {
            let found = match key {
                Some(key) => mapped.complete.get_mut(&key).map(|tuple| (key, tuple)),
                None => mapped.complete.iter_mut().next().map(|(&key, tuple)| (key, tuple)),
            };
            let Some((key, tuple)) = found else { return Progress::Waits };
            let picked = match pick(tuple, key, &indices) {
                Ok(picked) => picked,
                Err(error) => return Progress::Done(Err(error)),
            };
            indices.0.iter().for_each(|&index| tuple[index] = None);
            if tuple.iter().all(Option::is_none) {
                mapped.complete.remove(&key);
            }
            mapped.bytes -= num_bytes(&picked);
            Progress::Done(Ok((key, picked)))
        };
        self.waiting.attempt(TAKE, step, attempt, done);
    }
}

/// Returns copies of the element's tensors at `indices`.
///
/// # Errors
/// `InvalidArgument` if one of the tensors has been taken.
fn pick(tuple: &[Option<AnyTensor>], key: i64, indices: &TupleIndices) -> Result<Tuple> {
    let tensor = |&index: &usize| {
        tuple[index].clone().ok_or_else(|| {
            Error::invalid(format!("Tensor at index '{index}' for key '{key}' has already been removed."))
        })
    };
    indices.0.iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::value::Item;
    use parking_lot::Mutex;

    type Log = Arc<Mutex<Vec<Result<Vec<Tensor>>>>>;

    fn record(log: &Log) -> Finish<Tuple> {
        let log = log.clone();
        let on_host = |tuple: Tuple| tuple.into_iter().map(|tensor| Tensor::of(tensor.into())).collect();
        Box::new(move |result| log.lock().push(result.and_then(on_host)))
    }

    fn tuple(tensors: Vec<Tensor>) -> Tuple {
        tensors.into_iter().map(AnyTensor::from).collect()
    }

    #[test]
    fn puts_wait_for_room_and_peeks_do_not_block_takes() -> Result<()> {
        let area = StagingArea::new(Bounds { capacity: 2, bytes: 8 });
        let (step, put, peek, get) = (Arc::default(), Log::default(), Log::default(), Log::default());
        let pair = |a: f32, b: f32| Ok::<_, Error>(vec![Tensor::try_from([a, b])?]);
        area.put(&step, tuple(pair(1.0, 2.0)?), record(&put));
        area.put(&step, tuple(vec![Tensor::from(3.0f32)]), record(&put));
        assert_eq!((put.lock().len(), area.len()), (1, 1), "both are too many bytes");
        area.peek(&step, 1, record(&peek));
        area.get(&step, record(&get));
        assert_eq!(*get.lock(), [Ok(pair(1.0, 2.0)?)]);
        assert_eq!((put.lock().len(), peek.lock().len()), (2, 0));
        area.put(&step, tuple(vec![Tensor::from(4.0f32)]), record(&put));
        assert_eq!(*peek.lock(), [Ok(vec![Tensor::from(4.0f32)])]);
        let large = Tensor::zeros(graph::DType::Float, [3].try_into()?)?;
        area.put(&step, tuple(vec![large]), record(&put));
        let refused = put.lock().pop().and_then(Result::err).map(|error| error.code());
        assert_eq!(refused, Some(Code::ResourceExhausted));
        Ok(())
    }

    #[test]
    fn a_wait_for_one_key_does_not_block_another() -> Result<()> {
        let map = StagingMap::new(Bounds { capacity: 0, bytes: 0 }, 2);
        let log: Arc<Mutex<Vec<i64>>> = Arc::default();
        let keys = || -> Finish<(i64, Tuple)> {
            let log = log.clone();
            Box::new(move |result| log.lock().extend(result.map(|(key, _)| key)))
        };
        let (step, none) = (Arc::new(Cancellation::new()), Box::new(|_| {}));
        let indices = |indices: &[i32]| TupleIndices::of(&Tensor::vector(indices)?, 0, 2);
        map.take(&step, Some(9), indices(&[0, 1])?, keys());
        map.take(&step, None, indices(&[0, 1])?, keys());
        map.put(&step, 5, indices(&[1])?, tuple(vec![Tensor::from(1i32)]), none.clone());
        assert_eq!((map.len(), map.incomplete_len()), (0, 1));
        map.put(&step, 5, indices(&[0])?, tuple(vec![Tensor::from(2i32)]), none);
        assert_eq!(*log.lock(), [5]);
        assert!(indices(&[1, 0]).is_err() && indices(&[-1]).is_err() && indices(&[2]).is_err());
        Ok(())
    }
}
