//! Windows: runs of consecutive elements, each a dataset or a batch.

use super::batch::{batched, stack_elements};
use super::source::Elements;
use super::state::{ExchangedState, StateExchange};
use super::transform::{dataset, from_state};
use super::{Cardinality, Dataset, DatasetIterator, DatasetVariant, Element, ElementSpec, INFINITE};
use super::{Pull, UNKNOWN};
use device::Result;
use graph::{DType, PartialShape, Tensor};
use std::collections::VecDeque;
use std::sync::Arc;

/// The geometry of windows: `size` elements that are `stride` apart; each window starts `shift` elements after the
/// previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windowing {
    pub(crate) size: i64,
    pub(crate) shift: i64,
    pub(crate) stride: i64,
    pub(crate) drop_remainder: bool,
}

impl Windowing {
    fn check(&self) -> Result<()> {
        if self.size <= 0 {
            device::invalid!("Window size must be greater than zero.");
        }
        if self.shift <= 0 {
            device::invalid!("Window shift must be greater than zero.");
        }
        if self.stride <= 0 {
            device::invalid!("Window stride must be greater than zero.");
        }
        if (self.size - 1).checked_mul(self.stride).is_none_or(|span| span == i64::MAX) {
            device::invalid!("a window of {} elements, each {} after the last", self.size, self.stride);
        }
        Ok(())
    }

    /// Returns the number of input elements from the first element of a window to its last.
    fn span(&self) -> i64 {
        (self.size - 1) * self.stride + 1
    }

    fn cardinality(&self, input: Cardinality) -> Cardinality {
        match input {
            n @ (INFINITE | UNKNOWN) => n,
            n if self.drop_remainder => {
                if n < self.span() {
                    0
                } else {
                    (n - self.span()) / self.shift + 1
                }
            }
            n => n / self.shift + i64::from(n % self.shift != 0),
        }
    }
}

/// The state of an iterator that moves a window over its input.
struct WindowState {
    windowing: Windowing,
    input: Option<Box<dyn DatasetIterator>>,
    /// Input elements, beginning with the first element of the current window.
    buffer: VecDeque<Element>,
    /// Number of input elements to skip before the next window; greater than 0 only if `shift` exceeds the length of a
    /// window.
    skip: i64,
}

impl ExchangedState for WindowState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.buffer)?;
        exchange.value(&mut self.skip)?;
        exchange.input(&mut self.input)
    }
}

impl WindowState {
    fn next(&mut self, pull: &Pull) -> Result<Option<Vec<Element>>> {
        let span = self.windowing.span() as usize;
        while let Some(input) = &mut self.input
            && (self.skip > 0 || self.buffer.len() < span)
        {
            pull.check()?;
            match input.next(pull)? {
                None => self.input = None,
                Some(_) if self.skip > 0 => self.skip -= 1,
                Some(element) => self.buffer.push_back(element),
            }
        }
        if self.buffer.is_empty() || self.windowing.drop_remainder && self.buffer.len() < span {
            self.buffer.clear();
            return Ok(None);
        }
        let window = self.buffer.iter().take(span).step_by(self.windowing.stride as usize).cloned().collect();
        let dropped = self.buffer.len().min(usize::try_from(self.windowing.shift).unwrap_or(usize::MAX));
        self.buffer.drain(..dropped);
        self.skip = self.windowing.shift - dropped as i64;
        Ok(Some(window))
    }
}

/// Returns the dataset of windows; a window is an element that has, per component, a dataset of the component's values.
pub(crate) fn window(input: Arc<Dataset>, windowing: Windowing) -> Result<Arc<Dataset>> {
    windowing.check()?;
    let count = input.spec.dtypes.len();
    let spec =
        ElementSpec { dtypes: vec![DType::Variant; count], shapes: vec![PartialShape::scalar(); count] };
    let inner = input.clone();
    dataset("Window", spec, windowing.cardinality(input.cardinality), &[&input], move |ctx| {
        let windows =
            WindowState { windowing, input: Some(inner.iterator(ctx)?), buffer: VecDeque::new(), skip: 0 };
        let spec = inner.spec.clone();
        from_state("Window", windows, move |windows, pull| {
            let Some(elements) = windows.next(pull)? else { return Ok(None) };
            let mut datasets = Element::new();
            for i in 0..count {
                let component: Vec<Element> =
                    elements.iter().filter_map(|e| e.get(i).map(|t| vec![t.clone()])).collect();
                datasets.push(elements_of(&spec, i, component)?);
            }
            Ok(Some(datasets))
        })
    })
}

/// Returns a variant that holds the dataset of `elements`; an element is component `i` of an element of a window.
fn elements_of(spec: &ElementSpec, i: usize, elements: Vec<Element>) -> Result<Tensor> {
    let of_component = ElementSpec { dtypes: vec![spec.dtypes[i]], shapes: vec![spec.shapes[i].clone()] };
    let held = elements.iter().flatten().cloned().collect::<Vec<_>>();
    DatasetVariant::tensor(Elements::dataset("Window", of_component, elements)?, &held)
}

/// Returns the dataset of windows; the elements of a window are stacked into one element, component by component.
pub(crate) fn sliding_window(input: Arc<Dataset>, windowing: Windowing) -> Result<Arc<Dataset>> {
    windowing.check()?;
    let spec = batched(&input.spec, windowing.size as usize, windowing.drop_remainder);
    let inner = input.clone();
    dataset("SlidingWindow", spec, windowing.cardinality(input.cardinality), &[&input], move |ctx| {
        let windows =
            WindowState { windowing, input: Some(inner.iterator(ctx)?), buffer: VecDeque::new(), skip: 0 };
        from_state("SlidingWindow", windows, |windows, pull| match windows.next(pull)? {
            Some(elements) => stack_elements(&elements).map(Some),
            None => Ok(None),
        })
    })
}
