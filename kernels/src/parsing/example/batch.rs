//! Assembly of the features of one example, or of a batch, into tensors.

use super::message::{Example, Values};
use super::{DenseFeature, RequestedFeatures, VaryingFeature};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor, tensor::memory_limit};

/// The label of an example in error messages.
pub(super) enum ExampleLabel<'a> {
    /// The only example, labelled by its name.
    Single(Option<&'a Bytes>),
    /// An example of a batch, labelled by its index and by its name if it has one.
    Row(usize, Option<&'a Bytes>),
}

impl ExampleLabel<'_> {
    pub(super) fn wrong(&self, key: &Bytes, reason: &str) -> Error {
        let key = String::from_utf8_lossy(key);
        Error::invalid(match self {
            ExampleLabel::Single(None) => format!("Key: {key}.  {reason}"),
            ExampleLabel::Single(name) => format!("Name: {}, Key: {key}.  {reason}", shown(*name)),
            ExampleLabel::Row(i, name) => {
                format!("Name: {}, Key: {key}, Index: {i}.  {reason}", shown(*name))
            }
        })
    }

    fn missing(&self, dense: &DenseFeature) -> Error {
        let key = String::from_utf8_lossy(&dense.key);
        let reason =
            format!("Feature: {key} (data type: {}) is required but could not be found.", dense.dtype);
        Error::invalid(match self {
            ExampleLabel::Single(None) => reason,
            ExampleLabel::Single(name) | ExampleLabel::Row(_, name) => {
                format!("Name: {}, {reason}", shown(*name))
            }
        })
    }

    fn example<'m>(&self, message: &'m [u8]) -> Result<Example<'m>> {
        Example::of(message).map_err(|_| {
            let cut = &message[..message.len().min(64)];
            Error::invalid(format!("Could not parse example input, value: '{}'", cut.escape_ascii()))
        })
    }

    /// Appends a feature's values to `into` and returns their number; `None` if the example lacks the feature.
    fn read(
        &self,
        example: &Example<'_>,
        key: &Bytes,
        dtype: DType,
        into: &mut Values,
    ) -> Result<Option<usize>> {
        let Some((actual, list)) = example.get(key) else { return Ok(None) };
        if actual != dtype {
            return Err(self.wrong(
                key,
                &format!("Data types don't match. Data type: {actual} but expected type: {dtype}"),
            ));
        }
        let before = into.len();
        into.read(list).map_err(|_| self.wrong(key, "Can't parse serialized Example."))?;
        Ok(Some(into.len() - before))
    }
}

pub(super) fn shown(name: Option<&Bytes>) -> String {
    name.map_or_else(|| "<unknown>".to_owned(), |name| String::from_utf8_lossy(name).into_owned())
}

/// Returns the outputs of an op that parses a single example.
pub(super) fn parse_one(
    message: &[u8],
    requested: &RequestedFeatures,
    name: Option<&Bytes>,
) -> Result<Vec<Tensor>> {
    let label = ExampleLabel::Single(name);
    let example = label.example(message)?;
    let varying = |feature: &VaryingFeature| -> Result<(Tensor, i64)> {
        let mut values = Values::new(feature.dtype);
        label.read(&example, &feature.key, feature.dtype, &mut values)?;
        let count = values.len();
        Ok((values.into_tensor(Shape::new(&[count])?)?, count as i64))
    };
    let mut outputs = Outputs::default();
    for feature in &requested.sparse {
        let (values, count) = varying(feature)?;
        let indices: Vec<i64> = (0..count).collect();
        outputs.sparse(Tensor::from_slice(&indices, Shape::new(&[indices.len(), 1])?)?, values, &[count])?;
    }
    for dense in &requested.dense {
        let mut values = Values::new(dense.dtype);
        let given = fill(&label, &example, dense, &mut values)?;
        let dims = dims(dense, given.unwrap_or(0));
        outputs.dense.push(values.into_tensor(Shape::new(&dims)?)?);
    }
    for (feature, split_type) in requested.ragged.iter().zip(&requested.split_types) {
        outputs.ragged(varying(feature)?.0, &[], *split_type)?;
    }
    Ok(outputs.in_order())
}

/// Appends a dense feature's values, or its default if the example lacks it. Returns the number of values if the
/// feature's first dimension is unknown.
fn fill(
    label: &ExampleLabel<'_>,
    example: &Example<'_>,
    dense: &DenseFeature,
    into: &mut Values,
) -> Result<Option<usize>> {
    let count = label.read(example, &dense.key, dense.dtype, into)?;
    if let Some(stride) = dense.stride() {
        let count = count.unwrap_or(0);
        if stride == 0 || count % stride != 0 {
            let reason = format!(
                "Number of {} values is not a multiple of stride length. Saw {count} values but output shape is: {}",
                dense.dtype, dense.shape
            );
            return Err(label.wrong(&dense.key, &reason));
        }
        return Ok(Some(count));
    }
    let requested = dense.shape.num_elements().unwrap_or(0);
    match count {
        Some(count) if count == requested => {}
        Some(count) => {
            let reason = format!(
                "Number of {} values != expected.  Values size: {count} but output shape: {}",
                dense.dtype, dense.shape
            );
            return Err(label.wrong(&dense.key, &reason));
        }
        None if dense.default.num_elements() == requested => into.append(&dense.default)?,
        None => return Err(label.missing(dense)),
    }
    Ok(None)
}

/// Returns the shape of a dense feature that has `values` values.
fn dims(dense: &DenseFeature, values: usize) -> Vec<usize> {
    let stride = dense.stride().unwrap_or(1).max(1);
    dense.shape.dims().unwrap_or_default().iter().map(|d| d.unwrap_or(values / stride)).collect()
}

