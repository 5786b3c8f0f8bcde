//! Parsing of `tf.train.SequenceExample` messages: a context of features, and lists of one feature for each step.

mod lists;

use super::message::Example;
use super::{FeatureTypes, RequestedFeatures, TypeAttributes, batch};
use bytes::Bytes;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Bool8, PartialShape, Tensor};
use lists::RequestedLists;

const CONTEXT_TYPES: TypeAttributes = TypeAttributes {
    sparse: "context_sparse_types",
    dense: "Tcontext_dense",
    shapes: "context_dense_shapes",
    ragged: "context_ragged_value_types",
    splits: "context_ragged_split_types",
};

const LIST_TYPES: TypeAttributes = TypeAttributes {
    sparse: "feature_list_sparse_types",
    dense: "feature_list_dense_types",
    shapes: "feature_list_dense_shapes",
    ragged: "feature_list_ragged_value_types",
    splits: "feature_list_ragged_split_types",
};

/// The dtypes and shapes of the features of the context and of the lists.
struct SequenceTypes {
    context: FeatureTypes,
    lists: FeatureTypes,
}

impl SequenceTypes {
    fn of(init: &KernelInit<'_>) -> Result<SequenceTypes> {
        let complete = |names: &TypeAttributes| -> Result<FeatureTypes> {
            let mut types = FeatureTypes::of(init, names)?;
            for shape in &mut types.shapes {
                if shape.dims().is_none() {
                    *shape = PartialShape::scalar();
                }
                if shape.num_elements().is_none() {
                    device::invalid!("Shape {shape} is not fully defined");
                }
            }
            Ok(types)
        };
        let types = SequenceTypes { context: complete(&CONTEXT_TYPES)?, lists: complete(&LIST_TYPES)? };
        let counts = [
            ("Ncontext_sparse", types.context.sparse.len()),
            ("Ncontext_dense", types.context.dense.len()),
            ("Nfeature_list_sparse", types.lists.sparse.len()),
            ("Nfeature_list_dense", types.lists.dense.len()),
        ];
        for (name, types) in counts {
            if init.node.op.attr_spec(name).is_none() {
                continue;
            }
            let count = init.attr::<i64>(name)?;
            if usize::try_from(count) != Ok(types) {
                device::invalid!("{name} is {count}, but there are {types} types");
            }
        }
        Ok(types)
    }

    /// Returns the outputs for one example, or for a vector of examples. `defaults` is the index of the input with the
    /// first default of the context's dense features.
    fn parse(
        &self,
        ctx: &KernelContext<'_>,
        serialized: &Tensor,
        names: &Tensor,
        keys: SequenceKeys,
        defaults: usize,
    ) -> Result<Vec<Tensor>> {
        let context = self.context.requested(ctx, keys.context, defaults)?;
        for (i, feature) in context.dense.iter().enumerate() {
            let (default, shape) = (&feature.default, &feature.shape);
            if default.num_elements() > 0 && shape.as_shape().as_ref() != Some(default.shape()) {
                let given = default.shape();
                device::invalid!(
                    "def_value[{i}].shape() == {given} != context_dense_shapes_[{i}] == {shape}"
                );
            }
        }
        check_dense_context(&context, serialized)?;
        let lists = RequestedLists::of(&self.lists, keys.lists, keys.assumed_empty)?;
        let names = names.as_strings()?;
        if !names.is_empty() && names.len() != serialized.num_elements() {
            device::invalid!("example_names must be empty or have the correct number of elements");
        }
        let (mut outputs, of_lists) = match (serialized.shape().rank(), serialized.as_strings()?) {
            (0, [one]) => {
                (batch::parse_one(one, &context, names.first())?, lists.parse_one(one, names.first())?)
            }
            (1, all) => (batch::parse(all, names, &context)?, lists.parse(all, names)?),
            _ => device::invalid!(
                "Expected serialized to be a scalar or vector, got shape: {}",
                serialized.shape()
            ),
        };
        outputs.extend(of_lists);
        Ok(outputs)
    }
}

/// Fails if a message has a dense feature of the context without a list of values: its default is for messages that
/// lack the feature.
fn check_dense_context(context: &RequestedFeatures, serialized: &Tensor) -> Result<()> {
    if context.dense.is_empty() {
        return Ok(());
    }
    for message in serialized.as_strings()? {
        // A message that cannot be parsed is reported by the parser of its features.
        let Ok(example) = Example::of(message) else { continue };
        if let Some(feature) = context.dense.iter().find(|f| example.is_unset(&f.key)) {
            let key = String::from_utf8_lossy(&feature.key);
            device::invalid!(
                "Context feature: {key}.  Data types don't match. Expected type: {}, but the feature has no list",
                feature.dtype
            );
        }
    }
    Ok(())
}

/// Fails if a key is in more than one of the lists of sparse, dense and ragged keys.
fn check_kinds(what: &str, keys: &[Vec<Bytes>; 3]) -> Result<()> {
    let kinds = ["sparse", "dense", "ragged"];
    for (first, second) in [(1, 0), (2, 1), (2, 0)] {
        if let Some(key) = keys[first].iter().find(|key| keys[second].contains(key)) {
            device::invalid!(
                "{what} feature {} cannot be both {} and {}",
                String::from_utf8_lossy(key),
                kinds[first],
                kinds[second]
            );
        }
    }
    Ok(())
}

