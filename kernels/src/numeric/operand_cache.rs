//! A cache of a value derived from an operand, such as a filter packed for products. The value is reused from step
//! to step while the operand does not change: a model that only infers packs its weights once.

use device::Result;
use graph::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// A cache for one node: the value derived from the operand that the node read last.
#[derive(Debug)]
pub(crate) struct OperandCache<K, V>(Mutex<CachedOperand<K, V>>);

/// The operand of the last call, and the value derived from it.
#[derive(Debug)]
struct CachedOperand<K, V> {
    /// The identifier of the operand's contents, from [`Tensor::contents`].
    contents: Option<u64>,
    /// The derived value, with the key for which it was made.
    value: Option<(K, Arc<V>)>,
}

impl<K, V> Default for OperandCache<K, V> {
    fn default() -> OperandCache<K, V> {
        OperandCache(Mutex::new(CachedOperand { contents: None, value: None }))
    }
}

impl<K: PartialEq, V> OperandCache<K, V> {
    /// Returns the value that `make` derives from the operand for `key`. Returns `None` without calling `make` if the
    /// operand differs from the operand of the previous call, because an operand that changes in each step, as in
    /// training, is not worth caching.
    ///
    /// # Errors
    /// The errors of `make`.
    pub(crate) fn get(
        &self,
        operand: &Tensor,
        key: K,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<Option<Arc<V>>> {
        let contents = operand.contents();
        {
            let mut cached = self.0.lock();
            if contents.is_none() || cached.contents != contents {
                *cached = CachedOperand { contents, value: None };
                return Ok(None);
            }
            if let Some((made_for, value)) = &cached.value
                && *made_for == key
            {
                return Ok(Some(value.clone()));
            }
        }
        let value = Arc::new(make()?);
        let mut cached = self.0.lock();
        // While `make` ran, a concurrent step may have called `get` with another operand.
        if cached.contents == contents {
            cached.value = Some((key, value.clone()));
        }
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Shape;

    #[test]
    fn values_are_cached_from_the_second_call_with_an_operand() -> Result<()> {
        let (cache, mut calls) = (OperandCache::default(), 0);
        let mut get = |operand: &Tensor, key: u32| -> Result<Option<i32>> {
            let make = || {
                calls += 1;
                Ok(calls)
            };
            Ok(cache.get(operand, key, make)?.map(|value| *value))
        };
        let mut x = Tensor::full(1f32, Shape::new(&[10])?)?;
        assert_eq!([get(&x, 0)?, get(&x, 0)?, get(&x.clone(), 0)?], [None, Some(1), Some(1)]);
        assert_eq!([get(&x, 1)?, get(&x, 1)?], [Some(2), Some(2)]);
        x.values_mut::<f32>()?[0] = 2.0;
        assert_eq!([get(&x, 1)?, get(&x, 1)?], [None, Some(3)]);
        // A scalar is stored inline and has no identifier of its contents, so its derived value is not cached.
        let scalar = Tensor::scalar(1f32);
        assert_eq!([get(&scalar, 1)?, get(&scalar, 1)?], [None, None]);
        Ok(())
    }
}
