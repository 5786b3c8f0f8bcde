//! Tests of datasets through their iterators. The functions of the datasets are Rust closures.

use super::function::{CapturedFunction, ElementFunction, FunctionDone};
use super::generator::Generator;
use super::interleave::{InterleavePrefetch, Interleaving, interleave};
use super::iterator::IteratorResource;
use super::parallel_map::{Parallelism, map_and_batch, parallel_filter, parallel_map};
use super::prefetch::Prefetch;
use super::shuffle::{SeedSource, Seeds, Shuffle};
use super::source::{Elements, Range, Slices};
use super::window::{Windowing, window};
use super::*;
use super::{batch, cache, grouped, map, padded_batch, transform};
use device::Error;
use device::cancel::Cancellation;
use graph::{Code, Shape};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);

type Body = dyn Fn(Element) -> Result<Element> + Send + Sync;

/// A closure that acts as the function of a dataset.
struct Closure(Arc<Body>);

impl fmt::Debug for Closure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closure")
    }
}

impl ElementFunction for Closure {
    fn start(&self, _: &Arc<Cancellation>, arguments: Element, done: FunctionDone) {
        let body = self.0.clone();
        let result = threads::spawn(move || done(body(arguments)));
        assert_eq!(result, Ok(()));
    }

    fn instance(&self) -> Result<Arc<dyn ElementFunction>> {
        Ok(Arc::new(Closure(self.0.clone())))
    }
}

pub(super) fn function(
    body: impl Fn(Element) -> Result<Element> + Send + Sync + 'static,
) -> CapturedFunction {
    CapturedFunction { function: Arc::new(Closure(Arc::new(body))), arguments: Vec::new() }
}

/// Returns a dataset function that computes a tensor from one `int64` scalar.
pub(super) fn of_number(body: impl Fn(i64) -> Result<Tensor> + Send + Sync + 'static) -> CapturedFunction {
    function(move |element| Ok(vec![body(element[0].item()?)?]))
}

pub(super) fn range(stop: i64) -> Result<Arc<Dataset>> {
    Range::dataset(0, stop, 1, DType::Int64)
}

pub(super) fn integers() -> ElementSpec {
    ElementSpec::scalars(&[DType::Int64])
}

fn iterate(dataset: &Arc<Dataset>) -> Result<Box<dyn DatasetIterator>> {
    dataset.iterator(&IteratorContext::root(None))
}

fn all(dataset: &Arc<Dataset>) -> Result<Vec<Element>> {
    let mut iterator = iterate(dataset)?;
    let mut elements = Vec::new();
    while let Some(element) = iterator.next(&Pull::default())? {
        elements.push(element);
    }
    // After the end, the iterator keeps returning the end.
    assert_eq!(iterator.next(&Pull::default())?, None);
    Ok(elements)
}

/// Returns the elements of a dataset of numbers.
fn numbers(dataset: &Arc<Dataset>) -> Result<Vec<i64>> {
    all(dataset)?.iter().map(|e| Ok(e[0].item::<i64>()?)).collect()
}

/// Returns the elements of a dataset of vectors.
fn rows(dataset: &Arc<Dataset>) -> Result<Vec<Vec<i64>>> {
    all(dataset)?.iter().map(|e| Ok(e[0].values::<i64>()?.to_vec())).collect()
}

fn code<T>(result: Result<T>) -> Option<Code> {
    result.err().map(|error| error.code())
}

#[test]
fn cardinality_matches_the_number_of_elements() -> Result<()> {
    let check = |dataset: Arc<Dataset>| -> Result<()> {
        let count = all(&dataset)?.len() as i64;
        assert_eq!(dataset.cardinality, count, "{dataset:?}");
        Ok(())
    };
    check(Range::dataset(10, -7, -3, DType::Int32)?)?;
    check(Range::dataset(0, 10, -1, DType::Int64)?)?;
    check(transform::take(range(5)?, 3)?)?;
    check(transform::take(range(5)?, -1)?)?;
    check(transform::skip(range(5)?, 7)?)?;
    check(transform::skip(range(5)?, -1)?)?;
    check(transform::shard(range(7)?, 3, 0, false)?)?;
    check(transform::shard(range(7)?, 3, 2, false)?)?;
    check(transform::repeat(range(3)?, 4)?)?;
    check(transform::concatenate(range(3)?, range(2)?)?)?;
    check(transform::zip(vec![range(3)?, transform::repeat(range(2)?, -1)?])?)?;
    check(batch::batch(range(7)?, 3, false, None)?)?;
    check(batch::batch(range(7)?, 3, true, None)?)?;
    check(batch::unbatch(batch::batch(range(6)?, 3, true, None)?)?)?;
    for drop_remainder in [false, true] {
        for (size, shift, stride) in [(3, 1, 1), (3, 5, 2), (2, 2, 1), (20, 3, 1)] {
            check(window(range(9)?, Windowing { size, shift, stride, drop_remainder })?)?;
        }
    }
    assert_eq!(transform::repeat(range(3)?, -1)?.cardinality, INFINITE);
    assert_eq!(map::filter(range(3)?, of_number(|i| Ok((i > 1).into())))?.cardinality, UNKNOWN);
    Ok(())
}

