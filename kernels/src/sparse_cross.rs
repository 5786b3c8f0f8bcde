//! Crosses of features: for each row, all combinations of one feature per column; the last column varies fastest.

use super::sparse::{Coo, matrix};
use crate::numeric::farm::fingerprint64;
use crate::plan::shape::integers;
use crate::ragged::splits::check_whole;
use bytes::{Bytes, BytesMut};
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use siphasher::sip::SipHasher24;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SparseCross", &[("out_type", &[DType::String])], |_| {
        Kernel::sync(|ctx| joined(ctx, b"_X_"))
    }),
    KernelDef::of("SparseCross", &[("out_type", &[DType::Int64])], |init| {
        let buckets = init.attr::<i64>("num_buckets")?;
        let start = init.attr::<i64>("hash_key")? as u64;
        Kernel::sync(move |ctx| hashed(ctx, buckets, Some(start), &|_, feature| feature.fingerprint()))
    }),
    KernelDef::of("SparseCrossV2", &[], |_| {
        Kernel::sync(|ctx| {
            let separator = last_input(ctx, 1)?.as_strings()?[0].clone();
            joined(ctx, &separator)
        })
    }),
    KernelDef::of("SparseCrossHashed", &[], |_| {
        Kernel::sync(|ctx| {
            let buckets = last_input(ctx, 3)?.item::<i64>()?;
            let is_strong = last_input(ctx, 2)?.bytes()?[0] != 0;
            let salt = ctx.input(ctx.num_inputs() - 1)?;
            let &[first, second] = salt.values::<i64>()? else {
                invalid!("salt must have 2 elements, got shape {}", salt.shape());
            };
            let salt = SipHasher24::new_with_keys(first as u64, second as u64);
            let sparse = usize::try_from(ctx.node().attr::<i64>("N")?).unwrap_or(0);
            hashed(ctx, buckets, None, &|column, feature| match feature {
                Feature::Text(text) if is_strong => salt.hash(text),
                Feature::Number(number) if is_strong => salt.hash(&low_half(number)),
                Feature::Number(number) if column < sparse => fingerprint64(&low_half(number)),
                other => other.fingerprint(),
            })
        })
    }),
];

/// Returns input `num_inputs - from_end`, which must be a scalar.
fn last_input<'a>(ctx: &'a KernelContext<'_>, from_end: usize) -> Result<&'a Tensor> {
    let input = ctx.input(ctx.num_inputs() - from_end)?;
    if input.shape().rank() != 0 {
        invalid!("input {} must be a scalar, got shape {}", ctx.num_inputs() - from_end, input.shape());
    }
    Ok(input)
}

#[derive(Clone, Copy)]
enum Feature<'a> {
    Text(&'a Bytes),
    Number(i64),
}

/// Returns the low half of a number in memory, which is all that the hashes of `SparseCrossHashed` read.
fn low_half(number: i64) -> [u8; 4] {
    (number as u32).to_le_bytes()
}

impl Feature<'_> {
    fn fingerprint(self) -> u64 {
        match self {
            Feature::Text(text) => fingerprint64(text),
            Feature::Number(number) => number as u64,
        }
    }

    fn write(self, to: &mut BytesMut) {
        match self {
            Feature::Text(text) => to.extend_from_slice(text),
            Feature::Number(number) => to.extend_from_slice(number.to_string().as_bytes()),
        }
    }
}

/// The features of a column, and, for each row, the range of the row's features in `values`.
struct Column<'a> {
    values: &'a Tensor,
    rows: Vec<std::ops::Range<usize>>,
}

