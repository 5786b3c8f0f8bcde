//! Prefetching: elements are made while the consumer works.

use super::ahead::{Ahead, Limit};
use super::{Dataset, DatasetIterator, DatasetKind, MakeContext};
use device::Result;
use std::sync::Arc;

/// The longest buffer where its length is ours to choose.
const MOST: usize = 512;

#[derive(Debug)]
pub(crate) struct Prefetch {
    input: Arc<Dataset>,
    /// `None`: as many as turn out to be needed.
    size: Option<usize>,
}

impl Prefetch {
    pub(crate) fn dataset(input: Arc<Dataset>, size: i64) -> Result<Arc<Dataset>> {
        if size < -1 {
            device::invalid!("buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning");
        }
        let kind = Prefetch { input: input.clone(), size: usize::try_from(size).ok() };
        Dataset::new(input.spec.clone(), input.cardinality, &[&input], kind)
    }
}

impl DatasetKind for Prefetch {
    fn name(&self) -> &'static str {
        "Prefetch"
    }

    fn iterate(&self, ctx: &MakeContext) -> Result<Box<dyn DatasetIterator>> {
        let input = self.input.iterator(ctx)?;
        Ok(match self.size {
            Some(0) => input,
            Some(size) => Box::new(Ahead::lazily(input, Limit::Fixed(size))),
            None => Box::new(Ahead::lazily(input, Limit::Growing(MOST))),
        })
    }
}
