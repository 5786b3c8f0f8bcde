//! Datasets without inputs: tensors, slices of tensors, ranges, random numbers.

use super::element::{part, row};
use super::shuffle::{SeedSource, exchange_words};
use super::state::{ExchangedState, StateExchange};
use super::{Cardinality, Dataset, DatasetIterator, DatasetKind, Element, ElementSpec, INFINITE};
use super::{IteratorContext, Pull};
use crate::numeric::philox::PhiloxWords;
use device::{Error, Result};
use graph::{DType, PartialShape, Shape, Tensor};
use std::sync::Arc;

/// An iterator over `count` elements that computes each element from its index.
struct Indexed<F> {
    next: u64,
    count: u64,
    get: F,
}

impl<F: Fn(u64) -> Result<Element> + Send> DatasetIterator for Indexed<F> {
    fn next(&mut self, _: &Pull) -> Result<Option<Element>> {
        if self.next >= self.count {
            return Ok(None);
        }
        let i = self.next;
        self.next += 1;
        (self.get)(i).map(Some)
    }
}

impl<F> ExchangedState for Indexed<F> {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.kind("Indexed")?;
        exchange.value(&mut self.next)
    }
}

/// Returns an iterator over `count` elements; `get` computes an element from its index.
fn indexed(
    count: u64,
    get: impl Fn(u64) -> Result<Element> + Send + 'static,
) -> Result<Box<dyn DatasetIterator>> {
    Ok(Box::new(Indexed { next: 0, count, get }))
}

/// A dataset whose elements are stored in memory.
#[derive(Debug)]
pub(crate) struct Elements {
    name: &'static str,
    elements: Arc<Vec<Element>>,
}

impl Elements {
    /// Returns the dataset whose only element is `element`.
    pub(crate) fn tensors(element: Element) -> Result<Arc<Dataset>> {
        Elements::dataset("Tensor", ElementSpec::of(&element), vec![element])
    }

    /// Returns the dataset of `elements`; `name` is the name of the dataset's kind in messages.
    pub(crate) fn dataset(
        name: &'static str,
        spec: ElementSpec,
        elements: Vec<Element>,
    ) -> Result<Arc<Dataset>> {
        let cardinality = elements.len() as Cardinality;
        let elements = Arc::new(elements);
        let all = elements.clone();
        let made = Dataset::new(spec, cardinality, &[], Elements { name, elements })?;
        Ok(made.with_random_access(move |i, _| Ok(all[i as usize].clone())))
    }
}

impl DatasetKind for Elements {
    fn name(&self) -> &'static str {
        self.name
    }

    fn iterate(&self, _: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let elements = self.elements.clone();
        indexed(elements.len() as u64, move |i| Ok(elements[i as usize].clone()))
    }
}

/// A dataset of the rows of several tensors, which are the components of its elements.
#[derive(Debug)]
pub(crate) struct Slices {
    components: Arc<Element>,
    count: usize,
}

impl Slices {
    /// Returns the dataset of the rows of `components`, which must have the same number of rows.
    pub(crate) fn dataset(components: Element) -> Result<Arc<Dataset>> {
        let Some(count) = components.first().and_then(|t| t.shape().first().copied()) else {
            device::invalid!("All components must be at least 1-dimensional");
        };
        let mut spec = ElementSpec { dtypes: Vec::new(), shapes: Vec::new() };
        for component in &components {
            if component.shape().rank() == 0 {
                device::invalid!("All components must be at least 1-dimensional");
            }
            if component.shape()[0] != count {
                device::invalid!("All components must have the same size in the 0th dimension");
            }
            spec.dtypes.push(component.dtype());
            spec.shapes.push(PartialShape::of_dims(component.shape()[1..].iter().map(|&d| Some(d))));
        }
        let components = Arc::new(components);
        let all = components.clone();
        let made = Dataset::new(spec, count as Cardinality, &[], Slices { components, count })?;
        Ok(made.with_random_access(move |i, _| all.iter().map(|c| row(c, i as usize)).collect()))
    }
}