/// Returns the outputs of an op that parses a batch of examples.
pub(super) fn parse(
    messages: &[Bytes],
    names: &[Bytes],
    requested: &RequestedFeatures,
) -> Result<Vec<Tensor>> {
    let label = |i: usize| ExampleLabel::Row(i, names.get(i));
    let examples =
        messages.iter().enumerate().map(|(i, m)| label(i).example(m)).collect::<Result<Vec<_>>>()?;
    // Returns the values of a sparse or ragged feature in all examples, and the number of values of each example.
    let varying = |feature: &VaryingFeature| -> Result<(Tensor, Vec<usize>)> {
        let mut values = Values::new(feature.dtype);
        let mut counts = Vec::with_capacity(examples.len());
        for (i, example) in examples.iter().enumerate() {
            let count = label(i).read(example, &feature.key, feature.dtype, &mut values)?;
            counts.push(count.unwrap_or(0));
        }
        let count = values.len();
        Ok((values.into_tensor(Shape::new(&[count])?)?, counts))
    };
    let mut outputs = Outputs::default();
    for feature in &requested.sparse {
        let (values, counts) = varying(feature)?;
        let rows = counts.iter().enumerate();
        let indices: Vec<i64> =
            rows.flat_map(|(i, &n)| (0..n).flat_map(move |j| [i as i64, j as i64])).collect();
        let widest = counts.iter().copied().max().unwrap_or(0);
        let indices = Tensor::from_slice(&indices, Shape::new(&[values.num_elements(), 2])?)?;
        outputs.sparse(indices, values, &[examples.len() as i64, widest as i64])?;
    }
    for dense in &requested.dense {
        outputs.dense.push(dense_batch(&examples, label, dense)?);
    }
    for (feature, split_type) in requested.ragged.iter().zip(&requested.split_types) {
        let (values, counts) = varying(feature)?;
        let mut splits = vec![0];
        splits.extend(counts.iter().scan(0, |end, &n| {
            *end += n as i64;
            Some(*end)
        }));
        outputs.ragged(values, &splits, *split_type)?;
    }
    Ok(outputs.in_order())
}

fn dense_batch<'a>(
    examples: &[Example<'_>],
    label: impl Fn(usize) -> ExampleLabel<'a>,
    dense: &DenseFeature,
) -> Result<Tensor> {
    let mut values = Values::new(dense.dtype);
    let Some(stride) = dense.stride() else {
        for (i, example) in examples.iter().enumerate() {
            fill(&label(i), example, dense, &mut values)?;
        }
        let shape = [&[examples.len()], &dims(dense, 0)[..]].concat();
        return Ok(values.into_tensor(Shape::new(&shape)?)?);
    };
    // The first dimension is unknown: each example is padded to the length of the longest example.
    let mut lengths = Vec::with_capacity(examples.len());
    for (i, example) in examples.iter().enumerate() {
        lengths.push(fill(&label(i), example, dense, &mut Values::new(dense.dtype))?.unwrap_or(0));
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let total = longest.checked_mul(examples.len()).filter(|&n| (n as u64) <= memory_limit() / 4);
    if total.is_none() {
        let message = format!("{} examples of {longest} values of a feature", examples.len());
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    for (i, (example, length)) in examples.iter().zip(lengths).enumerate() {
        fill(&label(i), example, dense, &mut values)?;
        if length < longest && dense.default.num_elements() != 1 {
            return Err(label(i).missing(dense));
        }
        for _ in length..longest {
            values.append(&dense.default)?;
        }
    }
    let mut shape = vec![examples.len()];
    shape.extend(dims(dense, longest.div_ceil(stride.max(1)) * stride));
    Ok(values.into_tensor(Shape::new(&shape)?)?)
}

/// Returns row splits as a vector of `dtype`, int32 or int64.
pub(super) fn row_splits(splits: &[i64], dtype: DType) -> Result<Tensor> {
    if dtype != DType::Int32 {
        return Ok(Tensor::vector(splits)?);
    }
    let narrow = splits.iter().map(|&s| i32::try_from(s)).collect::<Result<Vec<_>, _>>();
    let narrow = narrow.map_err(|_| Error::invalid("too many values for row splits of int32"))?;
    Ok(Tensor::vector(&narrow)?)
}

/// The outputs by kind of feature, each list in the order of the features.
#[derive(Default)]
struct Outputs {
    sparse_indices: Vec<Tensor>,
    sparse_values: Vec<Tensor>,
    sparse_shapes: Vec<Tensor>,
    dense: Vec<Tensor>,
    ragged_values: Vec<Tensor>,
    ragged_splits: Vec<Tensor>,
}

impl Outputs {
    fn sparse(&mut self, indices: Tensor, values: Tensor, shape: &[i64]) -> Result<()> {
        self.sparse_indices.push(indices);
        self.sparse_values.push(values);
        self.sparse_shapes.push(Tensor::vector(shape)?);
        Ok(())
    }

    fn ragged(&mut self, values: Tensor, splits: &[i64], split_type: DType) -> Result<()> {
        self.ragged_values.push(values);
        self.ragged_splits.push(row_splits(splits, split_type)?);
        Ok(())
    }

    fn in_order(self) -> Vec<Tensor> {
        let groups = [
            self.sparse_indices,
            self.sparse_values,
            self.sparse_shapes,
            self.dense,
            self.ragged_values,
            self.ragged_splits,
        ];
        groups.into_iter().flatten().collect()
    }
}
