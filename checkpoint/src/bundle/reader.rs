//! A reader of bundles that reads whole tensors and slices, regardless of the slices in which they are
//! stored.

use super::content::{self, ContentError};
use super::entry::{Entry, HEADER_KEY, Header};
use super::{data_file, index_file};
use crate::checksum;
use crate::error::{Error, Result, invalid};
use crate::slice::{SliceSpec, TensorSlice, intersect};
use crate::store::{self, Readable};
use crate::table::Table;
use graph::{DType, Shape, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A bundle with its index in memory and its data files opened on demand.
#[derive(Debug)]
pub struct Reader {
    prefix: PathBuf,
    pub(super) shards: u32,
    pub(super) entries: BTreeMap<Vec<u8>, Entry>,
    files: BTreeMap<u32, (PathBuf, Box<dyn Readable>)>,
}

impl Reader {
    /// Opens a bundle and reads its index.
    ///
    /// # Errors
    /// `NotFound` if the index does not exist, `DataLoss` if it is damaged, `Unimplemented` for an
    /// unsupported format.
    pub fn open(prefix: impl AsRef<Path>) -> Result<Reader> {
        let prefix = prefix.as_ref().to_owned();
        let mut table = Table::open(index_file(&prefix))?;
        let path = table.path().to_owned();
        let mut header = None;
        let mut entries = BTreeMap::new();
        table.for_each(|key, value| {
            if key == HEADER_KEY {
                header = Some(Header::decode(value).map_err(|_| Error::corrupt(&path, "malformed header"))?);
                return Ok(());
            }
            let entry = Entry::decode(value)
                .map_err(|_| Error::corrupt(&path, format!("malformed entry of {}", shown(key))))?;
            entries.insert(key.to_owned(), entry);
            Ok(())
        })?;
        let header = header.ok_or_else(|| table.corrupt("has no header"))?;
        if header.is_big_endian {
            return Err(Error::unimplemented(format!(
                "{}: a checkpoint of big-endian numbers",
                path.display()
            )));
        }
        if !header.is_readable() {
            return Err(Error::unimplemented(format!(
                "{}: a checkpoint for readers of version {} and later",
                path.display(),
                header.min_consumer
            )));
        }
        Ok(Reader { prefix, shards: header.shards, entries, files: BTreeMap::new() })
    }

    /// Iterates over the tensors in the order of their names. A tensor stored in slices occurs once.
    pub fn tensors(&self) -> impl Iterator<Item = (&[u8], DType, &Shape)> {
        self.entries
            .iter()
            .filter(|(key, _)| !is_slice_key(key))
            .map(|(key, entry)| (key.as_slice(), entry.dtype, &entry.shape))
    }

    /// Returns the type and shape of a tensor.
    ///
    /// # Errors
    /// `NotFound` if the bundle has no tensor of this name.
    pub fn lookup(&self, name: &[u8]) -> Result<(DType, &Shape)> {
        self.entry(name).map(|entry| (entry.dtype, &entry.shape))
    }

    fn entry(&self, name: &[u8]) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| Error::MissingKey { key: shown(name) })
    }

    /// Reads a whole tensor.
    pub fn read(&mut self, name: &[u8]) -> Result<Tensor> {
        let shape = self.entry(name)?.shape.clone();
        let slice = TensorSlice::full(shape.rank());
        self.read_slice(name, &SliceSpec { shape, slice })
    }

    /// Reads a slice of a tensor.
    ///
    /// # Errors
    /// `NotFound` if the tensor or its data file does not exist, `DataLoss` if the data is damaged,
    /// `InvalidArgument` if the shape differs from the stored one or the stored slices do not cover the
    /// requested slice.
    pub fn read_slice(&mut self, name: &[u8], spec: &SliceSpec) -> Result<Tensor> {
        let whole = self.entry(name)?.clone();
        if whole.shape != spec.shape {
            invalid!(
                "tensor_name = {}; shape in shape_and_slice spec {} does not match the shape stored in checkpoint: {}",
                shown(name),
                spec.shape,
                whole.shape
            );
        }
        if whole.slices.is_empty() {
            let tensor = self.load(name, &whole)?;
            if spec.slice.covers(&spec.shape) {
                return Ok(tensor);
            }
            let mut part = SliceAssembler::new(whole.dtype, spec)?;
            part.copy(&tensor, &TensorSlice::full(whole.shape.rank()))?;
            return part.finish(name);
        }
        let mut part = SliceAssembler::new(whole.dtype, spec)?;
        for slice in &whole.slices {
            let at = slice
                .ranges(&whole.shape)
                .map_err(|_| self.wrong(name, "has a slice that is not within it"))?;
            if intersect(&at, &part.ranges, |_, _, _| {}) == 0 {
                continue;
            }
            let entry = self.entries.get(&slice.key(name));
            let entry = entry.ok_or_else(|| self.wrong(name, &format!("lacks its slice {slice}")))?.clone();
            if entry.dtype != whole.dtype || entry.shape.iter().ne(at.iter().map(|(_, len)| len)) {
                return Err(
                    self.wrong(name, &format!("has a slice {slice} of {} {}", entry.dtype, entry.shape))
                );
            }
            let tensor = self.load(name, &entry)?;
            if at == part.ranges {
                return Ok(tensor);
            }
            part.copy(&tensor, slice)?;
        }
        part.finish(name)
    }

    /// Checks that the data files are long enough for all index entries. The contents are checked when they
    /// are read.
    ///
    /// # Errors
    /// `NotFound` if a data file does not exist, `DataLoss` if it is truncated.
    pub fn check_extents(&mut self) -> Result<()> {
        let mut ends = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| entry.slices.is_empty()) {
            let end = ends.entry(entry.shard).or_insert(0);
            *end = entry.offset.saturating_add(entry.size).max(*end);
        }
        for (shard, end) in ends {
            let (path, file) = self.data(shard)?;
            if file.size()? < end {
                return Err(Error::corrupt(&*path, format!("ends before byte {end}")));
            }
        }
        Ok(())
    }

    /// Reads the tensor of an index entry.
    fn load(&mut self, name: &[u8], entry: &Entry) -> Result<Tensor> {
        let (path, file) = self.data(entry.shard)?;
        let size = file.size()?;
        let wrong = |what: &str| Error::corrupt(&*path, format!("tensor {} {what}", shown(name)));
        if entry.offset.checked_add(entry.size).is_none_or(|end| end > size) {
            return Err(wrong("is beyond the end of the file"));
        }
        let size = usize::try_from(entry.size).map_err(|_| wrong("is too large"))?;
        let mismatch = |stored: u32, actual: u32| {
            wrong(&format!(
                "is damaged. Checksum does not match: stored {} vs. calculated on the restored bytes {}",
                checksum::unmask(stored),
                checksum::unmask(actual)
            ))
        };
        if matches!(entry.dtype, DType::String | DType::Variant) {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size).map_err(|_| wrong("is too large for memory"))?;
            bytes.resize(size, 0);
            file.read_at(entry.offset, &mut bytes)?;
            let decoded = match entry.dtype {
                DType::String => content::strings(bytes.into(), &entry.shape, entry.checksum),
                _ => content::variants(&bytes.into(), &entry.shape, entry.checksum),
            };
            return decoded.map_err(|error| match error {
                ContentError::Layout(what) => wrong(what),
                ContentError::Checksum { stored, actual } => mismatch(stored, actual),
                ContentError::Tensor(error) => error.into(),
                ContentError::Unsupported(error) => error,
            });
        }
        let Some(element) = entry.dtype.size() else {
            return Err(Error::unimplemented(format!(
                "tensor {} of {} in a checkpoint",
                shown(name),
                entry.dtype
            )));
        };
        if entry.shape.num_elements().checked_mul(element) != Some(size) {
            return Err(wrong(&format!("has {size} bytes, which make no {} {}", entry.dtype, entry.shape)));
        }
        let mut tensor = Tensor::unspecified(entry.dtype, entry.shape.clone())?;
        file.read_at(entry.offset, tensor.bytes_mut()?)?;
        let actual = checksum::masked(tensor.bytes()?);
        if actual != entry.checksum {
            return Err(mismatch(entry.checksum, actual));
        }
        Ok(tensor)
    }

    fn data(&mut self, shard: u32) -> Result<&mut (PathBuf, Box<dyn Readable>)> {
        if shard >= self.shards {
            let what = format!("has an entry in data file {shard} of {}", self.shards);
            return Err(Error::corrupt(index_file(&self.prefix), what));
        }
        match self.files.entry(shard) {
            std::collections::btree_map::Entry::Occupied(opened) => Ok(opened.into_mut()),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let path = data_file(&self.prefix, shard, self.shards);
                let file = store::store_of(&path)?.open(&path)?;
                Ok(vacant.insert((path, file)))
            }
        }
    }

    fn wrong(&self, name: &[u8], what: &str) -> Error {
        Error::corrupt(index_file(&self.prefix), format!("tensor {} {what}", shown(name)))
    }
}

