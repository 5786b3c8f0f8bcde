//! Tests of queue behaviour that a client cannot cause at will.

use super::*;
use graph::DType;
use parking_lot::Mutex;

type Log = Arc<Mutex<Vec<(&'static str, Result<Vec<i32>>)>>>;

struct Fixture {
    queue: Queue,
    log: Log,
    step: Arc<Cancellation>,
}

impl Fixture {
    fn new(capacity: i64, kind: QueueKind) -> Fixture {
        let spec =
            QueueSpec { kind, capacity, types: vec![DType::Int32], shapes: vec![PartialShape::scalar()] };
        Fixture { queue: Queue::new("q".into(), spec), log: Log::default(), step: Arc::default() }
    }

    fn record(&self, what: &'static str) -> Finish<Vec<Element>> {
        let log = self.log.clone();
        Box::new(move |result| {
            let values = result.and_then(|taken| {
                let value = |element: &Element| Ok(element[0].tensor()?.item::<i32>()?);
                taken.iter().map(value).collect::<Result<Vec<i32>>>()
            });
            log.lock().push((what, values));
        })
    }

    fn enqueue(&self, what: &'static str, values: &[i32]) -> Result<()> {
        self.queue.enqueue_many(&self.step, &[Tensor::vector(values)?], self.record(what));
        Ok(())
    }

    fn dequeue(&self, what: &'static str, step: &Arc<Cancellation>, count: usize) {
        self.queue.dequeue_many(step, count, false, self.record(what));
    }

    fn take_log(&self) -> Vec<(&'static str, Result<Vec<i32>>)> {
        std::mem::take(&mut self.log.lock())
    }
}

#[test]
fn a_cancelled_dequeue_returns_its_elements_in_order() -> Result<()> {
    let fixture = Fixture::new(10, QueueKind::Fifo);
    let step = Arc::new(Cancellation::new());
    fixture.dequeue("three", &step, 3);
    fixture.enqueue("in", &[1, 2])?;
    assert_eq!(fixture.queue.len(), 0, "a batch is taken as it comes");
    fixture.dequeue("two", &fixture.step, 2);
    assert_eq!(fixture.take_log(), [("in", Ok(vec![]))]);
    step.cancel(Error::new(Code::Cancelled, "the client is gone"));
    let cancelled = Error::new(Code::Cancelled, "the client is gone").derived();
    assert_eq!(fixture.take_log(), [("three", Err(cancelled)), ("two", Ok(vec![1, 2]))]);
    Ok(())
}

#[test]
fn a_close_waits_for_earlier_enqueues() -> Result<()> {
    let fixture = Fixture::new(1, QueueKind::Fifo);
    fixture.enqueue("one", &[1])?;
    fixture.enqueue("more", &[2, 3])?;
    fixture.queue.close(&fixture.step, false, fixture.record("close"));
    fixture.enqueue("late", &[4])?;
    assert_eq!(fixture.take_log(), [("one", Ok(vec![]))]);
    assert!(!fixture.queue.is_closed());
    fixture.dequeue("two", &fixture.step, 2);
    fixture.dequeue("last", &fixture.step, 1);
    let closed = Err(Error::new(Code::Cancelled, "FIFOQueue 'q' is closed."));
    let mut answers = fixture.take_log();
    answers.sort_by_key(|(what, _)| *what);
    let expected = [
        ("close", Ok(vec![])),
        ("last", Ok(vec![3])),
        ("late", closed),
        ("more", Ok(vec![])),
        ("two", Ok(vec![1, 2])),
    ];
    assert_eq!(answers, expected);
    Ok(())
}

#[test]
fn a_shuffling_queue_keeps_min_after_dequeue_until_closed() -> Result<()> {
    let fixture = Fixture::new(10, QueueKind::Shuffle { min_after_dequeue: 2, seeds: (1, 2) });
    fixture.enqueue("in", &[1, 2, 3])?;
    fixture.dequeue("two", &fixture.step, 2);
    assert_eq!(fixture.queue.len(), 2);
    assert_eq!(fixture.take_log().len(), 1);
    fixture.queue.close(&fixture.step, false, fixture.record("close"));
    let taken = fixture.take_log().into_iter().find(|(what, _)| *what == "two");
    assert!(matches!(taken, Some((_, Ok(values))) if values.len() == 2));
    assert_eq!(fixture.queue.len(), 1);
    Ok(())
}

#[test]
fn batches_of_scalars_are_refused() -> Result<()> {
    let fixture = Fixture::new(10, QueueKind::Fifo);
    fixture.queue.enqueue_many(&fixture.step, &[Tensor::from(1i32)], fixture.record("in"));
    let answers = fixture.take_log();
    assert!(
        matches!(&answers[..], [("in", Err(error))] if error.code() == Code::InvalidArgument),
        "{answers:?}"
    );
    Ok(())
}

#[test]
fn concurrent_threads_neither_lose_nor_repeat_elements() -> Result<()> {
    let fixture = Fixture::new(7, QueueKind::Fifo);
    std::thread::scope(|scope| {
        for start in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                (0..50).for_each(|i| {
                    let values = [start * 100 + 2 * i, start * 100 + 2 * i + 1];
                    assert_eq!(fixture.enqueue("in", &values), Ok(()));
                })
            });
            scope.spawn(move || (0..25).for_each(|_| fixture.dequeue("out", &fixture.step, 4)));
        }
    });
    let mut taken = Vec::new();
    for (what, values) in fixture.take_log() {
        let values = values?;
        if what == "out" {
            assert_eq!(values.len(), 4);
            taken.extend(values);
        }
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..400).collect::<Vec<_>>());
    Ok(())
}