impl<'a> Column<'a> {
    fn sparse(coo: &Coo<'a>) -> Result<Column<'a>> {
        let &[count, _] = &coo.shape[..] else {
            invalid!("Input shapes should be vectors of 2 elements, but there are {}", coo.shape.len());
        };
        let mut rows = vec![0..0; row_count(count)?];
        let mut previous = 0;
        for (i, index) in coo.rows().enumerate() {
            let row = usize::try_from(index[0]).ok().and_then(|row| rows.get_mut(row));
            let Some(row) = row else {
                invalid!("Invalid value {} in sparse indices: there are {count} rows", index[0]);
            };
            if index[0] < previous {
                invalid!("the indices of a sparse feature column are not in order");
            }
            previous = index[0];
            *row = if row.start == row.end { i..i + 1 } else { row.start..i + 1 };
        }
        Ok(Column { values: coo.values, rows })
    }

    fn dense(values: &'a Tensor) -> Result<Column<'a>> {
        let &[count, width] = values.shape().dims() else {
            invalid!("Dense inputs should be a matrix but received shape {}", values.shape());
        };
        let rows = (0..row_count(count as i64)?).map(|row| row * width..(row + 1) * width);
        Ok(Column { values, rows: rows.collect() })
    }

    fn ragged(values: &'a Tensor, splits: &Tensor) -> Result<Column<'a>> {
        if values.shape().rank() != 1 || splits.shape().rank() != 1 {
            invalid!("tf.ragged.cross only supports inputs with rank=2.");
        }
        let splits = splits.to_i64s()?;
        check_whole(&splits, values.num_elements())?;
        let rows = splits.windows(2).map(|pair| pair[0] as usize..pair[1] as usize).collect();
        Ok(Column { values, rows })
    }

    fn feature(&self, i: usize) -> Result<Feature<'a>> {
        match self.values.dtype() {
            DType::String => Ok(Feature::Text(&self.values.as_strings()?[i])),
            _ => Ok(Feature::Number(self.values.values::<i64>()?[i])),
        }
    }
}

/// The maximum number of rows of a column; the number is limited because even empty rows take memory.
const MOST_ROWS: i64 = 1 << 28;

fn row_count(count: i64) -> Result<usize> {
    match usize::try_from(count) {
        Ok(rows) if count <= MOST_ROWS => Ok(rows),
        _ => {
            Err(Error::new(Code::ResourceExhausted, format!("a feature column of {count} rows is too large")))
        }
    }
}

fn columns<'a>(ctx: &'a KernelContext<'_>) -> Result<Vec<Column<'a>>> {
    let sparse = usize::try_from(ctx.node().attr::<i64>("N")?).unwrap_or(0);
    let dense = ctx.node().attr::<Vec<DType>>("dense_types")?.len();
    let values = ctx.node().attr::<Vec<DType>>("sparse_types")?.len();
    if values != sparse {
        invalid!("Expected {sparse} value inputs, got {values}");
    }
    let mut all = Vec::with_capacity(sparse + dense);
    for i in 0..sparse {
        let parts = [i, sparse + i, 2 * sparse + i].map(|at| ctx.input(at));
        let [indices, values, shape] = parts;
        all.push(Column::sparse(&Coo::new(indices?, values?, shape?)?)?);
    }
    for i in 0..dense {
        all.push(Column::dense(ctx.input(3 * sparse + i)?)?);
    }
    let Some(first) = all.first() else { invalid!("there is no feature column") };
    let rows = first.rows.len();
    if let Some(other) = all.iter().find(|column| column.rows.len() != rows) {
        invalid!("Expected batch size {rows}, got {}", other.rows.len());
    }
    Ok(all)
}

/// Calls `each` with the features of each cross, and returns the indices and the shape of the sparse output.
fn cross(ctx: &KernelContext<'_>, each: impl FnMut(&[Feature<'_>])) -> Result<(Tensor, Tensor)> {
    let columns = columns(ctx)?;
    let (mut indices, mut widest) = (Vec::new(), 0);
    cross_columns(ctx, &columns, each, |row, count| {
        // Each cross has an index of two numbers and a value; the size is checked before the memory is allocated.
        reserve(&mut indices, row, 2 * count)?;
        indices.extend((0..count).flat_map(|n| [row as i64, n as i64]));
        widest = widest.max(count);
        Ok(())
    })?;
    let count = indices.len() / 2;
    Ok((matrix(&indices, 2, count)?, Tensor::vector(&[columns[0].rows.len() as i64, widest as i64])?))
}