/// A slice of a tensor that is assembled from stored slices.
pub(crate) struct SliceAssembler<'a> {
    spec: &'a SliceSpec,
    ranges: Vec<(usize, usize)>,
    tensor: Tensor,
    /// Number of elements copied so far.
    filled: usize,
    /// The ranges of the stored slices copied so far.
    copied: Vec<Vec<(usize, usize)>>,
}

impl<'a> SliceAssembler<'a> {
    pub(crate) fn new(dtype: DType, spec: &'a SliceSpec) -> Result<SliceAssembler<'a>> {
        let shape = spec.slice_shape()?;
        let tensor = match dtype.size() {
            Some(_) => Tensor::unspecified(dtype, shape)?,
            None => Tensor::zeros(dtype, shape)?,
        };
        Ok(SliceAssembler {
            spec,
            ranges: spec.slice.ranges(&spec.shape)?,
            tensor,
            filled: 0,
            copied: Vec::new(),
        })
    }

    /// Returns the start and length of the slice in each dimension of the whole tensor.
    pub(crate) fn ranges(&self) -> &[(usize, usize)] {
        &self.ranges
    }

    /// Copies the elements that the slice has in common with a stored slice.
    pub(crate) fn copy(&mut self, stored: &Tensor, slice: &TensorSlice) -> Result<()> {
        let from = slice.ranges(&self.spec.shape)?;
        if self.copied.iter().any(|copied| intersect(copied, &from, |_, _, _| {}) > 0) {
            invalid!("Overlapping slices: {slice} shares elements with another stored slice");
        }
        if stored.dtype() == DType::String {
            let (all, mut strings) = (stored.as_strings()?, self.tensor.as_strings()?.to_vec());
            self.filled += intersect(&from, &self.ranges, |a, b, n| {
                strings[b..b + n].clone_from_slice(&all[a..a + n]);
            });
            self.tensor = Tensor::strings(strings, self.tensor.shape().clone())?;
        } else {
            let size = stored.dtype().size().unwrap_or(1);
            let (all, out) = (stored.bytes()?, self.tensor.bytes_mut()?);
            self.filled += intersect(&from, &self.ranges, |a, b, n| {
                out[b * size..(b + n) * size].copy_from_slice(&all[a * size..(a + n) * size]);
            });
        }
        self.copied.push(from);
        Ok(())
    }

    /// Returns the assembled slice.
    ///
    /// # Errors
    /// `InvalidArgument` if an element was not covered by a stored slice.
    pub(crate) fn finish(self, name: &[u8]) -> Result<Tensor> {
        if self.filled < self.tensor.num_elements() {
            invalid!(
                "Does not have sufficient slices for partitioned tensor {} to restore in slice_spec: {}",
                shown(name),
                self.spec.slice
            );
        }
        Ok(self.tensor)
    }
}

/// Returns whether a key is that of a slice. The keys of slices start with an encoded zero, and names never
/// do.
pub(super) fn is_slice_key(key: &[u8]) -> bool {
    key.first() == Some(&0)
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
