//! What a kernel makes of an operand, such as a filter laid out for products, kept from step to step while the operand
//! does not change: a model that only infers lays its weights out once.

use crate::error::Result;
use graph::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// What was made of the operand that a node saw last.
#[derive(Debug)]
pub(super) struct Kept<K, V>(Mutex<Seen<K, V>>);

#[derive(Debug)]
struct Seen<K, V> {
    /// [`Tensor::contents`] of the operand.
    contents: Option<u64>,
    /// With what else decides how it is made.
    made: Option<(K, Arc<V>)>,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Kept<K, V> {
        Kept(Mutex::new(Seen { contents: None, made: None }))
    }
}

impl<K: PartialEq, V> Kept<K, V> {
    /// What `make` makes of the operand, which `key` besides decides over. `None` for an operand that was not the one of
    /// the step before: nothing is to be kept of it, since in training no operand is seen twice.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn get(
        &self,
        operand: &Tensor,
        key: K,
        make: impl FnOnce() -> Result<V>,
    ) -> Result<Option<Arc<V>>> {
        let contents = operand.contents();
        {
            let mut seen = self.0.lock();
            if contents.is_none() || seen.contents != contents {
                *seen = Seen { contents, made: None };
                return Ok(None);
            }
            if let Some((of, made)) = &seen.made
                && *of == key
            {
                return Ok(Some(made.clone()));
            }
        }
        let made = Arc::new(make()?);
        let mut seen = self.0.lock();
        // Another step may have brought another operand meanwhile.
        if seen.contents == contents {
            seen.made = Some((key, made.clone()));
        }
        Ok(Some(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Shape;

    #[test]
    fn it_is_made_the_second_time_and_again_when_operand_or_key_change() -> Result<()> {
        let (kept, mut made) = (Kept::default(), 0);
        let mut get = |operand: &Tensor, key: u32| -> Result<Option<i32>> {
            let make = || {
                made += 1;
                Ok(made)
            };
            Ok(kept.get(operand, key, make)?.map(|value| *value))
        };
        let mut x = Tensor::full(1f32, Shape::new(&[10])?)?;
        assert_eq!([get(&x, 0)?, get(&x, 0)?, get(&x.clone(), 0)?], [None, Some(1), Some(1)]);
        assert_eq!([get(&x, 1)?, get(&x, 1)?], [Some(2), Some(2)]);
        x.values_mut::<f32>()?[0] = 2.0;
        assert_eq!([get(&x, 1)?, get(&x, 1)?], [None, Some(3)]);
        // Without storage of its own an operand is nothing to tell from others.
        let scalar = Tensor::scalar(1f32);
        assert_eq!([get(&scalar, 1)?, get(&scalar, 1)?], [None, None]);
        Ok(())
    }
}
