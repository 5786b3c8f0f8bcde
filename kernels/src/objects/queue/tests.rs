//! Tests of queue behaviour that a client cannot cause at will.

use super::*;
use graph::DType;
use parking_lot::Mutex;

type Log = Arc<Mutex<Vec<(&'static str, Result<Vec<i32>>)>>>;

struct Bench {
    queue: Queue,
    log: Log,
    step: Arc<Cancellation>,
}

impl Bench {
    fn new(capacity: i64, kind: Kind) -> Bench {
        let spec =
            QueueSpec { kind, capacity, types: vec![DType::Int32], shapes: vec![PartialShape::scalar()] };
        Bench { queue: Queue::new("q".into(), spec), log: Log::default(), step: Arc::default() }
    }

    fn told(&self, what: &'static str) -> Finish<Vec<Element>> {
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
        self.queue.enqueue_many(&self.step, &[Tensor::vector(values)?], self.told(what));
        Ok(())
    }

    fn dequeue(&self, what: &'static str, step: &Arc<Cancellation>, count: usize) {
        self.queue.dequeue_many(step, count, false, self.told(what));
    }

    fn took(&self) -> Vec<(&'static str, Result<Vec<i32>>)> {
        std::mem::take(&mut self.log.lock())
    }
}

#[test]
fn a_cancelled_wait_gives_back_what_it_took_in_order() -> Result<()> {
    let bench = Bench::new(10, Kind::Fifo);
    let step = Arc::new(Cancellation::new());
    bench.dequeue("three", &step, 3);
    bench.enqueue("in", &[1, 2])?;
    assert_eq!(bench.queue.len(), 0, "a batch is taken as it comes");
    bench.dequeue("two", &bench.step, 2);
    assert_eq!(bench.took(), [("in", Ok(vec![]))]);
    step.cancel(Error::new(Code::Cancelled, "the client is gone"));
    let cancelled = Error::new(Code::Cancelled, "the client is gone").derived();
    assert_eq!(bench.took(), [("three", Err(cancelled)), ("two", Ok(vec![1, 2]))]);
    Ok(())
}

#[test]
fn a_close_waits_for_enqueues_before_it() -> Result<()> {
    let bench = Bench::new(1, Kind::Fifo);
    bench.enqueue("one", &[1])?;
    bench.enqueue("more", &[2, 3])?;
    bench.queue.close(&bench.step, false, bench.told("close"));
    bench.enqueue("late", &[4])?;
    assert_eq!(bench.took(), [("one", Ok(vec![]))]);
    assert!(!bench.queue.is_closed());
    bench.dequeue("two", &bench.step, 2);
    bench.dequeue("last", &bench.step, 1);
    let closed = Err(Error::new(Code::Cancelled, "FIFOQueue 'q' is closed."));
    let mut told = bench.took();
    told.sort_by_key(|(what, _)| *what);
    let expected = [
        ("close", Ok(vec![])),
        ("last", Ok(vec![3])),
        ("late", closed),
        ("more", Ok(vec![])),
        ("two", Ok(vec![1, 2])),
    ];
    assert_eq!(told, expected);
    Ok(())
}

#[test]
fn what_waits_for_a_shuffle_leaves_enough_in_it() -> Result<()> {
    let bench = Bench::new(10, Kind::Shuffle { min_after_dequeue: 2, seeds: (1, 2) });
    bench.enqueue("in", &[1, 2, 3])?;
    bench.dequeue("two", &bench.step, 2);
    assert_eq!(bench.queue.len(), 2);
    assert_eq!(bench.took().len(), 1);
    bench.queue.close(&bench.step, false, bench.told("close"));
    let taken = bench.took().into_iter().find(|(what, _)| *what == "two");
    assert!(matches!(taken, Some((_, Ok(values))) if values.len() == 2));
    assert_eq!(bench.queue.len(), 1);
    Ok(())
}

#[test]
fn batches_of_scalars_are_refused() -> Result<()> {
    let bench = Bench::new(10, Kind::Fifo);
    bench.queue.enqueue_many(&bench.step, &[Tensor::from(1i32)], bench.told("in"));
    let told = bench.took();
    assert!(matches!(&told[..], [("in", Err(error))] if error.code() == Code::InvalidArgument), "{told:?}");
    Ok(())
}

#[test]
fn many_threads_lose_and_repeat_nothing() -> Result<()> {
    let bench = Bench::new(7, Kind::Fifo);
    std::thread::scope(|scope| {
        for start in 0..4 {
            let bench = &bench;
            scope.spawn(move || {
                (0..50).for_each(|i| {
                    let values = [start * 100 + 2 * i, start * 100 + 2 * i + 1];
                    assert_eq!(bench.enqueue("in", &values), Ok(()));
                })
            });
            scope.spawn(move || (0..25).for_each(|_| bench.dequeue("out", &bench.step, 4)));
        }
    });
    let mut taken = Vec::new();
    for (what, values) in bench.took() {
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
