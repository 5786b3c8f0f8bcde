//! Features of one example, or of many, put together into tensors.

use super::message::{Example, Values};
use super::{Dense, Varying, Wanted};
use crate::error::{Error, Result};
use bytes::Bytes;
use graph::{Code, DType, Shape, Tensor, tensor::memory_limit};

/// How messages name an example.
enum Place<'a> {
    /// The only one.
    Single(Option<&'a Bytes>),
    /// By number, and by its name if it has one.
    Row(usize, Option<&'a Bytes>),
}

impl Place<'_> {
    fn wrong(&self, key: &Bytes, what: &str) -> Error {
        let key = String::from_utf8_lossy(key);
        Error::invalid(match self {
            Place::Single(None) => format!("Key: {key}.  {what}"),
            Place::Single(name) => format!("Name: {}, Key: {key}.  {what}", shown(*name)),
            Place::Row(i, name) => format!("Name: {}, Key: {key}, Index: {i}.  {what}", shown(*name)),
        })
    }

    fn missing(&self, dense: &Dense) -> Error {
        let key = String::from_utf8_lossy(&dense.key);
        let what = format!("Feature: {key} (data type: {}) is required but could not be found.", dense.dtype);
        Error::invalid(match self {
            Place::Single(None) => what,
            Place::Single(name) | Place::Row(_, name) => format!("Name: {}, {what}", shown(*name)),
        })
    }

    fn example<'m>(&self, message: &'m [u8]) -> Result<Example<'m>> {
        Example::of(message).map_err(|_| {
            let cut = &message[..message.len().min(64)];
            Error::invalid(format!("Could not parse example input, value: '{}'", cut.escape_ascii()))
        })
    }

    /// Appends a feature's values; how many. `None` if the example lacks it.
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

fn shown(name: Option<&Bytes>) -> String {
    name.map_or_else(|| "<unknown>".to_owned(), |name| String::from_utf8_lossy(name).into_owned())
}

/// The outputs of an op for one example.
pub(super) fn parse_one(message: &[u8], wanted: &Wanted, name: Option<&Bytes>) -> Result<Vec<Tensor>> {
    let place = Place::Single(name);
    let example = place.example(message)?;
    let varying = |feature: &Varying| -> Result<(Tensor, i64)> {
        let mut values = Values::new(feature.dtype);
        place.read(&example, &feature.key, feature.dtype, &mut values)?;
        let count = values.len();
        Ok((values.into_tensor(Shape::new(&[count])?)?, count as i64))
    };
    let mut outputs = Outputs::default();
    for feature in &wanted.sparse {
        let (values, count) = varying(feature)?;
        let indices: Vec<i64> = (0..count).collect();
        outputs.sparse(Tensor::from_slice(&indices, Shape::new(&[indices.len(), 1])?)?, values, &[count])?;
    }
    for dense in &wanted.dense {
        let mut values = Values::new(dense.dtype);
        let given = fill(&place, &example, dense, &mut values)?;
        let dims = dims(dense, given.unwrap_or(0));
        outputs.dense.push(values.into_tensor(Shape::new(&dims)?)?);
    }
    for (feature, split_type) in wanted.ragged.iter().zip(&wanted.split_types) {
        outputs.ragged(varying(feature)?.0, &[], *split_type)?;
    }
    Ok(outputs.in_order())
}

/// Appends a dense feature: of an open one what there is, of another all or its default. Gives the number of values
/// of an open one.
fn fill(place: &Place<'_>, example: &Example<'_>, dense: &Dense, into: &mut Values) -> Result<Option<usize>> {
    let count = place.read(example, &dense.key, dense.dtype, into)?;
    if let Some(stride) = dense.stride() {
        let count = count.unwrap_or(0);
        if stride == 0 || count % stride != 0 {
            let what = format!(
                "Number of {} values is not a multiple of stride length. Saw {count} values but output shape is: {}",
                dense.dtype, dense.shape
            );
            return Err(place.wrong(&dense.key, &what));
        }
        return Ok(Some(count));
    }
    let wanted = dense.shape.num_elements().unwrap_or(0);
    match count {
        Some(count) if count == wanted => {}
        Some(count) => {
            let what = format!(
                "Number of {} values != expected.  Values size: {count} but output shape: {}",
                dense.dtype, dense.shape
            );
            return Err(place.wrong(&dense.key, &what));
        }
        None if dense.default.num_elements() == wanted => into.append(&dense.default)?,
        None => return Err(place.missing(dense)),
    }
    Ok(None)
}