#[test]
fn ranges_near_the_limits_of_i64_do_not_overflow() -> Result<()> {
    let last = Range::dataset(i64::MAX - 2, i64::MAX, 1, DType::Int64)?;
    assert_eq!(numbers(&last)?, [i64::MAX - 2, i64::MAX - 1]);
    let wide = Range::dataset(i64::MIN, i64::MAX, i64::MAX, DType::Int64)?;
    assert_eq!(numbers(&wide)?, [i64::MIN, -1, i64::MAX - 1]);
    assert_eq!(code(Range::dataset(0, 1, 0, DType::Int64)), Some(Code::InvalidArgument));
    assert_eq!(code(Range::dataset(0, 1, 1, DType::String)), Some(Code::InvalidArgument));
    Ok(())
}

#[test]
fn infinite_repetition_of_an_empty_input_ends() -> Result<()> {
    assert_eq!(numbers(&transform::repeat(range(0)?, -1)?)?, [0i64; 0]);
    let shuffled = Shuffle::dataset(range(0)?, 3, SeedSource::new(Seeds(1, 2), true), -1)?;
    assert_eq!(numbers(&shuffled)?, [0i64; 0]);
    Ok(())
}

#[test]
fn shuffling_is_a_permutation_determined_by_the_seeds() -> Result<()> {
    let make = |seeds, reshuffle| -> Result<Arc<Dataset>> {
        let shuffled = Shuffle::dataset(range(20)?, 7, SeedSource::new(seeds, reshuffle), 1)?;
        transform::repeat(shuffled, 2)
    };
    let sorted = |part: &[i64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part
    };
    let seeded = numbers(&make(Seeds(3, 4), true)?)?;
    let (first, second) = seeded.split_at(20);
    assert_ne!(first, second);
    assert_eq!(sorted(first), (0..20).collect::<Vec<_>>());
    assert_eq!(sorted(second), (0..20).collect::<Vec<_>>());
    assert_eq!(numbers(&make(Seeds(3, 4), true)?)?, seeded);
    let fixed = numbers(&make(Seeds(3, 4), false)?)?;
    assert_eq!(fixed[..20], fixed[20..]);
    // The buffer of 7 elements lets an element come at most 6 positions early.
    assert!(first.iter().enumerate().all(|(i, e)| *e < i as i64 + 7));
    // Iterators over one dataset draw their seeds from one generator; unseeded datasets have different generators.
    let shared = make(Seeds(3, 4), true)?;
    assert_eq!(numbers(&shared)?, seeded);
    assert_ne!(numbers(&shared)?, seeded);
    let unseeded = || make(Seeds(0, 0), true);
    assert_ne!(numbers(&unseeded()?)?, numbers(&unseeded()?)?);
    Ok(())
}

#[test]
fn batches_require_equal_shapes_unless_padded() -> Result<()> {
    let grown = || {
        map::map(
            range(4)?,
            of_number(|i| Ok(Tensor::full(i, Shape::new(&[i as usize])?)?)),
            ElementSpec::new(vec![DType::Int64], vec![PartialShape::vector(None)])?,
            true,
        )
    };
    let refused = all(&batch::batch(grown()?, 2, false, None)?).map_err(|e| e.to_string());
    let text = "Cannot batch tensors with different shapes in component 0. First element had shape [0] and \
                element 1 had shape [1].";
    assert_eq!(refused.map(|_| ()), Err(text.to_owned()));
    let pad = |shape: PartialShape| -> Result<Arc<Dataset>> {
        padded_batch::padded_batch(grown()?, 3, vec![shape], vec![Tensor::scalar(-1i64)], false)
    };
    assert_eq!(rows(&pad(PartialShape::vector(None))?)?, [vec![-1, -1, 1, -1, 2, 2], vec![3, 3, 3]]);
    assert_eq!(rows(&pad(PartialShape::vector(Some(3)))?)?[1], [3, 3, 3]);
    assert_eq!(code(all(&pad(PartialShape::vector(Some(1)))?)), Some(Code::DataLoss));
    assert_eq!(code(all(&pad(PartialShape::scalar())?)), Some(Code::InvalidArgument));
    assert_eq!(code(batch::batch(range(3)?, 0, false, None)), Some(Code::InvalidArgument));
    Ok(())
}

