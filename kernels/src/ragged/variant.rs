//! Ragged tensors as variants: a scalar variant that holds a whole ragged tensor, or a tensor of variants, each of which
//! holds one row.

use crate::numeric::copied::{CopiedElement, copied};
use crate::objects::rows;
use crate::plan::shape::integers;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::tensor::memory_limit;
use graph::{Code, DType, Shape, Tensor, Variant, VariantObject};

/// The ragged tensor that a variant holds.
#[derive(Debug)]
pub(crate) struct RaggedVariant {
    /// The row splits of each ragged axis, from the outermost on.
    pub(crate) splits: Vec<Tensor>,
    pub(crate) values: Tensor,
}

impl VariantObject for RaggedVariant {
    fn type_name(&self) -> &'static str {
        "RaggedTensorVariant"
    }

    fn tensors(&self) -> u64 {
        self.splits.len() as u64 + 1
    }
}

/// Makes the kernel of RaggedTensorToVariant.
pub(super) fn to_variant(init: &KernelInit<'_>) -> Result<Kernel> {
    let is_batched = init.attr::<bool>("batched_input")?;
    Kernel::sync(move |ctx| {
        let levels = ctx.num_inputs() - 1;
        let values = ctx.input(levels)?.clone();
        let splits = (0..levels).map(|i| ctx.input(i).cloned()).collect::<Result<Vec<_>>>()?;
        let out = if is_batched {
            let rows = row_variants(&splits, &values)?;
            let shape = Shape::new(&[rows.len()])?;
            Tensor::variants(rows.into_iter().map(Variant::new).collect(), shape)?
        } else {
            Tensor::variant(RaggedVariant { splits, values })
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns the rows of a ragged tensor, each as a ragged tensor with one axis less. Without row splits, the rows are
/// those of the values.
fn row_variants(splits: &[Tensor], values: &Tensor) -> Result<Vec<RaggedVariant>> {
    let Some((&count, inner)) = values.shape().dims().split_first() else {
        invalid!("Expected rt_dense_values to have at least one dimension, but it is a scalar");
    };
    let width: usize = inner.iter().product();
    if count as u64 > memory_limit() / 64 {
        return Err(Error::new(Code::ResourceExhausted, format!("{count} rows are too many for variants")));
    }
    let part = |start: usize, end: usize, dims: &[usize]| -> Result<Tensor> {
        rows::elements(values, start * width, (end - start) * width, Shape::new(dims)?)
    };
    let Some(first) = splits.first() else {
        let rows =
            (0..count).map(|i| Ok(RaggedVariant { splits: Vec::new(), values: part(i, i + 1, inner)? }));
        return rows.collect();
    };
    let split_type = first.dtype();
    let splits = splits.iter().map(|s| Ok(s.to_i64s()?)).collect::<Result<Vec<_>>>()?;
    for (level, of_level) in splits.iter().enumerate() {
        let below = splits.get(level + 1).map_or(count, |next| next.len().saturating_sub(1));
        super::splits::check_sorted(of_level, below)?;
    }
    let outer = splits[0].windows(2);
    outer
        .map(|pair| {
            let (mut start, mut end) = (pair[0] as usize, pair[1] as usize);
            let mut inner_splits = Vec::with_capacity(splits.len() - 1);
            for of_level in &splits[1..] {
                let shifted: Vec<i64> = of_level[start..=end].iter().map(|s| s - of_level[start]).collect();
                (start, end) = (of_level[start] as usize, of_level[end] as usize);
                inner_splits.push(integers(split_type, &shifted)?);
            }
            let dims = [&[end - start], inner].concat();
            Ok(RaggedVariant { splits: inner_splits, values: part(start, end, &dims)? })
        })
        .collect()
}

/// Makes the kernel of RaggedTensorFromVariant.
pub(super) fn from_variant(init: &KernelInit<'_>) -> Result<Kernel> {
    let (given, wanted) = (init.attr::<i64>("input_ragged_rank")?, init.attr::<i64>("output_ragged_rank")?);
    let (split_type, dtype) = (init.attr::<DType>("Tsplits")?, init.attr::<DType>("Tvalues")?);
    let join = copied!(dtype, E => Ok(joined::<E> as Join))?;
    Kernel::sync(move |ctx| {
        let encoded = ctx.input(0)?.clone();
        let rank = encoded.shape().rank() as i64;
        let levels = if given == -1 { wanted - rank } else { given };
        if levels < 0 {
            invalid!(
                "Inferred input_ragged_rank (output_ragged_rank - encoded_variant.dims()) must be >= 0, found \
                 output_ragged_rank: {wanted}, encoded_variant.dims(): {rank}, inferred input_ragged_rank: {levels}"
            );
        }
        if wanted != rank + levels {
            invalid!(
                "output_ragged_rank must be equal to input_ragged_rank + encoded_ragged.dims(); output_ragged_rank: \
                 {wanted}, input_ragged_rank: {levels}, encoded_variant.dims(): {rank}, "
            );
        }
        let components = components(&encoded, levels as usize, split_type, dtype)?;
        let outer = encoded.shape().dims();
        let (splits, values) = match (outer, &components[..]) {
            ([], [only]) => {
                let splits = only.splits.iter().map(|s| Ok(s.to_i64s()?)).collect::<Result<Vec<_>>>()?;
                (splits, only.values.clone())
            }
            _ => stacked(outer, levels as usize, &components, dtype, join)?,
        };
        for (i, of_level) in splits.iter().enumerate() {
            ctx.set_output(i, integers(split_type, of_level)?);
        }
        ctx.set_output(splits.len(), values);
        Ok(())
    })
}

/// Returns the ragged tensors that the elements of a variant tensor hold, all with `levels` row splits of `split_type`
/// and values of `dtype`.
fn components(
    encoded: &Tensor,
    levels: usize,
    split_type: DType,
    dtype: DType,
) -> Result<Vec<std::sync::Arc<RaggedVariant>>> {
    let all = encoded.as_variants()?.iter().enumerate().map(|(i, variant)| {
        let Some(component) = variant.get::<RaggedVariant>() else {
            invalid!(
                "Input Variant element at index {i} doesn't hold a RaggedTensorVariant: {}",
                variant.type_name()
            );
        };
        if component.values.dtype() != dtype {
            invalid!(
                "Expected values Tensor dtype: {dtype}, found: {}",
                component.values.dtype()
            );
        }
        if component.values.shape().rank() < 1 && levels > 0 {
            invalid!("Ragged values must have rank >= 1; encoded scalar element at index {i} has values Tensor: a scalar");
        }
        if component.splits.len() != levels {
            invalid!(
                "Encoded input RaggedTensorVariant at index {i} has ragged_rank: {}. Expected: {levels}",
                component.splits.len()
            );
        }
        for (at, splits) in component.splits.iter().enumerate() {
            if splits.dtype() != split_type {
                invalid!("Expected row_splits Tensor dtype: {split_type}, found: {}", splits.dtype());
            }
            if splits.shape().rank() != 1 || splits.num_elements() == 0 {
                invalid!("Ragged splits must have rank 1; encoded scalar element at index {i} has splits Tensor at split_index {at}: {}", splits.shape());
            }
        }
        variant.expect::<RaggedVariant>("a ragged tensor").map_err(Into::into)
    });
    all.collect()
}

type Join = fn(&[&Tensor], DType, Shape) -> Result<Tensor>;

/// Returns the tensor whose elements are those of `parts` in turn.
fn joined<E: CopiedElement>(parts: &[&Tensor], dtype: DType, shape: Shape) -> Result<Tensor> {
    let mut from = Vec::with_capacity(shape.num_elements());
    for part in parts {
        from.extend_from_slice(E::view(part)?);
    }
    if from.len() != shape.num_elements() {
        invalid!("{} values do not fit the shape {shape}", from.len());
    }
    E::build(dtype, shape, |out| {
        out.clone_from_slice(&from);
        Ok(())
    })
}

/// Stacks ragged tensors along outer axes of the sizes `outer`, and returns the row splits and the values of the
/// result. `components` are the ragged tensors in row-major order.
fn stacked(
    outer: &[usize],
    levels: usize,
    components: &[std::sync::Arc<RaggedVariant>],
    dtype: DType,
    join: Join,
) -> Result<(Vec<Vec<i64>>, Tensor)> {
    let mut splits: Vec<Vec<i64>> = Vec::with_capacity(outer.len() + levels);
    let mut blocks = 1i64;
    for pair in outer.windows(2) {
        blocks = blocks.saturating_mul(pair[0] as i64);
        if blocks as u64 > memory_limit() / 64 {
            let message = format!("row splits of {blocks} rows are too large");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        splits.push((0..=blocks).map(|block| block * pair[1] as i64).collect());
    }
    let mut inner = vec![vec![0i64]; levels + 1];
    for component in components {
        let mut rows = match component.splits.first() {
            Some(first) => first.num_elements() - 1,
            None => component.values.shape().dims().first().copied().unwrap_or(1),
        };
        for (level, ends) in inner.iter_mut().enumerate() {
            let last = ends[ends.len() - 1];
            if level == 0 {
                ends.push(last + rows as i64);
                continue;
            }
            let of_level = component.splits[level - 1].to_i64s()?;
            if of_level.len() != rows + 1 {
                invalid!("{} row splits of a ragged component do not fit its {rows} rows", of_level.len());
            }
            ends.extend(of_level[1..].iter().map(|end| last + end));
            rows = usize::try_from(of_level[rows]).unwrap_or(0);
        }
    }
    splits.extend(inner);
    let mut dims = vec![0usize];
    if let Some(first) = components.first() {
        let tail = |tensor: &Tensor| tensor.shape().dims().get(1..).unwrap_or_default().to_vec();
        dims.extend(tail(&first.values));
        for (i, component) in components.iter().enumerate() {
            if component.values.shape().rank() != first.values.shape().rank() {
                invalid!(
                    "Rank of values must match for all components; values shape at index 0: {}, values shape at \
                     index {i}: {}",
                    first.values.shape(),
                    component.values.shape()
                );
            }
            if component.values.shape().dims().get(1..) != first.values.shape().dims().get(1..) {
                invalid!(
                    "All flat_values must have compatible shapes. Shape at index 0: {}. Shape at index {i}: {}. If you \
                     are using tf.map_fn, then you may need to specify an explicit fn_output_signature with \
                     appropriate ragged_rank, and/or convert output tensors to RaggedTensors.",
                    first.values.shape(),
                    component.values.shape()
                );
            }
            dims[0] += component.values.shape().dims().first().copied().unwrap_or(1);
        }
    }
    let values: Vec<&Tensor> = components.iter().map(|c| &c.values).collect();
    Ok((splits, join(&values, dtype, Shape::new(&dims)?)?))
}

/// Makes the kernel of RaggedTensorToVariantGradient, which joins the gradients of rows. An empty variant is a row of
/// zeros.
pub(super) fn gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.attr::<DType>("Tvalues")?;
    let join = copied!(dtype, E => Ok(joined::<E> as Join))?;
    Kernel::sync(move |ctx| {
        let shape = Shape::from_i64(&ctx.input(2)?.to_i64s()?)?;
        let out = joined_rows(ctx, dtype, join, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn joined_rows(ctx: &KernelContext<'_>, dtype: DType, join: Join, shape: Shape) -> Result<Tensor> {
    let (encoded, splits) = (ctx.input(0)?, ctx.input(1)?);
    let row_width: usize = shape.dims().iter().skip(1).product();
    let variants = encoded.as_variants()?;
    let splits_are_given = splits.shape().rank() == 1 && encoded.shape().rank() > 0;
    let ends = splits.to_i64s()?;
    if splits_are_given && ends.len() != variants.len() + 1 {
        invalid!("{} row splits were given for {} rows", ends.len(), variants.len());
    }
    let mut parts = Vec::with_capacity(variants.len());
    for (i, variant) in variants.iter().enumerate() {
        parts.push(match variant.get::<RaggedVariant>() {
            Some(row) if row.values.dtype() == dtype => row.values.clone(),
            Some(row) => invalid!("Expected values Tensor dtype: {dtype}, found: {}", row.values.dtype()),
            None if variant.object().is_some() => {
                invalid!(
                    "Input Variant element at index {i} doesn't hold a RaggedTensorVariant: {}",
                    variant.type_name()
                )
            }
            None => {
                let count = match (splits_are_given, encoded.shape().rank()) {
                    (true, _) => usize::try_from(ends[i + 1] - ends[i]).ok(),
                    (false, 0) => shape.dims().first().copied().or(Some(1)),
                    _ => Some(1),
                };
                let size =
                    count.and_then(|n| n.checked_mul(row_width)).filter(|&n| n <= shape.num_elements());
                let Some(size) = size else { invalid!("row {i} does not fit the shape {shape}") };
                Tensor::zeros(dtype, Shape::new(&[size])?)?
            }
        });
    }
    join(&parts.iter().collect::<Vec<_>>(), dtype, shape)
}
