//! A reader of V1 checkpoints that reads all files matching a pattern as one checkpoint.

use super::META_KEY;
use crate::bundle::SliceAssembler;
use crate::error::{Error, Result, invalid};
use crate::pattern;
use crate::proto::{Fields, Malformed};
use crate::slice::{SliceSpec, TensorSlice, intersect, read_shape, slice_field};
use crate::table::Table;
use crate::tensor::read_values;
use graph::{Code, DType, Shape, Tensor};
use std::collections::BTreeMap;

/// The files of a checkpoint and the metadata of their tensors.
#[derive(Debug)]
pub struct Reader {
    pattern: String,
    tensors: BTreeMap<Vec<u8>, StoredTensor>,
    files: Vec<Table>,
}

#[derive(Debug)]
struct StoredTensor {
    dtype: DType,
    shape: Shape,
    /// The slices, each with the index of its file.
    slices: Vec<(TensorSlice, usize)>,
}

impl Reader {
    /// Opens all files that match a pattern.
    ///
    /// # Errors
    /// `NotFound` if no file matches, `DataLoss` if a file is damaged.
    pub fn open(pattern: &str) -> Result<Reader> {
        let paths = pattern::matching(pattern)?;
        if paths.is_empty() {
            let message = format!(
                "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {pattern}"
            );
            return Err(Error::Invalid { code: Code::NotFound, message });
        }
        let mut reader = Reader { pattern: pattern.to_owned(), tensors: BTreeMap::new(), files: Vec::new() };
        for path in paths {
            let mut table = Table::open(path)?;
            let meta = table.get(META_KEY)?.ok_or_else(|| table.corrupt("has no header"))?;
            let number = reader.files.len();
            match reader.add(&meta, number) {
                Ok(true) => reader.files.push(table),
                Ok(false) => return Err(table.corrupt("has tensors of other shapes than the files before")),
                Err(Malformed) => return Err(table.corrupt("malformed header")),
            }
        }
        Ok(reader)
    }

    /// Adds the metadata of a file. Returns `false` if the metadata contradicts that of another file.
    fn add(&mut self, meta: &[u8], file: usize) -> Result<bool, Malformed> {
        for field in Fields::of(meta) {
            let (1, meta) = field? else { continue };
            for field in meta.fields()? {
                let (1, tensor) = field? else { continue };
                let (mut name, mut dtype, mut slices) = (&b""[..], 0, Vec::new());
                let mut shape = Shape::scalar();
                for field in tensor.fields()? {
                    match field? {
                        (1, value) => name = value.bytes()?,
                        (2, value) => shape = read_shape(value.fields()?)?,
                        (3, value) => dtype = value.int()?,
                        (4, value) => slices.push((slice_field(value)?, file)),
                        _ => {}
                    }
                }
                let dtype = i32::try_from(dtype).ok().and_then(DType::from_number).ok_or(Malformed)?;
                let stored = self.tensors.entry(name.to_owned());
                let stored = stored.or_insert_with(|| StoredTensor {
                    dtype,
                    shape: shape.clone(),
                    slices: Vec::new(),
                });
                if stored.dtype != dtype || stored.shape != shape {
                    return Ok(false);
                }
                stored.slices.append(&mut slices);
            }
        }
        Ok(true)
    }

    /// Iterates over the tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&[u8], DType, &Shape)> {
        self.tensors.iter().map(|(name, stored)| (name.as_slice(), stored.dtype, &stored.shape))
    }

    /// Returns the type and shape of a tensor.
    ///
    /// # Errors
    /// `NotFound` if the checkpoint has no tensor of this name.
    pub fn lookup(&self, name: &[u8]) -> Result<(DType, &Shape)> {
        self.stored(name).map(|stored| (stored.dtype, &stored.shape))
    }

    fn stored(&self, name: &[u8]) -> Result<&StoredTensor> {
        self.tensors.get(name).ok_or_else(|| Error::Invalid {
            code: Code::NotFound,
            message: format!(
                "Tensor name \"{}\" not found in checkpoint files {}",
                String::from_utf8_lossy(name),
                self.pattern
            ),
        })
    }

    /// Reads a whole tensor.
    pub fn read(&mut self, name: &[u8]) -> Result<Tensor> {
        let shape = self.stored(name)?.shape.clone();
        let slice = TensorSlice::full(shape.rank());
        self.read_slice(name, &SliceSpec { shape, slice })
    }

    /// Reads a slice of a tensor.
    pub fn read_slice(&mut self, name: &[u8], spec: &SliceSpec) -> Result<Tensor> {
        let stored = self.stored(name)?;
        if stored.shape != spec.shape {
            invalid!(
                "Shape in shape_and_slice spec does not match the shape in the save file: {}, save file shape: {}",
                spec.shape,
                stored.shape
            );
        }
        let (dtype, slices) = (stored.dtype, stored.slices.clone());
        let mut part = SliceAssembler::new(dtype, spec)?;
        for (slice, file) in &slices {
            let table = &mut self.files[*file];
            let wrong = |table: &Table| {
                table.corrupt(format!("slice {slice} of tensor {} is damaged", String::from_utf8_lossy(name)))
            };
            let at = slice.ranges(&spec.shape).map_err(|_| wrong(table))?;
            if intersect(&at, part.ranges(), |_, _, _| {}) == 0 {
                continue;
            }
            let value = table.get(&slice.key(name))?.ok_or_else(|| wrong(table))?;
            let tensor =
                decode(&value, dtype, slice.shape_in(&spec.shape)?).map_err(|Malformed| wrong(table))?;
            part.copy(&tensor, slice)?;
        }
        part.finish(name)
    }
}

/// Decodes the tensor in a `SavedTensorSlices` message.
fn decode(value: &[u8], dtype: DType, shape: Shape) -> Result<Tensor, Malformed> {
    for field in Fields::of(value) {
        let (2, saved) = field? else { continue };
        for field in saved.fields()? {
            if let (3, tensor) = field? {
                return read_values(tensor.bytes()?, dtype, shape);
            }
        }
    }
    Err(Malformed)
}
