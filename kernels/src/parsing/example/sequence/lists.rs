//! Assembly of the feature lists of one sequence example, or of a batch, into tensors.

use crate::parsing::example::batch::{row_splits, shown};
use crate::parsing::example::message::{Feature, FeatureLists, Values};
use crate::parsing::example::{DenseFeature, FeatureTypes, RequestedFeatures, VaryingFeature};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, Shape, Tensor, tensor::memory_limit};

/// The feature lists to parse from each message.
pub(super) struct RequestedLists {
    features: RequestedFeatures,
    /// For each dense list, true if a missing list counts as a list without steps, and false if it is an error.
    assumed_empty: Vec<bool>,
}

/// The lists of one message, and its name for error messages.
struct Sequence<'a> {
    lists: FeatureLists<'a>,
    name: String,
}

impl<'a> Sequence<'a> {
    fn of(message: &'a [u8], name: Option<&Bytes>) -> Result<Sequence<'a>> {
        let lists = FeatureLists::of(message).map_err(|_| {
            let cut = &message[..message.len().min(64)];
            Error::invalid(format!(
                "Invalid protocol message input, example name: {}, value: '{}'",
                shown(name),
                cut.escape_ascii()
            ))
        })?;
        Ok(Sequence { lists, name: shown(name) })
    }

    fn wrong(&self, key: &Bytes, step: usize, reason: &str) -> Error {
        let key = String::from_utf8_lossy(key);
        Error::invalid(format!("Name: {}, Feature list: {key}, Index: {step}.  {reason}", self.name))
    }

    /// Appends the values of a feature in one step to `into`, and returns their number; `None` if the feature has no
    /// list of values.
    fn read(
        &self,
        key: &Bytes,
        step: usize,
        feature: Feature<'_>,
        into: &mut Values,
    ) -> Result<Option<usize>> {
        let Some((dtype, values)) = feature.values() else { return Ok(None) };
        if dtype != into.dtype() {
            let expected = into.dtype();
            return Err(self.wrong(key, step, &format!("Data types don't match. Expected type: {expected}")));
        }
        let before = into.len();
        into.read(values).map_err(|_| self.wrong(key, step, "The list of values cannot be parsed."))?;
        Ok(Some(into.len() - before))
    }

    /// Appends the values of all steps of a dense feature to `into`, and returns the number of steps.
    fn read_dense(&self, dense: &DenseFeature, assumed_empty: bool, into: &mut Values) -> Result<usize> {
        let Some(features) = self.lists.get(&dense.key) else {
            if assumed_empty {
                return Ok(0);
            }
            let key = String::from_utf8_lossy(&dense.key);
            return Err(Error::invalid(format!(
                "Name: {}, Feature list '{key}' is required but could not be found.  Did you mean to include it in \
                 feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?",
                self.name
            )));
        };
        let expected = dense.shape.num_elements().unwrap_or(0);
        for (step, feature) in features.iter().enumerate() {
            match self.read(&dense.key, step, *feature, into)? {
                Some(count) if count == expected => {}
                Some(count) => {
                    let reason = format!(
                        "Number of {} values != expected.  values size: {count} but output shape: {}",
                        dense.dtype, dense.shape
                    );
                    return Err(self.wrong(&dense.key, step, &reason));
                }
                None => {
                    let reason = format!("Data types don't match. Expected type: {}", dense.dtype);
                    return Err(self.wrong(&dense.key, step, &reason));
                }
            }
        }
        Ok(features.len())
    }

    /// Appends the values of all steps of a sparse or ragged feature to `into`, and returns the number of values of
    /// each step. A missing list has no steps.
    fn read_varying(&self, feature: &VaryingFeature, into: &mut Values) -> Result<Vec<usize>> {
        let steps = self.lists.get(&feature.key).unwrap_or_default().iter().enumerate();
        steps.map(|(step, f)| Ok(self.read(&feature.key, step, *f, into)?.unwrap_or(0))).collect()
    }
}

impl RequestedLists {
    pub(super) fn of(
        types: &FeatureTypes,
        keys: [Vec<Bytes>; 3],
        assumed_empty: Vec<bool>,
    ) -> Result<RequestedLists> {
        let none = types.dense.iter().map(|&dtype| Tensor::zeros(dtype, Shape::new(&[0])?));
        let features = types.with_defaults(keys, none.collect::<graph::Result<_>>()?)?;
        if assumed_empty.len() != features.dense.len() {
            device::invalid!(
                "Expected len(feature_list_dense_missing_assumed_empty) to match Nfeature_list_dense: {} vs. {}",
                assumed_empty.len(),
                features.dense.len()
            );
        }
        Ok(RequestedLists { features, assumed_empty })
    }

    /// Returns the lists' tensors of one message, without a batch dimension.
    pub(super) fn parse_one(&self, message: &[u8], name: Option<&Bytes>) -> Result<Vec<Tensor>> {
        self.outputs(&[Sequence::of(message, name)?], false)
    }

    /// Returns the lists' tensors of a batch of messages.
    pub(super) fn parse(&self, messages: &[Bytes], names: &[Bytes]) -> Result<Vec<Tensor>> {
        let all = messages.iter().enumerate().map(|(i, m)| Sequence::of(m, names.get(i)));
        self.outputs(&all.collect::<Result<Vec<_>>>()?, true)
    }

