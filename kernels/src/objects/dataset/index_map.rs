//! Flattening by index: a function maps the index of an output to the index of an input element and an offset in its
//! mapped form.

use super::function::{CapturedFunction, FunctionInstance};
use super::map::checked_element;
use super::state::{ExchangedState, StateExchange};
use super::transform::{dataset, from_state};
use super::{Cardinality, Dataset, DatasetIterator, Element, ElementSpec, Pull};
use device::Result;
use std::sync::Arc;

/// The state of an iterator over the rows of the mapped elements.
struct IndexMapState {
    input: Option<Box<dyn DatasetIterator>>,
    map: FunctionInstance,
    index_map: FunctionInstance,
    /// Number of elements returned so far.
    count: i64,
    /// Number of input elements pulled so far; the mapped form of the last is `current`.
    pulled: i64,
    current: Element,
}

impl ExchangedState for IndexMapState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.function(&self.map)?;
        exchange.function(&self.index_map)?;
        exchange.value(&mut self.count)?;
        exchange.value(&mut self.pulled)?;
        exchange.value(&mut self.current)?;
        exchange.input(&mut self.input)
    }
}

impl IndexMapState {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let (index, offset) = self.place_of(pull)?;
        if index < self.pulled - 1 {
            device::invalid!(
                "index_map_func returned input element {index} for output {}, after element {}: without random \
                 access, the inputs are read in order",
                self.count,
                self.pulled - 1
            );
        }
        while self.pulled <= index {
            pull.check()?;
            let Some(input) = &mut self.input else { return Ok(None) };
            let Some(element) = input.next(pull)? else {
                self.input = None;
                return Ok(None);
            };
            self.pulled += 1;
            if self.pulled > index {
                match self.map.call(pull, element) {
                    Ok(current) => self.current = current,
                    // No later output may have the rows of the element before.
                    Err(error) => {
                        (self.input, self.current) = (None, Element::new());
                        return Err(error);
                    }
                }
            }
        }
        if self.current.is_empty() {
            return Ok(None);
        }
        self.count += 1;
        let row = |tensor: &graph::Tensor| {
            let rows = tensor.shape().first().copied();
            match usize::try_from(offset).ok().filter(|at| rows.is_some_and(|rows| *at < rows)) {
                Some(at) => super::element::row(tensor, at),
                None => device::invalid!(
                    "index_map_func returned offset {offset} in a component of shape {} that map_func returned",
                    tensor.shape()
                ),
            }
        };
        self.current.iter().map(row).collect::<Result<Element>>().map(Some)
    }

    /// Returns the index of the input element and the offset of the next output.
    fn place_of(&self, pull: &Pull) -> Result<(i64, i64)> {
        let place = self.index_map.call(pull, vec![graph::Tensor::scalar(self.count)])?;
        match &place[..] {
            [index, offset] if [index, offset].iter().all(|t| t.num_elements() == 1) => {
                let [index, offset] = [index.to_i64s()?[0], offset.to_i64s()?[0]];
                if index < 0 {
                    device::invalid!("index_map_func returned the negative index {index}");
                }
                Ok((index, offset))
            }
            _ => device::invalid!("index_map_func must return two integers: an index and an offset"),
        }
    }
}

/// Returns the dataset of rows of the elements that `map` returns. For each output, `index_map` returns the index of
/// the input element and the row.
pub(crate) fn index_flat_map(
    input: Arc<Dataset>,
    map: CapturedFunction,
    index_map: CapturedFunction,
    cardinality: Cardinality,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let (inner, out) = (input.clone(), spec.clone());
    dataset("IndexFlatMap", spec, cardinality, &[&input], move |ctx| {
        let state = IndexMapState {
            input: Some(inner.iterator(ctx)?),
            map: map.instance(ctx)?,
            index_map: index_map.instance(ctx)?,
            count: 0,
            pulled: 0,
            current: Element::new(),
        };
        let spec = out.clone();
        from_state("IndexFlatMap", state, move |state, pull| {
            state.next(pull)?.map(|element| checked_element(element, &spec)).transpose()
        })
    })
}
