//! Parsing of `tf.train.Example` messages: features by name, as dense, sparse or ragged tensors.

mod batch;
pub(crate) mod dataset;
mod message;
pub(super) mod sequence;

use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{DType, PartialShape, Tensor};

/// A sparse or ragged feature, whose number of values differs between examples.
#[derive(Debug)]
struct VaryingFeature {
    key: Bytes,
    dtype: DType,
}

/// A dense feature of a known rank, of which only the first dimension may have an unknown size.
#[derive(Debug)]
struct DenseFeature {
    key: Bytes,
    dtype: DType,
    shape: PartialShape,
    /// The value of a missing feature, and the padding of a short one; empty if the feature is required.
    default: Tensor,
}

impl DenseFeature {
    /// Returns the product of all dimensions but the first if the first dimension is unknown; `None` if all dimensions
    /// are known.
    fn stride(&self) -> Option<usize> {
        let dims = self.shape.dims()?;
        match dims.split_first() {
            Some((None, rest)) => rest.iter().try_fold(1usize, |n, d| n.checked_mul((*d)?)),
            _ => None,
        }
    }
}

/// The features to parse from each example.
#[derive(Debug)]
struct RequestedFeatures {
    sparse: Vec<VaryingFeature>,
    dense: Vec<DenseFeature>,
    ragged: Vec<VaryingFeature>,
    split_types: Vec<DType>,
}

/// The dtypes and shapes of features, which attributes give for all steps.
struct FeatureTypes {
    sparse: Vec<DType>,
    dense: Vec<DType>,
    shapes: Vec<PartialShape>,
    ragged: Vec<DType>,
    splits: Vec<DType>,
}

/// The names of the attributes that hold the types and shapes of features; ops without ragged features lack the last
/// two.
struct TypeAttributes {
    sparse: &'static str,
    dense: &'static str,
    shapes: &'static str,
    ragged: &'static str,
    splits: &'static str,
}

/// The attributes of the ops that parse `Example` messages.
const EXAMPLE_TYPES: TypeAttributes = TypeAttributes {
    sparse: "sparse_types",
    dense: "Tdense",
    shapes: "dense_shapes",
    ragged: "ragged_value_types",
    splits: "ragged_split_types",
};

impl FeatureTypes {
    fn of(init: &KernelInit<'_>, names: &TypeAttributes) -> Result<FeatureTypes> {
        let of_ragged = |name: &str| match init.node.op.attr_spec(name) {
            Some(_) => init.attr::<Vec<DType>>(name),
            None => Ok(Vec::new()),
        };
        let types = FeatureTypes {
            sparse: init.attr(names.sparse)?,
            dense: init.attr(names.dense)?,
            shapes: init.attr(names.shapes)?,
            ragged: of_ragged(names.ragged)?,
            splits: of_ragged(names.splits)?,
        };
        if types.dense.len() != types.shapes.len() {
            device::invalid!(
                "len(dense_keys) != len(dense_shapes): {} vs. {}",
                types.dense.len(),
                types.shapes.len()
            );
        }
        if types.ragged.len() != types.splits.len() {
            device::invalid!("len(ragged_value_types) != len(ragged_split_types)");
        }
        for shape in &types.shapes {
            let is_closed = shape.dims().is_some_and(|dims| dims.iter().skip(1).all(Option::is_some));
            if !is_closed {
                device::invalid!("dense_shapes must be defined but for their first dimension, got {shape}");
            }
        }
        Ok(types)
    }

    /// Returns the features to parse, with the dtypes of `self`, the keys `sparse`, `dense` and `ragged`, and the
    /// defaults of dense features in the inputs from index `first` on.
    fn requested(
        &self,
        ctx: &KernelContext<'_>,
        keys: [Vec<Bytes>; 3],
        first: usize,
    ) -> Result<RequestedFeatures> {
        let defaults = (first..first + self.dense.len()).map(|i| Ok(ctx.input(i)?.clone()));
        self.with_defaults(keys, defaults.collect::<Result<_>>()?)
    }

