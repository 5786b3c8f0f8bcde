//! Shuffles of indices without a table.

use crate::numeric::dispatch::dispatch;
use crate::numeric::index_permutation::IndexPermutation;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::{DType, Element, Shape, Tensor};
use num_traits::AsPrimitive;

/// Makes the kernel of RandomIndexShuffle: the places of indices in random orders of the numbers up to a greatest one.
pub(in super::super) fn index_shuffle(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, rounds) = (init.output_type(0), init.attr::<i64>("rounds")?);
    let Some(rounds) = usize::try_from(rounds).ok().filter(|&n| (4..=1 << 16).contains(&n) && n % 2 == 0)
    else {
        invalid!("rounds must be an even number of at least 4, got {rounds}");
    };
    dispatch!(word, dtype, T => Kernel::sync(move |ctx| shuffle::<T>(ctx, rounds)))
}

fn shuffle<T: Element + AsPrimitive<i128>>(ctx: &mut KernelContext<'_>, rounds: usize) -> Result<()>
where
    u64: AsPrimitive<T>,
{
    let (index, seed, greatest) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if index.shape().rank() > 1 || greatest.shape().rank() > 1 {
        invalid!(
            "index and max_index must be scalars or vectors, got {} and {}",
            index.shape(),
            greatest.shape()
        );
    }
    let seeds = match *seed.shape().dims() {
        [3] => 1,
        [rows, 3] => rows,
        _ => {
            invalid!("Seed must be a vector of size [3] or a matrix of size [n, 3] but got {}.", seed.shape())
        }
    };
    let is_vector = index.shape().rank() + greatest.shape().rank() > 0 || seed.shape().rank() > 1;
    let sizes = [index.num_elements(), greatest.num_elements(), seeds];
    let count = sizes.into_iter().find(|&size| size != 1).unwrap_or(1);
    if sizes.iter().any(|&size| size != 1 && size != count) {
        invalid!("Index, seed, and maxval must have the same size or be scalars, got sizes {sizes:?}");
    }
    let words: Vec<u32> = dispatch!(word, seed.dtype(), S => {
        Ok::<_, device::Error>(seed.values::<S>()?.iter().map(|&word| AsPrimitive::<u32>::as_(word)).collect())
    })?;
    let (keys, _) = words.as_chunks::<3>();
    let (index, greatest) = (index.values::<T>()?, greatest.values::<T>()?);
    let mut out: Vec<T> = Vec::with_capacity(count);
    let mut made: Option<([u32; 3], u64, IndexPermutation)> = None;
    for i in 0..count {
        let of = |values: &[T]| -> i128 { values[if values.len() == 1 { 0 } else { i }].as_() };
        let (at, most, key) = (of(index), of(greatest), keys[if seeds == 1 { 0 } else { i }]);
        if at < 0 {
            invalid!("index must be >= 0 but was {at}");
        }
        if most < at {
            invalid!("max_index must be >= index, but {most} < {at}");
        }
        let (at, most) = (at as u64, most as u64);
        let known = made.as_ref().is_some_and(|(k, limit, _)| (*k, *limit) == (key, most));
        if !known {
            made = Some((key, most, IndexPermutation::new(key, most, rounds)));
        }
        if let Some((_, _, permutation)) = &made {
            out.push(permutation.place_of(at).as_());
        }
    }
    let shape = if is_vector { Shape::new(&[count])? } else { Shape::scalar() };
    ctx.set_output(0, Tensor::from_slice(&out, shape)?);
    Ok(())
}

/// The types of the indices.
pub(in super::super) const SHUFFLED: &[(&str, &[DType])] =
    &[("dtype", crate::numeric::dispatch::WORDS), ("Tseed", crate::numeric::dispatch::WORDS)];