/// The names of the features: sparse, dense and ragged ones.
struct SequenceKeys {
    context: [Vec<Bytes>; 3],
    lists: [Vec<Bytes>; 3],
    /// For each dense list, true if a missing list counts as a list without steps, and false if it is an error.
    assumed_empty: Vec<bool>,
}

impl SequenceKeys {
    /// Fails if a feature of the context or a list is of more than one kind.
    fn check(&self) -> Result<()> {
        check_kinds("Context", &self.context)?;
        check_kinds("Sequence", &self.lists)
    }
}

/// Returns for each key in `keys` whether `assumed` contains the key.
fn are_assumed_empty(keys: &[Bytes], assumed: &[Bytes]) -> Vec<bool> {
    keys.iter().map(|key| assumed.contains(key)).collect()
}

/// Makes the kernel of ParseSequenceExample, whose keys are attributes.
pub(in crate::parsing) fn parse_v1(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = SequenceTypes::of(init)?;
    let keys = |name: &str| init.attr::<Vec<Bytes>>(name);
    let context = [keys("context_sparse_keys")?, keys("context_dense_keys")?, Vec::new()];
    let lists = [keys("feature_list_sparse_keys")?, keys("feature_list_dense_keys")?, Vec::new()];
    let assumed_empty = are_assumed_empty(&lists[1], &keys("feature_list_dense_missing_assumed_empty")?);
    Kernel::sync(move |ctx| {
        let (context, lists, assumed_empty) = (context.clone(), lists.clone(), assumed_empty.clone());
        let keys = SequenceKeys { context, lists, assumed_empty };
        keys.check()?;
        let outputs = types.parse(ctx, ctx.input(0)?, ctx.input(1)?, keys, 2)?;
        super::set_outputs(ctx, outputs)
    })
}

/// Makes the kernel of ParseSequenceExampleV2, which has one input vector of keys per kind of feature.
pub(in crate::parsing) fn parse_v2(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = SequenceTypes::of(init)?;
    Kernel::sync(move |ctx| {
        let keys = |i: usize| -> Result<Vec<Bytes>> { Ok(ctx.input(i)?.as_strings()?.to_vec()) };
        let keys = SequenceKeys {
            context: [keys(2)?, keys(3)?, keys(4)?],
            lists: [keys(5)?, keys(6)?, keys(7)?],
            assumed_empty: ctx.input(8)?.values::<Bool8>()?.iter().map(|flag| flag.get()).collect(),
        };
        keys.check()?;
        let outputs = types.parse(ctx, ctx.input(0)?, ctx.input(1)?, keys, 9)?;
        super::set_outputs(ctx, outputs)
    })
}

/// Makes the kernel of ParseSingleSequenceExample, which has one input per key and parses one message.
pub(in crate::parsing) fn parse_single(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = SequenceTypes::of(init)?;
    let counts = [
        types.context.sparse.len(),
        types.context.dense.len(),
        types.lists.sparse.len(),
        types.lists.dense.len(),
    ];
    Kernel::sync(move |ctx| {
        let (serialized, name) = (ctx.input(0)?, ctx.input(ctx.num_inputs() - 1)?);
        if serialized.shape().rank() != 0 {
            device::invalid!("Expected serialized to be a scalar, got shape: {}", serialized.shape());
        }
        if name.num_elements() > 0 && name.shape().rank() != 0 {
            device::invalid!("Expected debug_name to be a scalar, got shape: {}", name.shape());
        }
        let assumed = ctx.input(1)?;
        if assumed.shape().rank() != 1 {
            device::invalid!(
                "Expected feature_list_dense_missing_assumed_empty to be a vector, got shape: {}",
                assumed.shape()
            );
        }
        let assumed = assumed.as_strings()?;
        let mut next = 2;
        let mut keys = Vec::new();
        for (i, count) in counts.into_iter().enumerate() {
            let of = next..next + count;
            next += count;
            keys.push(of.map(|at| key(ctx, at)).collect::<Result<Vec<Bytes>>>()?);
            if i % 2 == 1 {
                keys.push(Vec::new());
            }
        }
        let keys: [Vec<Bytes>; 6] = keys.try_into().unwrap_or_default();
        let [sparse, dense, ragged, list_sparse, list_dense, list_ragged] = keys;
        let assumed_empty = are_assumed_empty(&list_dense, assumed);
        let keys = SequenceKeys {
            context: [sparse, dense, ragged],
            lists: [list_sparse, list_dense, list_ragged],
            assumed_empty,
        };
        let mut outputs = types.parse(ctx, serialized, name, keys, next)?;
        // The op has no output for the number of steps.
        outputs.truncate(ctx.num_outputs());
        super::set_outputs(ctx, outputs)
    })
}

/// Returns the string of a scalar input.
fn key(ctx: &KernelContext<'_>, at: usize) -> Result<Bytes> {
    let input = ctx.input(at)?;
    match (input.shape().rank(), input.as_strings()?) {
        (0, [key]) => Ok(key.clone()),
        _ => device::invalid!("Expected a key to be a scalar, got shape: {}", input.shape()),
    }
}
