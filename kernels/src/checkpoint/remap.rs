//! Rows and columns of a matrix in a checkpoint, moved to where another vocabulary has their words.

use super::single;
use crate::objects::io::{blocking, path_of};
use crate::objects::table::text_file::TextFile;
use checkpoint::{SliceSpec, bundle};
use device::kernel::{AsyncContext, Kernel, KernelInit};
use device::value::Value;
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

/// The index of a row or column that the checkpoint lacks.
const MISSING: i64 = -1;

fn count(init: &KernelInit<'_>, attr: &str) -> Result<usize> {
    let value = init.attr::<i64>(attr)?;
    usize::try_from(value).map_err(|_| Error::invalid(format!("{attr} must not be negative, got {value}")))
}

/// Returns the lines of a vocabulary, all or the first `size`.
fn vocabulary(ctx: &AsyncContext, i: usize, name: &str, size: i64) -> Result<Tensor> {
    let path = ctx.input(i)?;
    let [path] = path.as_strings()? else {
        invalid!("{name} should be a single string, but got {}", path.shape());
    };
    let file = TextFile { key_index: -2, value_index: -1, vocab_size: size, delimiter: b'\t', offset: 0 };
    Ok(file.read(&path_of(path).to_string_lossy(), DType::String, DType::Int64)?.0)
}

/// Makes the kernel of GenerateVocabRemapping: the line in the old vocabulary of each word of a part of the new one.
pub(super) fn vocabulary_remapping(init: &KernelInit<'_>) -> Result<Kernel> {
    let (offset, len) = (count(init, "new_vocab_offset")?, count(init, "num_new_vocab")?);
    let old_size = init.attr::<i64>("old_vocab_size")?;
    blocking(move |ctx| {
        let new = vocabulary(ctx, 0, "new_vocab_file", -1)?;
        let Some(new) = offset.checked_add(len).and_then(|end| new.as_strings().ok()?.get(offset..end))
        else {
            invalid!("lookup table size must be larger than last new vocab entry's line");
        };
        let old = vocabulary(ctx, 1, "old_vocab_file", old_size)?;
        let mut lines = FxHashMap::default();
        for (line, word) in (0i64..).zip(old.as_strings()?) {
            if let Some(earlier) = lines.insert(word.clone(), line) {
                return Err(Error::new(
                    graph::Code::FailedPrecondition,
                    format!(
                        "HashTable has different value for same key. Key {} has {earlier} and trying to add value \
                         {line}",
                        String::from_utf8_lossy(word)
                    ),
                ));
            }
        }
        let remapping: Vec<i64> = new.iter().map(|word| *lines.get(word).unwrap_or(&MISSING)).collect();
        let present = remapping.iter().filter(|&&line| line != MISSING).count();
        Ok(smallvec![
            Value::Host(Tensor::vector(&remapping)?),
            Value::Host(Tensor::scalar(i32::try_from(present).unwrap_or(i32::MAX))),
        ])
    })
}

/// Makes the kernel of LoadAndRemapMatrix: a matrix whose rows and columns are those of a matrix in a checkpoint, in
/// another order, and new values in the rows and columns that the checkpoint lacks.
pub(super) fn matrix(init: &KernelInit<'_>) -> Result<Kernel> {
    let (rows, columns) = (count(init, "num_rows")?, count(init, "num_cols")?);
    let most = usize::try_from(init.attr::<i64>("max_rows_in_memory")?).ok().filter(|&most| most > 0);
    blocking(move |ctx| remapped(ctx, [rows, columns], most))
}