impl DatasetKind for Slices {
    fn name(&self) -> &'static str {
        "TensorSlice"
    }

    fn iterate(&self, _: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let components = self.components.clone();
        indexed(self.count as u64, move |i| components.iter().map(|c| row(c, i as usize)).collect())
    }
}

/// A dataset of the rows of a sparse tensor; each row is a sparse tensor of indices, values and shape.
#[derive(Debug)]
pub(crate) struct SparseSlices {
    indices: Tensor,
    values: Tensor,
    /// The shape of one row, as an `int64` vector.
    shape: Tensor,
    /// For each row, the index of its first entry; the last item is the total number of entries.
    starts: Arc<Vec<usize>>,
}

impl SparseSlices {
    /// Returns the dataset of the rows of a sparse tensor, whose entries must be in row order.
    pub(crate) fn dataset(indices: Tensor, values: Tensor, shape: &Tensor) -> Result<Arc<Dataset>> {
        if indices.shape().rank() != 2 {
            device::invalid!("Input indices must be a matrix. Got: {}", indices.shape());
        }
        if values.shape().rank() != 1 {
            device::invalid!("Input values must be a vector. Got: {}", values.shape());
        }
        if shape.shape().rank() != 1 || shape.num_elements() == 0 {
            device::invalid!("Input shape must be a vector. Got: {}", shape.shape());
        }
        let rank = shape.num_elements();
        if indices.shape().dims() != [values.num_elements(), rank] {
            device::invalid!(
                "Number of values must match first dimension of indices, and the rank its second. Got {} values, \
                 rank {rank}, indices shape: {}",
                values.num_elements(),
                indices.shape()
            );
        }
        let dims = shape.values::<i64>()?;
        let rows = Shape::from_i64(dims)?[0];
        // The number of rows comes from the client and may be huge even if there are few entries, so the allocation of
        // one item per row may fail.
        let mut starts = Vec::new();
        starts.try_reserve_exact(rows.saturating_add(1)).map_err(|_| {
            Error::new(graph::Code::ResourceExhausted, format!("a sparse tensor of {rows} rows to slice"))
        })?;
        starts.push(0);
        for (i, at) in indices.values::<i64>()?.chunks_exact(rank).enumerate() {
            let row = at[0];
            if row < 0 || row as usize >= rows {
                device::invalid!("Slice index {row} is out of range: there are {rows} slices");
            }
            if (row as usize) < starts.len() - 1 {
                device::invalid!(
                    "The SparseTensor must be ordered in the batch dimension; handling arbitrarily \
                                 ordered input is not currently supported."
                );
            }
            starts.resize(row as usize + 1, i);
        }
        starts.resize(rows + 1, values.num_elements());
        let spec = ElementSpec {
            dtypes: vec![DType::Int64, values.dtype(), DType::Int64],
            shapes: vec![
                PartialShape::of_dims([None, Some(rank - 1)]),
                PartialShape::vector(None),
                PartialShape::vector(Some(rank - 1)),
            ],
        };
        let shape = Tensor::vector(&dims[1..])?;
        let kind = SparseSlices { indices, values, shape, starts: Arc::new(starts) };
        Dataset::new(spec, rows as Cardinality, &[], kind)
    }
}

impl DatasetKind for SparseSlices {
    fn name(&self) -> &'static str {
        "SparseTensorSlice"
    }

    fn iterate(&self, _: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let (indices, values, shape) = (self.indices.clone(), self.values.clone(), self.shape.clone());
        let starts = self.starts.clone();
        indexed(self.starts.len() as u64 - 1, move |i| {
            let (start, end) = (starts[i as usize], starts[i as usize + 1]);
            let rank = shape.num_elements() + 1;
            let inner: Vec<i64> = indices.values::<i64>()?[start * rank..end * rank]
                .chunks_exact(rank)
                .flat_map(|at| &at[1..])
                .copied()
                .collect();
            let indices = Tensor::from_slice(&inner, Shape::new(&[end - start, rank - 1])?)?;
            Ok(vec![indices, part(&values, start, Shape::new(&[end - start])?)?, shape.clone()])
        })
    }
}

