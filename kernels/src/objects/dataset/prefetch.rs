//! Prefetching: a thread produces elements while the consumer works.

use super::prefetch_iterator::{BufferLimit, PrefetchIterator};
use super::{Dataset, DatasetIterator, DatasetKind, IteratorContext};
use device::Result;
use std::sync::Arc;

/// Maximum length of a buffer whose length is tuned automatically.
const MAX_BUFFER: usize = 512;

/// A dataset that prefetches its input.
#[derive(Debug)]
pub(crate) struct Prefetch {
    input: Arc<Dataset>,
    /// Buffer length in elements; `None` tunes the length automatically.
    size: Option<usize>,
}

impl Prefetch {
    /// Returns the dataset that prefetches `size` elements of `input`; -1 tunes the size automatically.
    pub(crate) fn dataset(input: Arc<Dataset>, size: i64) -> Result<Arc<Dataset>> {
        if size < -1 {
            device::invalid!("buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning");
        }
        let kind = Prefetch { input: input.clone(), size: usize::try_from(size).ok() };
        let made = Dataset::new(input.spec.clone(), input.cardinality, &[&input], kind)?;
        let made = made.with_batch_size(input.batch_size);
        Ok(made.with_random_access(move |i, access| input.element_at(i as i64, access)))
    }
}

impl DatasetKind for Prefetch {
    fn name(&self) -> &'static str {
        "Prefetch"
    }

    fn iterate(&self, ctx: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let input = self.input.iterator(ctx)?;
        Ok(match self.size {
            Some(0) => input,
            Some(size) => Box::new(PrefetchIterator::new(input, BufferLimit::Fixed(size))),
            None => Box::new(PrefetchIterator::new(input, BufferLimit::Growing(MAX_BUFFER))),
        })
    }
}