/// The shape of a dense feature of so many values.
fn dims(dense: &Dense, values: usize) -> Vec<usize> {
    let stride = dense.stride().unwrap_or(1).max(1);
    dense.shape.dims().unwrap_or_default().iter().map(|d| d.unwrap_or(values / stride)).collect()
}

/// The outputs of an op for a batch.
pub(super) fn parse(messages: &[Bytes], names: &[Bytes], wanted: &Wanted) -> Result<Vec<Tensor>> {
    let place = |i: usize| Place::Row(i, names.get(i));
    let examples =
        messages.iter().enumerate().map(|(i, m)| place(i).example(m)).collect::<Result<Vec<_>>>()?;
    // Values of all examples, and how many each has.
    let varying = |feature: &Varying| -> Result<(Tensor, Vec<usize>)> {
        let mut values = Values::new(feature.dtype);
        let mut counts = Vec::with_capacity(examples.len());
        for (i, example) in examples.iter().enumerate() {
            let count = place(i).read(example, &feature.key, feature.dtype, &mut values)?;
            counts.push(count.unwrap_or(0));
        }
        let count = values.len();
        Ok((values.into_tensor(Shape::new(&[count])?)?, counts))
    };
    let mut outputs = Outputs::default();
    for feature in &wanted.sparse {
        let (values, counts) = varying(feature)?;
        let rows = counts.iter().enumerate();
        let indices: Vec<i64> =
            rows.flat_map(|(i, &n)| (0..n).flat_map(move |j| [i as i64, j as i64])).collect();
        let widest = counts.iter().copied().max().unwrap_or(0);
        let indices = Tensor::from_slice(&indices, Shape::new(&[values.num_elements(), 2])?)?;
        outputs.sparse(indices, values, &[examples.len() as i64, widest as i64])?;
    }
    for dense in &wanted.dense {
        outputs.dense.push(dense_batch(&examples, place, dense)?);
    }
    for (feature, split_type) in wanted.ragged.iter().zip(&wanted.split_types) {
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
    place: impl Fn(usize) -> Place<'a>,
    dense: &Dense,
) -> Result<Tensor> {
    let mut values = Values::new(dense.dtype);
    let Some(stride) = dense.stride() else {
        for (i, example) in examples.iter().enumerate() {
            fill(&place(i), example, dense, &mut values)?;
        }
        let shape = [&[examples.len()], &dims(dense, 0)[..]].concat();
        return Ok(values.into_tensor(Shape::new(&shape)?)?);
    };
    // Open: each example is filled up to the longest.
    let mut lengths = Vec::with_capacity(examples.len());
    for (i, example) in examples.iter().enumerate() {
        lengths.push(fill(&place(i), example, dense, &mut Values::new(dense.dtype))?.unwrap_or(0));
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let total = longest.checked_mul(examples.len()).filter(|&n| (n as u64) <= memory_limit() / 4);
    if total.is_none() {
        let message = format!("{} examples of {longest} values of a feature", examples.len());
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    for (i, (example, length)) in examples.iter().zip(lengths).enumerate() {
        fill(&place(i), example, dense, &mut values)?;
        if length < longest && dense.default.num_elements() != 1 {
            return Err(place(i).missing(dense));
        }
        for _ in length..longest {
            values.append(&dense.default)?;
        }
    }
    let mut shape = vec![examples.len()];
    shape.extend(dims(dense, longest.div_ceil(stride.max(1)) * stride));
    Ok(values.into_tensor(Shape::new(&shape)?)?)
}

/// Outputs by kind, each in the order of its features.
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
        self.ragged_splits.push(match split_type {
            DType::Int32 => {
                let narrow = splits.iter().map(|&s| i32::try_from(s)).collect::<Result<Vec<_>, _>>();
                Tensor::vector(
                    &narrow.map_err(|_| Error::invalid("too many values for row splits of int32"))?,
                )?
            }
            _ => Tensor::vector(splits)?,
        });
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
