//! Tests of gradients that are dropped or refused, and of takes that wait.

use super::*;
use graph::Code;
use parking_lot::Mutex;

type Log = Arc<Mutex<Vec<Result<Tensor>>>>;

fn dense(values: &[f32]) -> Result<Gradient> {
    Ok(Gradient::Dense(Tensor::vector(values)?))
}

fn take(accumulator: &Accumulator, required: i32, step: &Arc<Cancellation>) -> Log {
    let log = Log::default();
    let answers = log.clone();
    let record = move |taken: Result<Gradient>| {
        answers.lock().push(taken.map(|gradient| match gradient {
            Gradient::Dense(tensor) => tensor,
            Gradient::Sparse(sparse) => sparse.values,
        }));
    };
    accumulator.take(step, required, Box::new(record));
    log
}

#[test]
fn stale_gradients_are_dropped_and_counted() -> Result<()> {
    let a = Accumulator::new("a".into(), DType::Float, [2].into(), Reduction::Mean, false);
    a.set_global_step(3);
    a.apply(2, dense(&[9.0, 9.0])?)?;
    a.apply(3, dense(&[1.0, 2.0])?)?;
    a.apply(7, dense(&[3.0, 6.0])?)?;
    assert_eq!((a.count(), a.dropped()), (2, 1));
    let taken = take(&a, 1, &Arc::default());
    assert_eq!(*taken.lock(), [Ok(Tensor::try_from([2.0f32, 4.0])?)]);
    a.apply(3, dense(&[9.0, 9.0])?)?;
    assert_eq!((a.count(), a.dropped()), (0, 2), "the accumulator is a step on");
    Ok(())
}

#[test]
fn a_take_waits_for_enough_gradients_and_takes_none_when_cancelled() -> Result<()> {
    let a = Accumulator::new("a".into(), DType::Float, PartialShape::unknown(), Reduction::Sum, false);
    let step = Arc::new(Cancellation::new());
    let cancelled = take(&a, 2, &step);
    a.apply(0, dense(&[1.0])?)?;
    assert!(cancelled.lock().is_empty());
    step.cancel(Error::new(Code::Cancelled, "over"));
    assert!(matches!(&cancelled.lock()[..], [Err(error)] if error.code() == Code::Cancelled));
    assert_eq!(a.count(), 1);
    let taken = take(&a, 2, &Arc::default());
    a.apply(0, dense(&[2.0])?)?;
    assert_eq!(*taken.lock(), [Ok(Tensor::try_from([3.0f32])?)]);
    Ok(())
}

#[test]
fn refused_gradients_leave_the_sum_unchanged() -> Result<()> {
    let a = Accumulator::new("a".into(), DType::Float, [2].into(), Reduction::Sum, false);
    assert!(a.apply(0, dense(&[1.0, 2.0, 3.0])?).is_err());
    a.apply(0, dense(&[1.0, 2.0])?)?;
    assert!(a.apply(0, dense(&[1.0])?).is_err());
    assert_eq!(a.count(), 1);
    assert!(a.check(DType::Double, false).is_err() && a.check(DType::Float, true).is_err());
    let sparse = SparseGradient {
        indices: Tensor::try_from([0i64])?,
        values: Tensor::try_from([[1.0f32]])?,
        shape: None,
    };
    assert!(a.apply(0, Gradient::Sparse(sparse)).is_err());
    assert_eq!(*take(&a, 1, &Arc::default()).lock(), [Ok(Tensor::try_from([1.0f32, 2.0])?)]);
    Ok(())
}

#[test]
fn sparse_means_divide_each_row_by_its_gradient_count() -> Result<()> {
    let a = Accumulator::new("a".into(), DType::Float, PartialShape::unknown(), Reduction::Mean, true);
    for (indices, values) in [([1i64, 4], [[2.0f32], [4.0]]), ([4, 7], [[8.0], [1.0]])] {
        let (indices, values) = (Tensor::try_from(indices)?, Tensor::try_from(values)?);
        a.apply(0, Gradient::Sparse(SparseGradient { indices, values, shape: None }))?;
    }
    let taken = take(&a, 2, &Arc::default());
    assert_eq!(*taken.lock(), [Ok(Tensor::try_from([[2.0f32], [6.0], [1.0]])?)]);
    Ok(())
}