#[test]
fn padding_fills_inner_dimensions() -> Result<()> {
    let matrix = Tensor::try_from([[1i16, 2], [3, 4], [5, 6]])?;
    let wide = element::stack_padded(&[&matrix], &[4, 3], &Tensor::scalar(300i16))?;
    assert_eq!(wide.values::<i16>()?, [1, 2, 300, 3, 4, 300, 5, 6, 300, 300, 300, 300]);
    let words = Tensor::strings(vec!["a".into(), "b".into()], Shape::new(&[1, 2])?)?;
    let wide = element::stack_padded(&[&words], &[2, 2], &Tensor::string("-"))?;
    assert_eq!(wide.as_strings()?, ["a", "b", "-", "-"]);
    let none = Tensor::zeros(DType::Float, Shape::new(&[3, 0])?)?;
    let wide = element::stack_padded(&[&none], &[3, 1], &Tensor::scalar(2.0f32))?;
    assert_eq!(wide.values::<f32>()?, [2.0, 2.0, 2.0]);
    Ok(())
}

/// Returns a function that maps `n` to the dataset of `n` elements equal to `n`.
fn times() -> CapturedFunction {
    of_number(|n| {
        let row = Elements::tensors(vec![Tensor::scalar(n)])?;
        DatasetVariant::tensor(transform::repeat(row, n)?, [])
    })
}

#[test]
fn parallel_interleaving_keeps_the_sequential_order() -> Result<()> {
    let input = || Range::dataset(1, 6, 1, DType::Int64);
    let how = Interleaving { cycle_length: 2, block_length: 2, ahead: None };
    let sequential = numbers(&interleave(input()?, times(), integers(), how)?)?;
    assert_eq!(sequential, [1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 4, 4, 5, 5, 5]);
    for datasets in [-1, 1, 2] {
        let ahead = Some(InterleavePrefetch { datasets, elements: 1 });
        let parallel = interleave(input()?, times(), integers(), Interleaving { ahead, ..how })?;
        assert_eq!(numbers(&parallel)?, sequential);
    }
    // A cycle far longer than the input does not allocate its full length.
    let long = Interleaving { cycle_length: i64::MAX, block_length: 1, ahead: None };
    let mut spread = numbers(&interleave(input()?, times(), integers(), long)?)?;
    spread.sort_unstable();
    let mut expected = sequential;
    expected.sort_unstable();
    assert_eq!(spread, expected);
    assert_eq!(numbers(&map::flat_map(range(4)?, times(), integers())?)?, [1, 2, 2, 3, 3, 3]);
    Ok(())
}

/// Returns a function that returns its argument, but fails for the numbers in `at`.
fn failing(at: &'static [i64]) -> CapturedFunction {
    of_number(
        move |i| {
            if at.contains(&i) { Err(Error::invalid(format!("no {i}"))) } else { Ok(Tensor::scalar(i)) }
        },
    )
}

#[test]
fn errors_keep_the_position_of_their_elements() -> Result<()> {
    let parallel = Parallelism { calls: 3, deterministic: Some(true) };
    for dataset in [
        map::map(range(6)?, failing(&[1, 4]), integers(), true)?,
        parallel_map(range(6)?, failing(&[1, 4]), integers(), true, parallel)?,
        Prefetch::dataset(map::map(range(6)?, failing(&[1, 4]), integers(), true)?, 2)?,
    ] {
        let mut iterator = iterate(&dataset)?;
        let mut results = Vec::new();
        loop {
            match iterator.next(&Pull::default()) {
                Ok(Some(element)) => results.push(Ok(element[0].item::<i64>()?)),
                Ok(None) => break,
                Err(error) => results.push(Err(error.code())),
            }
        }
        let invalid = Err(Code::InvalidArgument);
        assert_eq!(results, [Ok(0), invalid, Ok(2), Ok(3), invalid, Ok(5)], "{dataset:?}");
        assert_eq!(numbers(&transform::ignore_errors(dataset)?)?, [0, 2, 3, 5]);
    }
    let message = all(&map::map(range(2)?, failing(&[0]), integers(), true)?).map_err(|e| e.to_string());
    let text = "Error in user-defined function passed to MapDataset transformation with iterator: \
                Iterator::Root::Map: no 0";
    assert_eq!(message.map(|_| ()), Err(text.to_owned()));
    Ok(())
}

