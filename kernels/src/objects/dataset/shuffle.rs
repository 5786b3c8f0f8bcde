//! Shuffling: each element is drawn from a buffer of those that come next, in the order in which TensorFlow draws
//! for the same seeds. With it, repetition whose epochs share the buffer.

use super::{Dataset, DatasetIterator, DatasetKind, Element, UNKNOWN};
use super::{MakeContext, Place, Pull};
use crate::numeric::philox::{Philox, PhiloxWords};
use device::Result;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The two seeds of a stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(pub i64, pub i64);

impl Seeds {
    /// These, or of two zeros others that nobody can foresee.
    pub(crate) fn or_random(self) -> Seeds {
        if self != Seeds(0, 0) {
            return self;
        }
        let mut stream = Philox::seeded(0, 0);
        let [a, b, c, d] = stream.next().map(i64::from);
        // Never two zeros again: these would be replaced once more.
        Seeds(a << 32 | b | 1, c << 32 | d)
    }

    pub(crate) fn stream(self) -> Philox {
        Philox::new(self.0 as u64, self.1 as u64)
    }
}

/// Gives the seeds of one epoch after the other: new ones each time, or always the same.
#[derive(Debug)]
pub(crate) struct SeedGenerator {
    seeds: Seeds,
    /// `None` if they stay.
    stream: Option<Mutex<PhiloxWords>>,
}

impl SeedGenerator {
    pub(crate) fn new(seeds: Seeds, is_new_each_time: bool) -> SeedGenerator {
        SeedGenerator {
            seeds,
            stream: is_new_each_time.then(|| Mutex::new(PhiloxWords::new(seeds.stream()))),
        }
    }

    pub(crate) fn next(&self) -> Seeds {
        match &self.stream {
            None => self.seeds,
            Some(stream) => {
                let mut stream = stream.lock();
                let first = stream.next();
                Seeds(first.into(), stream.next().into())
            }
        }
    }
}

/// Where a dataset has its generator from: each place starts from the seeds, for all iterators over the dataset
/// together, unless the generator is a resource, which all places share.
pub(crate) enum SeedSource {
    Own { seeds: Seeds, is_new_each_time: bool, generators: Mutex<FxHashMap<Place, Arc<SeedGenerator>>> },
    Shared(Arc<SeedGenerator>),
}

impl SeedSource {
    pub(crate) fn new(seeds: Seeds, is_new_each_time: bool) -> SeedSource {
        SeedSource::Own { seeds: seeds.or_random(), is_new_each_time, generators: Mutex::default() }
    }

    pub(crate) fn of(&self, ctx: &MakeContext) -> Arc<SeedGenerator> {
        match self {
            SeedSource::Own { seeds, is_new_each_time, generators } => {
                let make = || Arc::new(SeedGenerator::new(*seeds, *is_new_each_time));
                generators.lock().entry(ctx.place().clone()).or_insert_with(make).clone()
            }
            SeedSource::Shared(generator) => generator.clone(),
        }
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

/// So many epochs may have elements in the buffer besides the one that fills it.
const MOST_EPOCHS: usize = 3;

#[derive(Debug)]
pub(crate) struct Shuffle {
    input: Arc<Dataset>,
    /// `None`: everything.
    size: Option<usize>,
    seeds: Arc<SeedSource>,
    /// Epochs; `None` without end.
    count: Option<u64>,
}

impl Shuffle {
    /// `count` epochs, -1 without end, of `input` through a buffer of `size` elements.
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
        Dataset::new(input.spec.clone(), cardinality, &[&input], kind)
    }
}

impl DatasetKind for Shuffle {
    fn name(&self) -> &'static str {
        if self.count == Some(1) { "Shuffle" } else { "ShuffleAndRepeat" }
    }

    fn iterate(&self, ctx: &MakeContext) -> Result<Box<dyn DatasetIterator>> {
        let generator = self.seeds.of(ctx);
        let numbers = PhiloxWords::new(generator.next().stream());
        Ok(Box::new(Shuffled {
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

struct Shuffled {
    dataset: Arc<Dataset>,
    size: Option<usize>,
    epochs_left: Option<u64>,
    ctx: MakeContext,
    generator: Arc<SeedGenerator>,
    numbers: PhiloxWords,
    input: Option<Box<dyn DatasetIterator>>,
    /// How many elements in the buffer are of each epoch, and whether that is all of it: the oldest first.
    epochs: VecDeque<(usize, bool)>,
    /// What may be drawn: the oldest epoch's elements first.
    buffer: VecDeque<Element>,
    has_produced: bool,
}

impl Shuffled {
    fn wants_more(&self) -> bool {
        if self.input.is_none() && self.epochs_left == Some(0) {
            return false;
        }
        if self.epochs.len() > MOST_EPOCHS && !self.buffer.is_empty() {
            return false;
        }
        self.size.is_none_or(|size| self.buffer.len() < size)
    }

    fn fill(&mut self, pull: &Pull) -> Result<()> {
        while self.wants_more() {
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
                        // An empty input stays so, however often it is repeated.
                        self.epochs_left = Some(0);
                    }
                }
            }
        }
        Ok(())
    }
}

impl DatasetIterator for Shuffled {
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
        // The number is one of 32 bits however long the buffer is.
        let chosen = self.numbers.next() as usize % *count;
        *count -= 1;
        self.buffer.swap(0, chosen);
        Ok(self.buffer.pop_front())
    }
}
