//! Caching in memory: the elements of the first complete iteration are stored, and later iterations read them.

use super::context::SharedExchange;
use super::state::{ExchangedState, StateExchange};
use super::transform::{batch_preserving, from_state};
use super::{Dataset, DatasetIterator, Element, IteratorContext, PerPipeline, Pull};
use device::Result;
use device::resource::Resource;
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

/// The resource behind a handle to a memory cache.
#[derive(Debug, Default)]
pub(crate) struct SharedCache(pub(crate) Arc<MemoryCache>);

impl Resource for SharedCache {
    const KIND: &'static str = "MemoryCacheManager";
}

impl SharedExchange for MemoryCache {
    fn exchange_shared(&self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let full = self.0.lock().clone();
        let mut is_full = full.is_some();
        exchange.value(&mut is_full)?;
        if !is_full {
            *self.0.lock() = None;
            return Ok(());
        }
        let mut elements = full.map_or_else(Vec::new, |full| Vec::clone(&full));
        exchange.value(&mut elements)?;
        if exchange.is_restoring() {
            *self.0.lock() = Some(Arc::new(elements));
        }
        Ok(())
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
    fn of(&self, ctx: &IteratorContext) -> Result<Arc<MemoryCache>> {
        let cache = match self {
            CacheSource::Own(caches) => caches.get(ctx.pipeline(), MemoryCache::default),
            CacheSource::Shared(cache) => cache.clone(),
        };
        ctx.pipeline().share(ctx, cache.clone())?;
        Ok(cache)
    }
}

/// Returns the dataset of the input's elements, which are cached in memory after the first complete iteration.
pub(crate) fn cache(input: Arc<Dataset>, caches: CacheSource) -> Result<Arc<Dataset>> {
    let (inner, whole) = (input.clone(), input.clone());
    batch_preserving("MemoryCache", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let state = CacheState { cache: caches.of(ctx)?, input: inner.clone(), ctx: ctx.clone(), pass: None };
        from_state("MemoryCache", state, |state, pull| {
            // The iterator chooses between reading and filling the cache at its first pull, because another iterator
            // may have filled the cache after this iterator was made.
            let pass = match &mut state.pass {
                Some(pass) => pass,
                None => {
                    let full = state.cache.0.lock().clone();
                    state.pass.insert(match full {
                        Some(elements) => CachePass::Reads(elements, 0),
                        None => CachePass::Fills(state.input.iterator(&state.ctx)?, Vec::new()),
                    })
                }
            };
            pass.next(pull, &state.cache)
        })
    })
    .map(|cached| cached.with_random_access(move |i, access| whole.element_at(i as i64, access)))
}

/// The state of an iterator over a cached dataset.
struct CacheState {
    cache: Arc<MemoryCache>,
    input: Arc<Dataset>,
    ctx: IteratorContext,
    /// The iteration in progress; `None` before the first pull.
    pass: Option<CachePass>,
}

impl ExchangedState for CacheState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        // The elements of a full cache are saved once, with the cache.
        let mut read = match &self.pass {
            Some(CachePass::Reads(_, next)) => Some(*next),
            _ => None,
        };
        exchange.value(&mut read)?;
        let mut is_filling = matches!(self.pass, Some(CachePass::Fills(..)));
        exchange.value(&mut is_filling)?;
        if exchange.is_restoring() {
            self.pass = match (read, is_filling) {
                (Some(next), _) => {
                    let full = self.cache.0.lock().clone();
                    Some(CachePass::Reads(full.unwrap_or_default(), next))
                }
                (None, true) => Some(CachePass::Fills(self.input.iterator(&self.ctx)?, Vec::new())),
                (None, false) => None,
            };
        }
        match &mut self.pass {
            Some(CachePass::Fills(input, elements)) => {
                exchange.value(elements)?;
                input.exchange(exchange)
            }
            _ => Ok(()),
        }
    }
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
                *next = next.saturating_add(1);
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