#[test]
fn out_of_range_ends_the_dataset_unless_cardinality_is_preserved() -> Result<()> {
    let ends = || {
        of_number(|i| match i {
            2 => Err(Error::new(Code::OutOfRange, "enough")),
            i => Ok(Tensor::scalar(i)),
        })
    };
    assert_eq!(numbers(&transform::take(map::map(range(9)?, ends(), integers(), false)?, 2)?)?, [0, 1]);
    let mut iterator = iterate(&map::map(range(3)?, ends(), integers(), false)?)?;
    iterator.next(&Pull::default())?;
    iterator.next(&Pull::default())?;
    assert_eq!(iterator.next(&Pull::default())?, None);
    assert_eq!(code(all(&map::map(range(3)?, ends(), integers(), true)?)), Some(Code::InvalidArgument));
    Ok(())
}

#[test]
fn parallel_transformations_give_the_sequential_results() -> Result<()> {
    for deterministic in [true, false] {
        let how = Parallelism { calls: 4, deterministic: Some(deterministic) };
        let square = of_number(|i| Ok(Tensor::scalar(i * i)));
        let mut squares = numbers(&parallel_map(range(50)?, square, integers(), true, how)?)?;
        if !deterministic {
            squares.sort_unstable();
        }
        assert_eq!(squares, (0..50).map(|i| i * i).collect::<Vec<_>>());
    }
    let how = Parallelism { calls: 3, deterministic: None };
    let odd = of_number(|i| Ok((i % 2 == 1).into()));
    assert_eq!(numbers(&parallel_filter(range(7)?, odd, how)?)?, [1, 3, 5]);
    let batches = ElementSpec::new(vec![DType::Int64], vec![PartialShape::vector(None)])?;
    let mapped = map_and_batch(range(7)?, failing(&[]), batches.clone(), 3, false, true, how)?;
    assert_eq!(rows(&mapped)?, [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    let mapped = map_and_batch(range(7)?, failing(&[]), batches.clone(), 3, true, true, how)?;
    assert_eq!(rows(&mapped)?.len(), 2);
    let mapped = map_and_batch(range(6)?, failing(&[1]), batches, 3, false, true, how)?;
    let mut iterator = iterate(&mapped)?;
    assert_eq!(code(iterator.next(&Pull::default())), Some(Code::InvalidArgument));
    let after = iterator.next(&Pull::default())?.unwrap_or_default();
    assert_eq!(after[0].values::<i64>()?, [3, 4, 5]);
    Ok(())
}

#[test]
fn group_by_window_returns_windows_per_key() -> Result<()> {
    let key = || of_number(|i| Ok(Tensor::scalar(i % 3)));
    let reduce = function(|arguments| {
        let window = DatasetVariant::of(&arguments[1])?;
        Ok(vec![DatasetVariant::tensor(batch::batch(window, 10, false, None)?, [])?])
    });
    let size = of_number(|key| Ok(Tensor::scalar(key + 1)));
    let spec = ElementSpec::new(vec![DType::Int64], vec![PartialShape::vector(None)])?;
    let windows = grouped::group_by_window(range(7)?, key(), reduce, size, spec)?;
    assert_eq!(rows(&windows)?, [vec![0], vec![3], vec![1, 4], vec![6], vec![2, 5]]);
    Ok(())
}

#[test]
fn a_cache_is_filled_once_for_each_pipeline() -> Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let count = of_number(move |i| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Tensor::scalar(i))
    });
    let mapped = map::map(range(3)?, count, integers(), true)?;
    let cached = cache::cache(mapped, cache::CacheSource::Own(PerPipeline::default()))?;
    let epochs = transform::repeat(cached, 3)?;
    assert_eq!(numbers(&epochs)?, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    numbers(&epochs)?;
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    Ok(())
}

/// A gate at which function calls block until it opens, and the number of calls that have reached it.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    arrived: AtomicUsize,
}

