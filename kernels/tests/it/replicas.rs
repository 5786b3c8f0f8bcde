//! Tests of queues and accumulators that are replicated to another store, as to a standby's store.

use anabranch_kernels::objects::accumulator::{Accumulator, Gradient, Reduction};
use anabranch_kernels::objects::queue::{Element, Queue, QueueKind, QueueSpec};
use device::cancel::Cancellation;
use device::journal::Journal;
use device::resource::ResourceStore;
use device::{Error, Result};
use graph::{DType, PartialShape, Tensor};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::sync::Arc;

/// A store, its journal, and the store to which the journal's changes are applied.
#[derive(Default)]
struct Pair {
    journal: Arc<Journal>,
    own: ResourceStore,
    follower: ResourceStore,
}

impl Pair {
    fn new() -> Result<Pair> {
        let pair = Pair::default();
        pair.own.attach(&pair.journal, 0)?;
        pair.journal.everything().into_iter().try_for_each(|change| change.apply(&pair.follower))?;
        Ok(pair)
    }

    /// Applies the changes since the last call to the follower, and returns the number of changes.
    fn follow(&self) -> Result<usize> {
        let changes = self.journal.take();
        let count = changes.len();
        changes.into_iter().try_for_each(|change| change.apply(&self.follower))?;
        Ok(count)
    }
}

fn floats(values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::vector(values)?)
}

#[test]
fn queues_and_accumulators_are_replicated() -> Result<()> {
    let pair = Pair::new()?;
    let step = Arc::new(Cancellation::new());
    for kind in [QueueKind::Fifo, QueueKind::Priority] {
        let (types, shapes) = (vec![DType::Int64], vec![PartialShape::scalar()]);
        let spec = QueueSpec { kind, capacity: 100, types, shapes };
        let name = format!("{kind:?}");
        let queue = pair.own.lookup_or_create("", &name, || Ok(Queue::new((&*name).into(), spec)))?;
        for number in [5i64, 3, 9, 3, 1] {
            queue.enqueue(&step, smallvec![Tensor::from(number).into()], Box::new(drop));
        }
        queue.dequeue(&step, Box::new(drop));
        pair.follow()?;
        queue.close(&step, false, Box::new(drop));
        assert_eq!(pair.follow()?, 1);
        let followed = pair.follower.lookup::<Queue>("", &name)?;
        assert!(followed.is_closed() && followed.len() == 4);
        let drain = |queue: &Queue| {
            let all = Arc::new(Mutex::new(Vec::new()));
            let into = all.clone();
            let keep = move |elements: Result<Vec<_>>| into.lock().extend(elements.into_iter().flatten());
            queue.dequeue_many(&step, 4, false, Box::new(keep));
            let all: Vec<Element> = std::mem::take(&mut *all.lock());
            all.iter().flatten().map(|tensor| tensor.tensor().cloned()).collect::<Result<Vec<Tensor>>>()
        };
        assert_eq!(drain(&followed)?, drain(&queue)?);
    }

    let shape = PartialShape::from([1usize]);
    let sum = pair.own.lookup_or_create("", "sum", || {
        Ok(Accumulator::new("sum".into(), DType::Float, shape, Reduction::Mean, false))
    })?;
    sum.set_global_step(3);
    sum.apply(2, Gradient::Dense(floats(&[100.0])?))?;
    for gradient in [1.0, 4.0] {
        sum.apply(3, Gradient::Dense(floats(&[gradient])?))?;
    }
    pair.follow()?;
    let followed = pair.follower.lookup::<Accumulator>("", "sum")?;
    assert_eq!((followed.count(), followed.dropped()), (2, 1));
    let mean = Arc::new(Mutex::new(None));
    let into = mean.clone();
    followed.take(&step, 2, Box::new(move |taken| *into.lock() = taken.ok()));
    let Some(Gradient::Dense(mean)) = mean.lock().take() else {
        return Err(Error::internal("no mean"));
    };
    assert_eq!(mean, floats(&[2.5])?);
    // Taking the mean has removed the gradients from the replica.
    assert_eq!(followed.count(), 0);
    Ok(())
}

#[test]
fn elements_of_a_waiting_dequeue_stay_in_the_replica() -> Result<()> {
    let pair = Pair::new()?;
    let step = Arc::new(Cancellation::new());
    let (types, shapes) = (vec![DType::Int64], vec![PartialShape::scalar()]);
    let spec = QueueSpec { kind: QueueKind::Fifo, capacity: 100, types, shapes };
    let queue = pair.own.lookup_or_create("", "q", || Ok(Queue::new("q".into(), spec)))?;
    for number in [1i64, 2] {
        queue.enqueue(&step, smallvec![Tensor::from(number).into()], Box::new(drop));
    }
    queue.dequeue_many(&step, 3, false, Box::new(drop));
    // Only the first waiting dequeue takes elements, so the second dequeue takes none.
    let second = Arc::new(Cancellation::new());
    queue.dequeue_many(&second, 3, false, Box::new(drop));
    second.cancel(Error::internal("over"));
    pair.follow()?;
    let followed = pair.follower.lookup::<Queue>("", "q")?;
    assert_eq!((queue.len(), followed.len()), (0, 2));
    step.cancel(Error::internal("over"));
    assert_eq!(queue.len(), 2);
    pair.follow()?;
    assert_eq!(followed.len(), 2);
    Ok(())
}
