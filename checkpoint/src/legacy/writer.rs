//! The writer of V1 checkpoints.

use super::META_KEY;
use crate::error::{Error, Result, invalid};
use crate::proto::Writer as Proto;
use crate::slice::{SliceSpec, TensorSlice, write_shape};
use crate::store;
use crate::table::Builder;
use crate::tensor::write_values;
use graph::{Code, DType, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// A whole tensor or a slice of a tensor, to be written to a checkpoint.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    pub name: &'a [u8],
    pub spec: Option<SliceSpec>,
    pub tensor: &'a Tensor,
}

/// Maximum size in bytes of a message that can be read back.
const LARGEST: usize = i32::MAX as usize - 1024;

/// Writes the tensors into one file.
///
/// # Errors
/// `InvalidArgument` if two items have the same name and slice, if slices of one name contradict each other,
/// or for types that the format does not support.
pub fn write(path: impl AsRef<Path>, items: &[Item<'_>]) -> Result<()> {
    let path = path.as_ref();
    let mut of_name: BTreeMap<&[u8], Vec<(TensorSlice, &Item<'_>)>> = BTreeMap::new();
    let mut data = BTreeMap::new();
    for item in items {
        check(item)?;
        let slice = match &item.spec {
            Some(spec) => spec.slice.clone(),
            None => TensorSlice::full(item.tensor.shape().rank()),
        };
        if data.insert(slice.key(item.name), (slice.clone(), item)).is_some() {
            invalid!("Overlapping slices: {} of {} comes twice", slice, String::from_utf8_lossy(item.name));
        }
        of_name.entry(item.name).or_default().push((slice, item));
    }
    let mut meta = Proto::new();
    for (name, slices) in &of_name {
        let Some((_, first)) = slices.first() else { continue };
        let whole = whole_shape(first);
        if let Some((_, other)) =
            slices.iter().find(|(_, i)| whole_shape(i) != whole || i.tensor.dtype() != first.tensor.dtype())
        {
            invalid!(
                "Mismatching shapes or types of {}: {} {whole} and {} {}",
                String::from_utf8_lossy(name),
                first.tensor.dtype(),
                other.tensor.dtype(),
                whole_shape(other)
            );
        }
        meta.message(1, |tensor| {
            tensor.string(1, name).message(2, |shape| write_shape(shape, whole));
            tensor.int(3, first.tensor.dtype().number().into());
            for (slice, _) in slices {
                tensor.message(4, |proto| slice.write(proto));
            }
        });
    }
    meta.message(2, |versions| {
        versions.varint(1, 1);
    });
    let store = store::store_of(path)?;
    let mut table = Builder::new(store.create(path)?);
    let mut header = Proto::new();
    header.bytes(1, &meta.finish());
    table.add(META_KEY, &header.finish())?;
    for (key, (slice, item)) in &data {
        let mut elements = Proto::new();
        write_values(&mut elements, item.tensor)?;
        let elements = elements.finish();
        let mut value = Proto::new();
        value.message(2, |saved| {
            saved.string(1, item.name).message(2, |proto| slice.write(proto)).bytes(3, &elements);
        });
        table.add(key, &value.finish())?;
    }
    table.finish()?.commit()?;
    store.sync_folder(path);
    Ok(())
}

fn whole_shape<'a>(item: &'a Item<'_>) -> &'a graph::Shape {
    item.spec.as_ref().map_or(item.tensor.shape(), |spec| &spec.shape)
}

/// Returns whether the format supports the type.
pub(super) fn is_stored(dtype: DType) -> bool {
    use DType::*;
    matches!(
        dtype,
        Float
            | Double
            | Int32
            | Int16
            | Int8
            | UInt8
            | UInt16
            | QInt8
            | QUInt8
            | QInt32
            | QInt16
            | QUInt16
            | String
            | Complex64
            | Int64
            | Bool
            | Complex128
            | Half
    )
}

/// Fails if the format cannot store the item.
fn check(item: &Item<'_>) -> Result<()> {
    if item.name.is_empty() {
        invalid!("a tensor in a checkpoint must have a name");
    }
    let dtype = item.tensor.dtype();
    if !is_stored(dtype) {
        if matches!(dtype, DType::UInt32 | DType::UInt64) {
            invalid!("Tensor slice serialization not implemented for dtype {}", dtype.number());
        }
        let message = format!("Saving data type {dtype} not yet supported");
        return Err(Error::Invalid { code: Code::Unimplemented, message });
    }
    // An integer in a message takes at most ten bytes.
    let largest = item.tensor.num_elements().saturating_mul(10).max(item.tensor.num_bytes());
    if largest > LARGEST {
        invalid!("Tensor slice is too large to serialize (conservative estimate: {largest} bytes)");
    }
    if let Some(spec) = &item.spec
        && spec.slice_shape()? != *item.tensor.shape()
    {
        invalid!("a tensor of shape {} is not slice {} of {}", item.tensor.shape(), spec.slice, spec.shape);
    }
    Ok(())
}
