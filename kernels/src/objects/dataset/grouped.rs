//! Grouping of elements by a key function: a dataset of each window of a group, or of one reduced element per group.

use super::function::CapturedFunction;
use super::map::{checked_element, iterate_result};
use super::source::Elements;
use super::transform::{dataset, from_fn};
use super::{Dataset, DatasetIterator, DatasetVariant, Element, ElementSpec, UNKNOWN};
use device::Result;
use graph::{DType, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the integer in the results of a function, which must be one `int64` scalar.
fn integer(results: &[Tensor], what: &str) -> Result<i64> {
    match results {
        [value] if value.dtype() == DType::Int64 && value.shape().rank() == 0 => Ok(value.item::<i64>()?),
        _ => device::invalid!("`{what}` must return a scalar int64."),
    }
}

/// Groups the elements by key, and returns the dataset of the elements of the datasets that `reduce` returns. `reduce`
/// is called with a key and a window: a dataset of up to `window_size` elements with that key.
pub(crate) fn group_by_window(
    input: Arc<Dataset>,
    key: CapturedFunction,
    reduce: CapturedFunction,
    window_size: CapturedFunction,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("GroupByWindow", spec, UNKNOWN, &[&input], move |ctx| {
        let mut input = Some(inner.iterator(ctx)?);
        let (key, reduce) = (key.instance(ctx)?, reduce.instance(ctx)?);
        let (window_size, ctx) = (window_size.instance(ctx)?, ctx.clone());
        let spec = inner.spec.clone();
        let mut groups: BTreeMap<i64, Vec<Element>> = BTreeMap::new();
        let mut sizes: BTreeMap<i64, usize> = BTreeMap::new();
        let mut current: Option<Box<dyn DatasetIterator>> = None;
        let mut reduced_count = 0;
        from_fn("GroupByWindow", move |pull| {
            loop {
                pull.check()?;
                if let Some(iterator) = &mut current {
                    if let Some(element) = iterator.next(pull)? {
                        return Ok(Some(element));
                    }
                    current = None;
                }
                let mut full = None;
                while let Some(iterator) = &mut input {
                    pull.check()?;
                    let Some(element) = iterator.next(pull)? else {
                        input = None;
                        break;
                    };
                    let group_key = integer(&key.call(pull, element.clone())?, "key_func")?;
                    let size = match sizes.get(&group_key) {
                        Some(size) => *size,
                        None => {
                            let results = window_size.call(pull, vec![Tensor::scalar(group_key)])?;
                            let size = integer(&results, "window_size_func")?;
                            let Ok(size @ 1..) = usize::try_from(size) else {
                                device::invalid!("Window size must be greater than zero, but got {size}.");
                            };
                            sizes.insert(group_key, size);
                            size
                        }
                    };
                    let group = groups.entry(group_key).or_default();
                    group.push(element);
                    if group.len() == size {
                        full = Some(group_key);
                        break;
                    }
                }
                // At the end of the input, the remaining elements of each group form a window, although it is not full.
                let Some(group_key) = full.or_else(|| groups.keys().next().copied()) else { return Ok(None) };
                let elements = groups.remove(&group_key).unwrap_or_default();
                let held = elements.iter().flatten().cloned().collect::<Vec<_>>();
                let window = Elements::dataset("Window", spec.clone(), elements)?;
                let window = DatasetVariant::tensor(window, &held)?;
                let results = reduce.call(pull, vec![Tensor::scalar(group_key), window])?;
                current = Some(iterate_result(&results, &ctx, reduced_count)?);
                reduced_count += 1;
            }
        })
    })
}

/// The four functions of a reduction by key, which map an element to its key, create the state of a group, update it,
/// and convert it to a result.
#[derive(Clone, Debug)]
pub(crate) struct Reducer {
    pub(crate) key: CapturedFunction,
    pub(crate) init: CapturedFunction,
    pub(crate) reduce: CapturedFunction,
    pub(crate) finalize: CapturedFunction,
}

/// Returns the dataset of one reduced element per key, in ascending order of the keys.
pub(crate) fn group_by_reducer(
    input: Arc<Dataset>,
    reducer: Reducer,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    let out = spec.clone();
    dataset("GroupByReducer", spec, UNKNOWN, &[&input], move |ctx| {
        let mut input = Some(inner.iterator(ctx)?);
        let (key, init) = (reducer.key.instance(ctx)?, reducer.init.instance(ctx)?);
        let (reduce, finalize) = (reducer.reduce.instance(ctx)?, reducer.finalize.instance(ctx)?);
        let spec = out.clone();
        let mut states: BTreeMap<i64, Element> = BTreeMap::new();
        from_fn("GroupByReducer", move |pull| {
            while let Some(iterator) = &mut input {
                pull.check()?;
                let Some(element) = iterator.next(pull)? else {
                    input = None;
                    break;
                };
                let group_key = integer(&key.call(pull, element.clone())?, "key_func")?;
                let state = match states.remove(&group_key) {
                    Some(state) => state,
                    None => init.call(pull, vec![Tensor::scalar(group_key)])?,
                };
                let arguments = state.into_iter().chain(element).collect();
                states.insert(group_key, reduce.call(pull, arguments)?);
            }
            let Some((_, state)) = states.pop_first() else { return Ok(None) };
            checked_element(finalize.call(pull, state)?, &spec).map(Some)
        })
    })
}