/// Reserves memory for the crosses of a row.
fn reserve<T>(values: &mut Vec<T>, row: usize, count: usize) -> Result<()> {
    values.try_reserve(count).map_err(|_| {
        Error::new(Code::ResourceExhausted, format!("OOM for {count} elements of the crosses of row {row}"))
    })
}

/// Calls `start_row` with each row and the number of its crosses, and then `each` with the features of each cross.
fn cross_columns(
    ctx: &KernelContext<'_>,
    columns: &[Column<'_>],
    mut each: impl FnMut(&[Feature<'_>]),
    mut start_row: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let mut features = Vec::with_capacity(columns.len());
    let mut total = 0usize;
    for row in 0..columns.first().map_or(0, |column| column.rows.len()) {
        let ranges: Vec<_> = columns.iter().map(|column| column.rows[row].clone()).collect();
        let count = ranges.iter().try_fold(1usize, |count, range| count.checked_mul(range.len()));
        let all = count.and_then(|count| total.checked_add(count));
        let (Some(count), Some(all)) = (count, all.filter(|&all| Shape::new(&[all, 2]).is_ok())) else {
            invalid!("the crosses of row {row} are too many");
        };
        total = all;
        start_row(row, count)?;
        let mut at: Vec<usize> = ranges.iter().map(|range| range.start).collect();
        for n in 0..count {
            if n % 4096 == 0 {
                ctx.check_cancelled()?;
            }
            features.clear();
            for (column, &i) in columns.iter().zip(&at) {
                features.push(column.feature(i)?);
            }
            each(&features);
            for (at, range) in at.iter_mut().zip(&ranges).rev() {
                *at += 1;
                if *at < range.end {
                    break;
                }
                *at = range.start;
            }
        }
    }
    Ok(())
}

/// Returns the features of a cross, joined.
fn joined_features(features: &[Feature<'_>], separator: &[u8]) -> Bytes {
    let mut text = BytesMut::new();
    for (i, feature) in features.iter().enumerate() {
        if i > 0 {
            text.extend_from_slice(separator);
        }
        feature.write(&mut text);
    }
    text.freeze()
}

/// Returns the bucket of a cross.
fn bucket(hashes: impl Iterator<Item = u64>, buckets: u64) -> i64 {
    (hashes.reduce(join_fingerprints).unwrap_or(0) % buckets) as i64
}

/// Returns the number of hash buckets; 0 requests the largest possible number.
fn bucket_count(buckets: i64) -> u64 {
    match u64::try_from(buckets) {
        Ok(buckets) if buckets > 0 => buckets,
        _ => i64::MAX as u64,
    }
}

/// Makes the kernel of RaggedCross: the crosses of each row of ragged, sparse and dense columns as a ragged tensor.
pub(crate) fn ragged_cross(init: &KernelInit<'_>) -> Result<Kernel> {
    let order = init.attr::<String>("input_order")?;
    let counts = RaggedInputs {
        ragged: init.attr::<Vec<DType>>("ragged_values_types")?.len(),
        splits: init.attr::<Vec<DType>>("ragged_splits_types")?.len(),
        sparse: usize::try_from(init.attr::<i64>("Nsparse")?).unwrap_or(0),
        sparse_values: init.attr::<Vec<DType>>("sparse_values_types")?.len(),
        dense: init.attr::<Vec<DType>>("dense_types")?.len(),
    };
    let buckets = bucket_count(init.attr::<i64>("num_buckets")?);
    let start = init.attr::<i64>("hash_key")? as u64;
    let (values_type, splits_type) = (init.output_type(0), init.output_type(1));
    Kernel::sync(move |ctx| {
        let columns = counts.columns(ctx, &order)?;
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        let mut splits = vec![0i64];
        let add = |features: &[Feature<'_>]| match values_type {
            DType::String => texts.push(joined_features(features, b"_X_")),
            _ => {
                let hashes = features.iter().map(|feature| feature.fingerprint());
                numbers.push(bucket(std::iter::once(start).chain(hashes), buckets));
            }
        };
        cross_columns(ctx, &columns, add, |_, count| {
            splits.push(splits.last().copied().unwrap_or(0) + count as i64);
            Ok(())
        })?;
        let values = match values_type {
            DType::String => {
                let shape = Shape::new(&[texts.len()])?;
                Tensor::strings(texts, shape)?
            }
            _ => Tensor::vector(&numbers)?,
        };
        ctx.set_output(0, values);
        ctx.set_output(1, integers(splits_type, &splits)?);
        Ok(())
    })
}

/// The number of inputs of RaggedCross of each kind.
struct RaggedInputs {
    ragged: usize,
    splits: usize,
    sparse: usize,
    sparse_values: usize,
    dense: usize,
}

impl RaggedInputs {
    /// Returns the columns in the order of `order`, which has one letter per column: `R` (ragged), `S` (sparse) or `D`
    /// (dense).
    fn columns<'a>(&self, ctx: &'a KernelContext<'_>, order: &str) -> Result<Vec<Column<'a>>> {
        if self.ragged != self.splits {
            invalid!("ragged values and splits must have the same length");
        }
        if self.sparse != self.sparse_values {
            invalid!("sparse indices and values must have the same length");
        }
        if order.len() != self.ragged + self.sparse + self.dense {
            invalid!("Invalid length for input_order");
        }
        let first_sparse = 2 * self.ragged;
        let first_dense = first_sparse + 3 * self.sparse;
        let mut ragged = (0..self.ragged).map(|i| Column::ragged(ctx.input(i)?, ctx.input(self.ragged + i)?));
        let mut sparse = (0..self.sparse).map(|i| {
            let [indices, values, shape] =
                [0, 1, 2].map(|part| ctx.input(first_sparse + part * self.sparse + i));
            Column::sparse(&Coo::new(indices?, values?, shape?)?)
        });
        let mut dense = (0..self.dense).map(|i| Column::dense(ctx.input(first_dense + i)?));
        let mut all = Vec::with_capacity(order.len());
        for letter in order.chars() {
            let column = match letter {
                'R' => ragged.next(),
                'S' => sparse.next(),
                'D' => dense.next(),
                other => invalid!("Unexpected input_order value {other}"),
            };
            match column {
                Some(column) => all.push(column?),
                None => invalid!("input_order {order} has more letters {letter} than there are such inputs"),
            }
        }
        if let Some(first) = all.first()
            && all.iter().any(|column: &Column<'_>| column.rows.len() != first.rows.len())
        {
            invalid!("inputs must all have the same batch dimension size.");
        }
        Ok(all)
    }
}

fn joined(ctx: &mut KernelContext<'_>, separator: &[u8]) -> Result<()> {
    let mut values = Vec::new();
    let (indices, shape) = cross(ctx, |features| {
        values.push(joined_features(features, separator));
    })?;
    let count = Shape::new(&[values.len()])?;
    ctx.set_output(0, indices);
    ctx.set_output(1, Tensor::strings(values, count)?);
    ctx.set_output(2, shape);
    Ok(())
}

/// Outputs the hash of each cross. `start`, if given, is the hash with which the first feature's hash is combined.
fn hashed(
    ctx: &mut KernelContext<'_>,
    buckets: i64,
    start: Option<u64>,
    hash: &dyn Fn(usize, Feature<'_>) -> u64,
) -> Result<()> {
    let buckets = bucket_count(buckets);
    let mut values = Vec::new();
    let (indices, shape) = cross(ctx, |features| {
        let hashes = features.iter().enumerate().map(|(column, &feature)| hash(column, feature));
        values.push(bucket(start.into_iter().chain(hashes), buckets));
    })?;
    ctx.set_output(0, indices);
    ctx.set_output(1, Tensor::vector(&values)?);
    ctx.set_output(2, shape);
    Ok(())
}

/// Combines two fingerprints by multiplying and mixing, exactly like TensorFlow, because models depend on the hashes.
fn join_fingerprints(first: u64, second: u64) -> u64 {
    const BY: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |hash: u64| hash ^ hash >> 47;
    let both = (first ^ BY ^ mix(second.wrapping_mul(BY)).wrapping_mul(BY)).wrapping_mul(BY);
    mix(mix(both).wrapping_mul(BY))
}