/// The dataset of the numbers `start`, `start + step`, … before `stop`.
#[derive(Debug)]
pub(crate) struct Range {
    start: i64,
    step: i64,
    count: u64,
    dtype: DType,
}

impl Range {
    /// Returns the dataset of a range.
    ///
    /// # Errors
    /// `InvalidArgument` if the step is 0 or the dtype is not numeric.
    pub(crate) fn dataset(start: i64, stop: i64, step: i64, dtype: DType) -> Result<Arc<Dataset>> {
        if step == 0 {
            device::invalid!("step must be a non-zero integer.");
        }
        number(0, dtype)?;
        let (distance, pace) = (i128::from(stop) - i128::from(start), i128::from(step));
        let count =
            if (distance > 0) == (pace > 0) { (distance.abs() + pace.abs() - 1) / pace.abs() } else { 0 };
        let cardinality = Cardinality::try_from(count).unwrap_or(INFINITE);
        let kind = Range { start, step, count: count as u64, dtype };
        let made = Dataset::new(ElementSpec::scalars(&[dtype]), cardinality, &[], kind)?;
        Ok(made.with_random_access(move |i, _| {
            Ok(vec![number(start.wrapping_add((i as i64).wrapping_mul(step)), dtype)?])
        }))
    }
}

impl DatasetKind for Range {
    fn name(&self) -> &'static str {
        "Range"
    }

    fn iterate(&self, _: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let (start, step, dtype) = (self.start, self.step, self.dtype);
        // Wrapping arithmetic gives the right values even if the product overflows, because each value of the range
        // is an `i64`.
        let at = move |i: u64| start.wrapping_add((i as i64).wrapping_mul(step));
        indexed(self.count, move |i| Ok(vec![number(at(i), dtype)?]))
    }
}

/// Returns an integer as a scalar tensor of `dtype`.
fn number(value: i64, dtype: DType) -> Result<Tensor> {
    Ok(match dtype {
        DType::Int8 => Tensor::scalar(value as i8),
        DType::Int16 => Tensor::scalar(value as i16),
        DType::Int32 => Tensor::scalar(value as i32),
        DType::Int64 => Tensor::scalar(value),
        DType::UInt8 => Tensor::scalar(value as u8),
        DType::UInt16 => Tensor::scalar(value as u16),
        DType::UInt32 => Tensor::scalar(value as u32),
        DType::UInt64 => Tensor::scalar(value as u64),
        DType::Float => Tensor::scalar(value as f32),
        DType::Double => Tensor::scalar(value as f64),
        DType::Half => Tensor::scalar(half::f16::from_f64(value as f64)),
        DType::BFloat16 => Tensor::scalar(half::bf16::from_f64(value as f64)),
        other => device::invalid!("Unsupported data type: {other}"),
    })
}

/// An infinite dataset of random 32-bit numbers.
#[derive(Debug)]
pub(crate) struct Random {
    seeds: SeedSource,
}

impl Random {
    /// Returns the infinite dataset of random numbers; each iterator takes the next seeds of `seeds`.
    pub(crate) fn dataset(seeds: SeedSource, spec: ElementSpec) -> Result<Arc<Dataset>> {
        spec.check(&ElementSpec::scalars(&[DType::Int64]))?;
        Dataset::new(spec, INFINITE, &[], Random { seeds })
    }
}

impl DatasetKind for Random {
    fn name(&self) -> &'static str {
        "Random"
    }

    fn iterate(&self, ctx: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
        let numbers = PhiloxWords::new(self.seeds.of(ctx)?.next().stream());
        Ok(Box::new(RandomNumbers(numbers)))
    }
}

struct RandomNumbers(PhiloxWords);

impl ExchangedState for RandomNumbers {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.kind("Random")?;
        exchange_words(exchange, &mut self.0)
    }
}

impl DatasetIterator for RandomNumbers {
    fn next(&mut self, _: &Pull) -> Result<Option<Element>> {
        Ok(Some(vec![Tensor::scalar(i64::from(self.0.next()))]))
    }
}
