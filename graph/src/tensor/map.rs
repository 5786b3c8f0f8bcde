//! Maps from tensors to tensors, which are elements of variant tensors.

use super::object::Nesting;
use super::{Tensor, VariantObject};
use crate::dtype::DType;
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// A map from tensors to tensors, ordered by the element types, shapes and bytes of its keys. Keys are equal if these
/// are equal.
#[derive(Clone, Debug, Default)]
pub struct TensorMap {
    entries: BTreeMap<MapKey, (Tensor, Tensor)>,
    nesting: Nesting,
}

/// The number of the element type, the sizes, and the bytes of a key's elements, each with its length if it is a string.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MapKey {
    dtype: i32,
    sizes: Vec<usize>,
    bytes: Vec<u8>,
}

impl MapKey {
    fn of(key: &Tensor) -> Result<MapKey> {
        let bytes = match key.dtype() {
            DType::String => {
                let with_length = |s: &bytes::Bytes| [&(s.len() as u64).to_be_bytes()[..], &s[..]].concat();
                key.as_strings()?.iter().flat_map(with_length).collect()
            }
            DType::Resource | DType::Variant => {
                return Err(Error::unimplemented(format!(
                    "a key of a map cannot be of type {}",
                    key.dtype()
                )));
            }
            _ => key.bytes()?.to_vec(),
        };
        Ok(MapKey { dtype: key.dtype().number(), sizes: key.shape().dims().to_vec(), bytes })
    }
}

impl TensorMap {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the map has no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the keys and values.
    pub fn entries(&self) -> impl Iterator<Item = &(Tensor, Tensor)> {
        self.entries.values()
    }

    /// Returns the value of a key, or `None`.
    ///
    /// # Errors
    /// `Unimplemented` if the key holds resources or variants.
    pub fn get(&self, key: &Tensor) -> Result<Option<&Tensor>> {
        Ok(self.entries.get(&MapKey::of(key)?).map(|(_, value)| value))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Those of [`TensorMap::get`]; `ResourceExhausted` if variants nest too deep, or hold too many tensors.
    pub fn insert(&mut self, key: Tensor, value: Tensor) -> Result<()> {
        let place = MapKey::of(&key)?;
        let before = self.entries.get(&place).map(|(_, value)| value);
        let others = before.map_or(self.nesting, |before| self.nesting.without(before));
        self.nesting = others.with(&value)?;
        self.entries.insert(place, (key, value));
        Ok(())
    }

    /// Removes a key, and returns its value, or `None`.
    ///
    /// # Errors
    /// Those of [`TensorMap::get`].
    pub fn remove(&mut self, key: &Tensor) -> Result<Option<Tensor>> {
        let removed = self.entries.remove(&MapKey::of(key)?).map(|(_, value)| value);
        if let Some(value) = &removed {
            self.nesting = self.nesting.without(value);
        }
        Ok(removed)
    }
}

impl VariantObject for TensorMap {
    fn type_name(&self) -> &'static str {
        "tensorflow::TensorMap"
    }

    fn nesting(&self) -> usize {
        self.nesting.depth + 1
    }

    fn tensors(&self) -> u64 {
        self.nesting.tensors.saturating_add(2 * self.entries.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    #[test]
    fn keys_differ_by_type_shape_and_elements() -> Result<()> {
        let mut map = TensorMap::default();
        let strings =
            |a: &'static str, b: &'static str| Tensor::strings(vec![a.into(), b.into()], Shape::new(&[2])?);
        let keys = [
            Tensor::scalar(1i32),
            Tensor::scalar(1i64),
            Tensor::vector(&[1i32])?,
            strings("ab", "c")?,
            strings("a", "bc")?,
        ];
        for (i, key) in keys.iter().enumerate() {
            map.insert(key.clone(), Tensor::scalar(i as i32))?;
        }
        assert_eq!(map.len(), keys.len());
        map.insert(keys[0].clone(), Tensor::scalar(9i32))?;
        assert_eq!(map.get(&keys[0])?.map(|v| v.item::<i32>()).transpose()?, Some(9));
        assert_eq!(map.remove(&keys[4])?.map(|v| v.item::<i32>()).transpose()?, Some(4));
        assert!(map.get(&keys[4])?.is_none());
        assert!(map.insert(Tensor::variant(TensorMap::default()), Tensor::scalar(1i32)).is_err());
        Ok(())
    }
}
