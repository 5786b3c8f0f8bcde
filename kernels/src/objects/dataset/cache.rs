//! Caching in memory: the elements of the first complete iteration are stored, and later iterations read them.

use super::transform::{dataset, from_fn};
use super::{Dataset, DatasetIterator, Element, PerPipeline, Pipeline, Pull};
use device::Result;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// The cached elements of a dataset; `None` until an iterator has read the input to its end.
#[derive(Default)]
pub(crate) struct MemoryCache(Mutex<Option<Arc<Vec<Element>>>>);

impl fmt::Debug for MemoryCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryCache({:?} elements)", self.0.lock().as_ref().map(|all| all.len()))
    }
}

/// The owner of the cache of a cached dataset: the dataset itself or a cache resource.
#[derive(Debug)]
pub(crate) enum CacheSource {
    /// A cache for each pipeline in which the dataset is iterated.
    Own(PerPipeline<MemoryCache>),
    /// The cache of a cache resource; all iterators of the dataset share it.
    Shared(Arc<MemoryCache>),
}

impl CacheSource {
    fn of(&self, pipeline: &Arc<Pipeline>) -> Arc<MemoryCache> {
        match self {
            CacheSource::Own(caches) => caches.get(pipeline, MemoryCache::default),
            CacheSource::Shared(cache) => cache.clone(),
        }
    }
}

/// Returns the dataset of the input's elements, which are cached in memory after the first complete iteration.
pub(crate) fn cache(input: Arc<Dataset>, caches: CacheSource) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("MemoryCache", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let cache = caches.of(ctx.pipeline());
        let (inner, ctx) = (inner.clone(), ctx.clone());
        let mut pass: Option<CachePass> = None;
        from_fn(move |pull| {
            // The iterator chooses between reading and filling the cache at its first pull, because another iterator
            // may have filled the cache after this iterator was made.
            let pass = match &mut pass {
                Some(pass) => pass,
                None => {
                    let full = cache.0.lock().clone();
                    pass.insert(match full {
                        Some(elements) => CachePass::Reads(elements, 0),
                        None => CachePass::Fills(inner.iterator(&ctx)?, Vec::new()),
                    })
                }
            };
            pass.next(pull, &cache)
        })
    })
}

/// An iteration over a cached dataset, which reads the cache or fills it.
enum CachePass {
    /// Reads the cached elements; the number is the index of the next element.
    Reads(Arc<Vec<Element>>, usize),
    /// Reads the input and collects its elements for the cache.
    Fills(Box<dyn DatasetIterator>, Vec<Element>),
}

impl CachePass {
    fn next(&mut self, pull: &Pull, cache: &MemoryCache) -> Result<Option<Element>> {
        match self {
            CachePass::Reads(elements, next) => {
                let element = elements.get(*next).cloned();
                *next += 1;
                Ok(element)
            }
            CachePass::Fills(input, elements) => match input.next(pull)? {
                Some(element) => {
                    elements.push(element.clone());
                    Ok(Some(element))
                }
                None => {
                    let all = Arc::new(std::mem::take(elements));
                    let end = all.len();
                    cache.0.lock().get_or_insert_with(|| all.clone());
                    *self = CachePass::Reads(all, end);
                    Ok(None)
                }
            },
        }
    }
}