    /// Returns the tensors in the order of the op's outputs: indices, values and shapes of sparse lists, values and
    /// lengths of dense lists, and values, outer and inner row splits of ragged lists.
    fn outputs(&self, sequences: &[Sequence<'_>], is_batch: bool) -> Result<Vec<Tensor>> {
        let RequestedFeatures { sparse, dense, ragged, split_types } = &self.features;
        let sparse =
            sparse.iter().map(|f| sparse_list(sequences, f, is_batch)).collect::<Result<Vec<_>>>()?;
        let dense = dense.iter().zip(&self.assumed_empty);
        let dense = dense.map(|(f, &e)| dense_list(sequences, f, e, is_batch)).collect::<Result<Vec<_>>>()?;
        let ragged = ragged.iter().zip(split_types).map(|(feature, &split_type)| -> Result<[Tensor; 3]> {
            let (values, counts) = varying(sequences, feature)?;
            let outer = splits(counts.iter().map(Vec::len));
            let inner = splits(counts.iter().flatten().copied());
            Ok([values, row_splits(&outer, split_type)?, row_splits(&inner, split_type)?])
        });
        let ragged = ragged.collect::<Result<Vec<_>>>()?;
        Ok([columns(sparse), columns(dense), columns(ragged)].concat())
    }
}

/// Returns the first element of each row, then the second of each, and so on.
fn columns<const N: usize>(rows: Vec<[Tensor; N]>) -> Vec<Tensor> {
    (0..N).flat_map(|at| rows.iter().map(move |row| row[at].clone())).collect()
}

/// Returns the partial sums of lengths, from zero on.
fn splits(lengths: impl Iterator<Item = usize>) -> Vec<i64> {
    let ends = lengths.scan(0, |end, n| {
        *end += n as i64;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Returns the values of a feature in all messages, and their numbers by message and step.
fn varying(sequences: &[Sequence<'_>], feature: &VaryingFeature) -> Result<(Tensor, Vec<Vec<usize>>)> {
    let mut values = Values::new(feature.dtype);
    let counts = sequences.iter().map(|s| s.read_varying(feature, &mut values)).collect::<Result<_>>()?;
    let count = values.len();
    Ok((values.into_tensor(Shape::new(&[count])?)?, counts))
}

/// Returns the indices, values and shape of a sparse feature.
fn sparse_list(sequences: &[Sequence<'_>], feature: &VaryingFeature, is_batch: bool) -> Result<[Tensor; 3]> {
    let (values, counts) = varying(sequences, feature)?;
    let rank = if is_batch { 3 } else { 2 };
    let mut indices = Vec::with_capacity(values.num_elements() * rank);
    for (i, steps) in counts.iter().enumerate() {
        for (step, &count) in steps.iter().enumerate() {
            for at in 0..count {
                indices.extend_from_slice(&[i as i64, step as i64, at as i64][3 - rank..]);
            }
        }
    }
    let longest = counts.iter().map(Vec::len).max().unwrap_or(0);
    let widest = counts.iter().flatten().copied().max().unwrap_or(0);
    let shape = [sequences.len() as i64, longest as i64, widest as i64];
    let indices = Tensor::from_slice(&indices, Shape::new(&[values.num_elements(), rank])?)?;
    Ok([indices, values, Tensor::vector(&shape[3 - rank..])?])
}

/// Returns the values of a dense feature, with the steps of all messages padded to the longest, and the numbers of
/// steps.
fn dense_list(
    sequences: &[Sequence<'_>],
    dense: &DenseFeature,
    assumed_empty: bool,
    is_batch: bool,
) -> Result<[Tensor; 2]> {
    let width = dense.shape.num_elements().unwrap_or(0);
    let mut parts = Vec::with_capacity(sequences.len());
    for sequence in sequences {
        let mut values = Values::new(dense.dtype);
        let steps = sequence.read_dense(dense, assumed_empty, &mut values)?;
        parts.push((values, steps));
    }
    let lengths: Vec<i64> = parts.iter().map(|(_, steps)| *steps as i64).collect();
    let longest = parts.iter().map(|(_, steps)| *steps).max().unwrap_or(0);
    let size = longest
        .checked_mul(width)
        .filter(|n| n.checked_mul(sequences.len()).is_some_and(|all| (all as u64) <= memory_limit() / 4));
    let Some(size) = size else {
        let message = format!("{} sequences of {longest} steps of {width} values", sequences.len());
        return Err(Error::new(Code::ResourceExhausted, message));
    };
    let mut values = Values::new(dense.dtype);
    for (i, (part, _)) in parts.into_iter().enumerate() {
        values.append_all(part);
        values.pad_to((i + 1) * size);
    }
    let mut dims = if is_batch { vec![sequences.len(), longest] } else { vec![longest] };
    dims.extend(dense.shape.as_shape().map(|shape| shape.dims().to_vec()).unwrap_or_default());
    let values = values.into_tensor(Shape::new(&dims)?)?;
    let lengths = Tensor::vector(&lengths)?;
    let lengths = if is_batch { lengths } else { lengths.reshaped(Shape::scalar())? };
    Ok([values, lengths])
}