    /// Returns the features to parse, with the dtypes of `self`, the keys `sparse`, `dense` and `ragged`, and a default
    /// for each dense feature.
    fn with_defaults(
        &self,
        [sparse, dense, ragged]: [Vec<Bytes>; 3],
        defaults: Vec<Tensor>,
    ) -> Result<RequestedFeatures> {
        let counts = [
            ("sparse_keys", sparse.len(), self.sparse.len()),
            ("dense_keys", dense.len(), self.dense.len()),
            ("ragged_keys", ragged.len(), self.ragged.len()),
        ];
        for (what, keys, types) in counts {
            if keys != types {
                device::invalid!("got {keys} {what} for {types} types");
            }
        }
        let varying = |keys: Vec<Bytes>, types: &[DType]| {
            keys.into_iter().zip(types).map(|(key, &dtype)| VaryingFeature { key, dtype }).collect()
        };
        let mut all = Vec::new();
        for (i, (key, default)) in dense.into_iter().zip(defaults).enumerate() {
            let shape = self.shapes[i].clone();
            let is_open = shape.dims().is_some_and(|dims| dims.first() == Some(&None));
            let fits = if is_open { default.num_elements() == 1 } else { shape.accepts(default.shape()) };
            if default.num_elements() > 0 && !fits {
                device::invalid!(
                    "def_value[{i}].shape() == {} is not compatible with dense_shapes_[{i}] == {shape}",
                    default.shape()
                );
            }
            if default.dtype() != self.dense[i] {
                device::invalid!("dense_defaults[{i}] is of {}, not {}", default.dtype(), self.dense[i]);
            }
            all.push(DenseFeature { key, dtype: self.dense[i], shape, default });
        }
        Ok(RequestedFeatures {
            sparse: varying(sparse, &self.sparse),
            dense: all,
            ragged: varying(ragged, &self.ragged),
            split_types: self.splits.clone(),
        })
    }
}

/// Makes the kernel of ParseExample, which has one input per key.
pub(super) fn parse_v1(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = FeatureTypes::of(init, &EXAMPLE_TYPES)?;
    let key_counts = [types.sparse.len(), types.dense.len()];
    Kernel::sync(move |ctx| {
        if ctx.input(0)?.shape().rank() != 1 {
            device::invalid!("Expected serialized to be a vector, got shape: {}", ctx.input(0)?.shape());
        }
        let mut next = 2;
        let mut keys = |count: usize| -> Result<Vec<Bytes>> {
            let of = next..next + count;
            next += count;
            of.map(|i| match ctx.input(i)?.as_strings()? {
                [key] => Ok(key.clone()),
                many => {
                    Err(Error::invalid(format!("Expected a key to be a scalar, got {} strings", many.len())))
                }
            })
            .collect()
        };
        let keys = [keys(key_counts[0])?, keys(key_counts[1])?, Vec::new()];
        let first = 2 + key_counts[0] + key_counts[1];
        let requested = types.requested(ctx, keys, first)?;
        let outputs = batch::parse(ctx.input(0)?.as_strings()?, &names(ctx)?, &requested)?;
        set_outputs(ctx, outputs)
    })
}

/// Makes the kernel of ParseExampleV2, which has one input vector of keys per kind of feature. A scalar input, one
/// serialized example, gives tensors without a batch dimension.
pub(super) fn parse_v2(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = FeatureTypes::of(init, &EXAMPLE_TYPES)?;
    Kernel::sync(move |ctx| {
        let keys = |i: usize| -> Result<Vec<Bytes>> { Ok(ctx.input(i)?.as_strings()?.to_vec()) };
        let requested = types.requested(ctx, [keys(2)?, keys(3)?, keys(4)?], 5)?;
        let serialized = ctx.input(0)?;
        let outputs = match (serialized.shape().rank(), serialized.as_strings()?) {
            (0, [one]) => batch::parse_one(one, &requested, names(ctx)?.first())?,
            (1, all) => batch::parse(all, &names(ctx)?, &requested)?,
            _ => device::invalid!(
                "Expected serialized to be a scalar or vector, got shape: {}",
                serialized.shape()
            ),
        };
        set_outputs(ctx, outputs)
    })
}

/// Makes the kernel of ParseSingleExample, whose keys are attributes and whose input is one example.
pub(super) fn parse_single(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = FeatureTypes::of(init, &EXAMPLE_TYPES)?;
    let keys = [init.attr::<Vec<Bytes>>("sparse_keys")?, init.attr::<Vec<Bytes>>("dense_keys")?, Vec::new()];
    Kernel::sync(move |ctx| {
        let serialized = ctx.input(0)?;
        let (0, [one]) = (serialized.shape().rank(), serialized.as_strings()?) else {
            device::invalid!("Expected serialized to be a scalar, got shape: {}", serialized.shape());
        };
        let requested = types.requested(ctx, keys.clone(), 1)?;
        let outputs = batch::parse_one(one, &requested, None)?;
        set_outputs(ctx, outputs)
    })
}

/// Returns the names of the examples for error messages: none, or one per example.
fn names(ctx: &KernelContext<'_>) -> Result<Vec<Bytes>> {
    let (serialized, names) = (ctx.input(0)?, ctx.input(1)?);
    if names.num_elements() > 0 && names.shape() != serialized.shape() {
        device::invalid!(
            "Expected names have the same shape as serialized: name.shape={}, serialized.shape={}",
            names.shape(),
            serialized.shape()
        );
    }
    Ok(names.as_strings()?.to_vec())
}

fn set_outputs(ctx: &mut KernelContext<'_>, outputs: Vec<Tensor>) -> Result<()> {
    for (i, tensor) in outputs.into_iter().enumerate() {
        ctx.set_output(i, tensor);
    }
    Ok(())
}