fn remapped(
    ctx: &AsyncContext,
    [rows, columns]: [usize; 2],
    most: Option<usize>,
) -> Result<SmallVec<[Value; 4]>> {
    let row_map = index_map(ctx.input(2)?, "row_remapping")?;
    if row_map.len() != rows {
        invalid!("Size of row_remapping is {} instead of being equal to num_rows={rows}", row_map.len());
    }
    let column_map = index_map(ctx.input(3)?, "col_remapping")?;
    let keeps_columns = column_map.is_empty();
    if !keeps_columns && column_map.len() != columns {
        invalid!(
            "Provided col_remapping, but its size is {} instead of being equal to num_cols={columns}",
            column_map.len()
        );
    }
    let name = ctx.input(1)?;
    let path = ctx.input(0)?;
    let [path_text] = path.as_strings()? else {
        invalid!(
            "The `ckpt_path` tensor must have exactly one element, got tensor of shape {}",
            path.shape()
        );
    };
    let name = match name.as_strings()? {
        [_] => single(ctx, 1, "old_tensor_name")?,
        _ => invalid!(
            "The `old_tensor_name` tensor must have exactly one element, got tensor of shape {}",
            name.shape()
        ),
    };
    let mut reader = bundle::Reader::open(path_of(path_text))?;
    let shown = String::from_utf8_lossy(name).into_owned();
    let (dtype, shape) = reader.lookup(name)?;
    if dtype != DType::Float {
        invalid!("Tensor {shown} has invalid type {dtype} instead of expected type float");
    }
    let &[old_rows, old_columns] = shape.dims() else {
        invalid!(
            "Tensor {shown} has shape {shape} of invalid rank {} instead of expected shape of rank 2.",
            shape.rank()
        );
    };
    if keeps_columns && old_columns != columns {
        invalid!(
            "Tensor {shown} has shape {shape}, where the size of its 2nd dimension is {old_columns} instead of being \
             equal to num_cols={columns}"
        );
    }
    if let Some(row) = row_map.iter().flatten().find(|&&row| row >= old_rows) {
        return Err(Error::internal(format!(
            "row_remapping has row {row}, but tensor {shown} has shape {shape}"
        )));
    }
    if let Some(column) = column_map.iter().flatten().find(|&&column| column >= old_columns) {
        invalid!("col_remapping has column {column}, but tensor {shown} has shape {shape}");
    }
    let out_shape = Shape::new(&[rows, columns])?;
    let mut out = Tensor::zeros(DType::Float, out_shape)?;
    let values = out.values_mut::<f32>()?;

    let mut wanted: Vec<(usize, usize)> =
        row_map.iter().enumerate().filter_map(|(to, from)| from.map(|from| (from, to))).collect();
    wanted.sort_unstable();
    let mut rest = &wanted[..];
    while let Some(&(first, _)) = rest.first() {
        ctx.step.cancellation.check()?;
        // The rows of one read: at most so many, or all.
        let end = most.map_or(usize::MAX, |most| first.saturating_add(most));
        let (part, later) = rest.split_at(rest.partition_point(|&(from, _)| from < end));
        rest = later;
        let count = part.last().map_or(0, |&(last, _)| last + 1 - first);
        let spec = SliceSpec::parse(&format!("{old_rows} {old_columns} {first},{count}:-"))?;
        let stored = reader.read_slice(name, &spec)?;
        let stored = stored.values::<f32>()?;
        for &(from, to) in part {
            let old = &stored[(from - first) * old_columns..][..old_columns];
            let new = &mut values[to * columns..][..columns];
            if keeps_columns {
                new.copy_from_slice(old);
                continue;
            }
            for (value, from) in new.iter_mut().zip(&column_map) {
                if let Some(from) = from {
                    *value = old[*from];
                }
            }
        }
    }
    let initial = ctx.input(4)?.values::<f32>()?;
    let mut unused = initial.iter();
    for (row, old) in row_map.iter().enumerate() {
        for column in 0..columns {
            if old.is_some() && (keeps_columns || column_map[column].is_some()) {
                continue;
            }
            let Some(&value) = unused.next() else {
                invalid!(
                    "initializing_values contained {} elements, but more missing values remain.",
                    initial.len()
                );
            };
            values[row * columns + column] = value;
        }
    }
    if unused.len() > 0 {
        invalid!(
            "initializing_values contained {} elements, but only {} elements were used to fill in missing values.",
            initial.len(),
            initial.len() - unused.len()
        );
    }
    Ok(smallvec![Value::Host(out)])
}

/// Returns the old index of each new one, or `None` where it is missing.
fn index_map(map: &Tensor, name: &str) -> Result<Vec<Option<usize>>> {
    if map.shape().rank() != 1 {
        invalid!("The `{name}` tensor must be 1-D, got a tensor of shape {}", map.shape());
    }
    let mut places = FxHashMap::default();
    let old = |(new, &old): (usize, &i64)| {
        let Ok(old) = usize::try_from(old) else { return Ok(None) };
        match places.insert(old, new) {
            Some(other) => Err(Error::unimplemented(format!(
                "Old ID {old} is mapped to both new ID {other} and {new}, which is not supported."
            ))),
            None => Ok(Some(old)),
        }
    };
    map.values::<i64>()?.iter().enumerate().map(old).collect()
}
