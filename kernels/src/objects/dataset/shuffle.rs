//! Shuffling: draws each element from a buffer of the next input elements, in TensorFlow's order for the same seeds. If
//! the dataset also repeats its input, successive epochs share the buffer.

use super::context::SharedExchange;
use super::state::{ExchangedState, StateExchange, mismatch};
use super::{Dataset, DatasetIterator, DatasetKind, Element, UNKNOWN};
use super::{DatasetPath, IteratorContext, Pull};
use crate::numeric::philox::{Philox, PhiloxWords};
use device::Result;
use device::resource::Resource;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The two seeds of a stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(pub i64, pub i64);

impl Seeds {
    /// Returns the seeds unchanged, or random seeds if both are zero.
    pub(crate) fn or_random(self) -> Seeds {
        if self != Seeds(0, 0) {
            return self;
        }
        let mut stream = Philox::seeded(0, 0);
        let [a, b, c, d] = stream.next().map(i64::from);
        // The lowest bits are set so that the seeds are not two zeros, which would be replaced by random seeds again.
        Seeds(a << 32 | b | 1, c << 32 | d)
    }

    /// Returns the random number generator seeded with these seeds.
    pub(crate) fn stream(self) -> Philox {
        Philox::new(self.0 as u64, self.1 as u64)
    }
}

/// A generator of the seeds of each epoch, which are new in each epoch or always the same.
#[derive(Debug)]
pub(crate) struct SeedGenerator(Mutex<SeedGeneratorState>);

#[derive(Debug)]
struct SeedGeneratorState {
    seeds: Seeds,
    /// The random stream from which the seeds of each epoch are drawn; `None` if each epoch uses the same seeds.
    stream: Option<PhiloxWords>,
}

impl SeedGenerator {
    /// Returns a generator that starts from `seeds`; if `is_new_each_time`, each epoch gets new seeds.
    pub(crate) fn new(seeds: Seeds, is_new_each_time: bool) -> SeedGenerator {
        let stream = is_new_each_time.then(|| PhiloxWords::new(seeds.stream()));
        SeedGenerator(Mutex::new(SeedGeneratorState { seeds, stream }))
    }

    /// Returns the seeds of the next epoch.
    pub(crate) fn next(&self) -> Seeds {
        let state = &mut *self.0.lock();
        match &mut state.stream {
            None => state.seeds,
            Some(stream) => {
                let first = stream.next();
                Seeds(first.into(), stream.next().into())
            }
        }
    }
}

/// The resource behind a handle to a seed generator.
#[derive(Debug)]
pub(crate) struct SharedSeeds(pub(crate) Arc<SeedGenerator>);

impl Resource for SharedSeeds {
    const KIND: &'static str = "SeedGeneratorManager";
}

impl SharedExchange for SeedGenerator {
    fn exchange_shared(&self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let state = &mut *self.0.lock();
        exchange.value(&mut state.seeds.0)?;
        exchange.value(&mut state.seeds.1)?;
        let mut is_new_each_time = state.stream.is_some();
        exchange.value(&mut is_new_each_time)?;
        match &mut state.stream {
            Some(stream) if is_new_each_time => exchange_words(exchange, stream),
            None if !is_new_each_time => Ok(()),
            _ => Err(mismatch()),
        }
    }
}

/// Saves or restores the position of random numbers in their stream.
pub(super) fn exchange_words(exchange: &mut StateExchange<'_>, words: &mut PhiloxWords) -> Result<()> {
    let mut position = words.position();
    position.iter_mut().try_for_each(|part| exchange.value(part))?;
    *words = PhiloxWords::at_position(position).ok_or_else(mismatch)?;
    Ok(())
}

/// The owner of the seed generator of a dataset: the dataset itself or a seed generator resource.
pub(crate) enum SeedSource {
    /// A generator for each position of the dataset in a pipeline, started from `seeds` and shared by all iterators
    /// at that position.
    Own {
        seeds: Seeds,
        is_new_each_time: bool,
        generators: Mutex<FxHashMap<DatasetPath, Arc<SeedGenerator>>>,
    },
    /// The generator of a seed generator resource; all iterators of the dataset share it.
    Shared(Arc<SeedGenerator>),
}

impl SeedSource {
    /// Returns a source of generators owned by the dataset; two zero seeds are replaced by random ones.
    pub(crate) fn new(seeds: Seeds, is_new_each_time: bool) -> SeedSource {
        SeedSource::Own { seeds: seeds.or_random(), is_new_each_time, generators: Mutex::default() }
    }

    /// Returns the seed generator of a dataset that is iterated in the context `ctx`.
    ///
    /// # Errors
    /// The errors of `Pipeline::share`.
    pub(crate) fn of(&self, ctx: &IteratorContext) -> Result<Arc<SeedGenerator>> {
        let generator = match self {
            SeedSource::Own { seeds, is_new_each_time, generators } => {
                let make = || Arc::new(SeedGenerator::new(*seeds, *is_new_each_time));
                generators.lock().entry(ctx.path().clone()).or_insert_with(make).clone()
            }
            SeedSource::Shared(generator) => generator.clone(),
        };
        ctx.pipeline().share(ctx, generator.clone())?;
        Ok(generator)
    }
}

impl fmt::Debug for SeedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SeedSource::Own { seeds, .. } => seeds.fmt(f),
            SeedSource::Shared(generator) => generator.fmt(f),
        }
    }
}

/// Maximum number of earlier epochs with elements in the buffer, in addition to the epoch that is being read.
const MAX_OLD_EPOCHS: usize = 3;