impl Gate {
    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    fn function(self: &Arc<Gate>) -> CapturedFunction {
        let gate = self.clone();
        of_number(move |i| {
            gate.arrived.fetch_add(1, Ordering::SeqCst);
            let mut open = gate.open.lock();
            while !*open {
                gate.opened.wait(&mut open);
            }
            Ok(Tensor::scalar(i))
        })
    }

    fn wait_for(&self, arrived: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.arrived.load(Ordering::SeqCst) < arrived {
            assert!(Instant::now() < deadline, "never came: {arrived}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn prefetching_stops_when_the_buffer_is_full() -> Result<()> {
    let made = Arc::new(Gate::default());
    made.open();
    let mapped = map::map(range(100)?, made.function(), integers(), true)?;
    let mut iterator = iterate(&Prefetch::dataset(mapped, 4)?)?;
    assert_eq!(made.arrived.load(Ordering::SeqCst), 0);
    assert_eq!(iterator.next(&Pull::default())?, Some(vec![Tensor::scalar(0i64)]));
    // One element has been consumed and four fill the buffer, so five calls have started; the full buffer stops further
    // calls.
    made.wait_for(5);
    assert_eq!(made.arrived.load(Ordering::SeqCst), 5);
    Ok(())
}

#[test]
fn function_calls_run_concurrently_up_to_the_limit() -> Result<()> {
    let gate = Arc::new(Gate::default());
    let how = Parallelism { calls: 3, deterministic: Some(true) };
    let dataset = parallel_map(range(10)?, gate.function(), integers(), true, how)?;
    let (sender, receiver) = mpsc::channel();
    let mut iterator = iterate(&dataset)?;
    threads::spawn(move || {
        let _ = sender.send(iterator.next(&Pull::default()));
    })?;
    gate.wait_for(3);
    assert_eq!(gate.arrived.load(Ordering::SeqCst), 3);
    gate.open();
    assert_eq!(receiver.recv_timeout(DEADLINE), Ok(Ok(Some(vec![Tensor::scalar(0i64)]))));
    Ok(())
}

fn ask(
    iterator: &Arc<IteratorResource>,
    cancellation: &Arc<Cancellation>,
) -> mpsc::Receiver<Result<Option<Element>>> {
    let (sender, receiver) = mpsc::channel();
    let deliver = move |result| {
        let _ = sender.send(result);
    };
    iterator.get_next(cancellation, Box::new(deliver));
    receiver
}

fn answer(receiver: &mpsc::Receiver<Result<Option<Element>>>) -> Result<Option<i64>> {
    let answer = receiver.recv_timeout(DEADLINE).map_err(|e| Error::internal(e.to_string()))??;
    Ok(answer.map(|element| element[0].item::<i64>()).transpose()?)
}

#[test]
fn cancelling_a_request_does_not_affect_the_others() -> Result<()> {
    let gate = Arc::new(Gate::default());
    let iterator = Arc::new(IteratorResource::new(integers()));
    let [first, second, third]: [Arc<Cancellation>; 3] = Default::default();
    assert_eq!(code(answer(&ask(&iterator, &first))), Some(Code::FailedPrecondition));
    iterator.set(&Prefetch::dataset(map::map(range(9)?, gate.function(), integers(), true)?, 1)?)?;
    let answers = [&first, &second, &third].map(|cancellation| ask(&iterator, cancellation));
    gate.wait_for(1);
    // First a request that waits in the queue is cancelled, then the request that the serving thread is pulling.
    second.cancel(Error::new(Code::Cancelled, "no more"));
    assert_eq!(code(answer(&answers[1])), Some(Code::Cancelled));
    first.cancel(Error::new(Code::Cancelled, "no more"));
    assert_eq!(code(answer(&answers[0])), Some(Code::Cancelled));
    gate.open();
    // The third request gets the element of the pull that was cancelled.
    assert_eq!(answer(&answers[2])?, Some(0));
    assert_eq!(code(answer(&ask(&iterator, &first))), Some(Code::Cancelled));
    assert_eq!(answer(&ask(&iterator, &third))?, Some(1));
    Ok(())
}

#[test]
fn an_iterator_can_be_reinitialized_during_a_pull() -> Result<()> {
    let gate = Arc::new(Gate::default());
    let iterator = Arc::new(IteratorResource::new(integers()));
    let cancellation = Arc::default();
    iterator.set(&map::map(range(9)?, gate.function(), integers(), true)?)?;
    let old = ask(&iterator, &cancellation);
    gate.wait_for(1);
    iterator.set(&Range::dataset(70, 80, 1, DType::Int64)?)?;
    gate.open();
    assert_eq!(answer(&old)?, Some(0));
    assert_eq!(answer(&ask(&iterator, &cancellation))?, Some(70));
    let floats = Elements::tensors(vec![Tensor::scalar(1.5f32)])?;
    let refused = iterator.set(&floats).map_err(|e| e.to_string());
    assert_eq!(refused, Err("Data type mismatch at component 0: expected int64 but got float.".to_owned()));
    Ok(())
}

#[test]
fn datasets_nested_too_deep_or_too_wide_are_refused() -> Result<()> {
    let mut deep = range(3)?;
    let refused = loop {
        match transform::skip(deep.clone(), 0) {
            Ok(deeper) => deep = deeper,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    // A dataset of the maximum depth can be iterated on a dataset thread.
    let (sender, receiver) = mpsc::channel();
    threads::spawn(move || {
        let _ = sender.send(numbers(&deep));
    })?;
    assert_eq!(receiver.recv_timeout(DEADLINE), Ok(Ok(vec![0, 1, 2])));
    // Each dataset of the chain has the previous dataset as its only element.
    let mut nested = DatasetVariant::tensor(range(3)?, [])?;
    let refused = loop {
        match DatasetVariant::tensor(Elements::tensors(vec![nested.clone()])?, [&nested]) {
            Ok(deeper) => nested = deeper,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    // Each dataset concatenates the previous dataset with itself, so the number of iterators doubles.
    let mut wide = range(1)?;
    let refused = loop {
        match transform::concatenate(wide.clone(), wide.clone()) {
            Ok(wider) => wide = wider,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    Ok(())
}

#[test]
fn slices_require_equal_numbers_of_rows() -> Result<()> {
    let words = Tensor::strings(vec!["a".into(), "b".into()], Shape::new(&[2])?)?;
    let slices = Slices::dataset(vec![Tensor::try_from([[1i64, 2], [3, 4]])?, words.clone()])?;
    let elements = all(&slices)?;
    assert_eq!(elements[1], [Tensor::try_from([3i64, 4])?, Tensor::string("b")]);
    assert!(Slices::dataset(vec![Tensor::scalar(1i64)]).is_err());
    assert!(Slices::dataset(vec![words, Tensor::try_from([1i64])?]).is_err());
    Ok(())
}

/// Returns a generator that counts from 100 to `100 + to`; finalization sends the state to `finalized`.
fn counting(to: i64, finalized: &mpsc::Sender<i64>) -> Result<Arc<Dataset>> {
    let (count, finalized) = (AtomicI64::new(0), finalized.clone());
    let next = move |state: Element| {
        let next = count.fetch_add(1, Ordering::Relaxed);
        let over = || Error::new(Code::OutOfRange, "no more");
        if next < to { Ok(vec![Tensor::from(state[0].item::<i64>()? + next)]) } else { Err(over()) }
    };
    let finalize = move |state: Element| {
        let _ = finalized.send(state[0].item()?);
        Ok(state)
    };
    let generator = Generator {
        init: function(|_| Ok(vec![Tensor::from(100i64)])),
        next: function(next),
        finalize: function(finalize),
        spec: integers(),
    };
    generator.dataset()
}

#[test]
fn a_generator_is_finalized_once_at_its_end_or_when_dropped() -> Result<()> {
    let (sender, finalized) = mpsc::channel();
    let finalized_state = || finalized.recv_timeout(DEADLINE).ok();
    for (elements, to) in [(2, 2), (1, 2)] {
        let mut iterator = iterate(&counting(to, &sender)?)?;
        for i in 0..elements {
            let element = iterator.next(&Pull::default())?.ok_or_else(|| Error::internal("no element"))?;
            assert_eq!(element[0].item::<i64>()?, 100 + i);
        }
        if elements == to {
            assert!(iterator.next(&Pull::default())?.is_none() && iterator.next(&Pull::default())?.is_none());
        }
        drop(iterator);
        assert_eq!(finalized_state(), Some(100));
    }
    // An iterator that was never pulled has no state to finalize.
    drop(iterate(&counting(1, &sender)?)?);
    drop(sender);
    assert_eq!(finalized_state(), None);
    Ok(())
}