/// A dataset that shuffles its input and, if `count` is not 1, repeats it.
#[derive(Debug)]
pub(crate) struct Shuffle {
    input: Arc<Dataset>,
    /// Buffer length in elements; `None` is unlimited.
    size: Option<usize>,
    seeds: Arc<SeedSource>,
    /// Number of epochs; `None` repeats without end.
    count: Option<u64>,
}

impl Shuffle {
    /// Returns the dataset of `count` epochs of `input` (-1 repeats without end), shuffled through a buffer of `size`
    /// elements.
    pub(crate) fn dataset(
        input: Arc<Dataset>,
        size: i64,
        seeds: SeedSource,
        count: i64,
    ) -> Result<Arc<Dataset>> {
        if size < 1 && size != UNKNOWN {
            device::invalid!("buffer_size must be greater than zero or UNKNOWN_CARDINALITY");
        }
        if count != -1 && count < 1 {
            device::invalid!("count must be greater than zero or equal to -1.");
        }
        let cardinality = super::transform::repeated(input.cardinality, count);
        let kind = Shuffle {
            input: input.clone(),
            size: usize::try_from(size).ok(),
            seeds: Arc::new(seeds),
            count: u64::try_from(count).ok(),
        };
        Ok(Dataset::new(input.spec.clone(), cardinality, &[&input], kind)?.with_batch_size(input.batch_size))
    }
}

impl DatasetKind for Shuffle {
    fn name(&self) -> &'static str {
        if self.count == Some(1) { "Shuffle" } else { "ShuffleAndRepeat" }
    }

    fn iterate(&self, ctx: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let generator = self.seeds.of(ctx)?;
        let numbers = PhiloxWords::new(generator.next().stream());
        Ok(Box::new(ShuffleIterator {
            dataset: self.input.clone(),
            size: self.size,
            epochs_left: self.count,
            ctx: ctx.clone(),
            generator,
            numbers,
            input: None,
            epochs: VecDeque::new(),
            buffer: VecDeque::new(),
            has_produced: false,
        }))
    }
}

struct ShuffleIterator {
    dataset: Arc<Dataset>,
    size: Option<usize>,
    epochs_left: Option<u64>,
    ctx: IteratorContext,
    generator: Arc<SeedGenerator>,
    numbers: PhiloxWords,
    input: Option<Box<dyn DatasetIterator>>,
    /// For each epoch with elements in the buffer, the oldest first: the number of its buffered elements, and true if
    /// the epoch has been read completely.
    epochs: VecDeque<(usize, bool)>,
    /// The elements from which the next element is drawn, the elements of the oldest epoch first.
    buffer: VecDeque<Element>,
    /// Set when the input has given at least one element in any epoch.
    has_produced: bool,
}

impl ShuffleIterator {
    /// Returns whether the buffer has room and the input may have another element.
    fn should_fill(&self) -> bool {
        if self.input.is_none() && self.epochs_left == Some(0) {
            return false;
        }
        if self.epochs.len() > MAX_OLD_EPOCHS && !self.buffer.is_empty() {
            return false;
        }
        self.size.is_none_or(|size| self.buffer.len() < size)
    }

    /// Fills the buffer from the input, and starts the next epoch when the input ends.
    fn fill(&mut self, pull: &Pull) -> Result<()> {
        while self.should_fill() {
            let input = match &mut self.input {
                Some(input) => input,
                None => {
                    let made = self.dataset.iterator(&self.ctx)?;
                    self.epochs.push_back((0, false));
                    self.epochs_left = self.epochs_left.map(|left| left - 1);
                    self.input.insert(made)
                }
            };
            pull.check()?;
            match input.next(pull)? {
                Some(element) => {
                    self.buffer.push_back(element);
                    self.has_produced = true;
                    if let Some((count, _)) = self.epochs.back_mut() {
                        *count += 1;
                    }
                }
                None => {
                    self.input = None;
                    if let Some((_, is_whole)) = self.epochs.back_mut() {
                        *is_whole = true;
                    }
                    if !self.has_produced {
                        // Repetitions of an empty input give no elements, so the dataset ends.
                        self.epochs_left = Some(0);
                    }
                }
            }
        }
        Ok(())
    }
}

impl ExchangedState for ShuffleIterator {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.kind("Shuffle")?;
        exchange.value(&mut self.epochs_left)?;
        exchange_words(exchange, &mut self.numbers)?;
        exchange.value(&mut self.epochs)?;
        exchange.value(&mut self.buffer)?;
        exchange.value(&mut self.has_produced)?;
        let buffered = self.epochs.iter().try_fold(0usize, |sum, (count, _)| sum.checked_add(*count));
        if buffered != Some(self.buffer.len()) {
            return Err(mismatch());
        }
        exchange.remade(&mut self.input, || self.dataset.iterator(&self.ctx))
    }
}

impl DatasetIterator for ShuffleIterator {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        self.fill(pull)?;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        while self.epochs.front() == Some(&(0, true)) {
            self.epochs.pop_front();
            self.numbers = PhiloxWords::new(self.generator.next().stream());
        }
        let Some((count @ 1.., _)) = self.epochs.front_mut() else {
            return Err(device::Error::internal("a shuffle buffer with elements of no epoch"));
        };
        // The random number has only 32 bits, also for a buffer of more than 2^32 elements.
        let chosen = self.numbers.next() as usize % *count;
        *count -= 1;
        self.buffer.swap(0, chosen);
        Ok(self.buffer.pop_front())
    }
}
