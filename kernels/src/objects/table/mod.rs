//! Lookup tables, which map keys to values. A static table is initialised as a whole before lookups; tables of other
//! kinds can change at any time.

mod column;
pub mod text_file;

use bytes::Bytes;
use column::Column;
use device::resource::Resource;
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The bytes of a key; [`key_bytes`] makes them from a tensor.
pub type Key<'a> = Cow<'a, [u8]>;

/// The way in which rows are added to a table.
#[derive(Clone, Debug)]
pub enum TableKind {
    /// The table is initialised with all rows at once and then does not change.
    Static,
    /// Rows can be inserted and removed at any time.
    Mutable,
    /// Rows can be inserted and removed at any time, except with the two reserved keys `empty` and `deleted`.
    Dense { empty: Bytes, deleted: Option<Bytes> },
}

/// The dtypes and shapes of a table's keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    pub key: DType,
    pub key_shape: Shape,
    pub value: DType,
    pub value_shape: Shape,
}

/// A resource that maps keys to values.
pub struct Table {
    name: Arc<str>,
    kind: TableKind,
    layout: Layout,
    rows: RwLock<Rows>,
}

/// The keys and values of a table's rows.
struct Rows {
    is_initialized: bool,
    /// For each key, the index of its row in `keys` and `values`.
    row_indices: FxHashMap<Bytes, usize>,
    keys: Vec<Bytes>,
    values: Column,
}

impl Rows {
    fn new(layout: &Layout, is_initialized: bool) -> Result<Rows> {
        let values = Column::new(layout.value, layout.value_shape.num_elements())?;
        Ok(Rows { is_initialized, row_indices: FxHashMap::default(), keys: Vec::new(), values })
    }

    /// Inserts a row with the values in row `row` of a tensor, or replaces the values of the key's row.
    fn set(&mut self, key: Key<'_>, values: &Tensor, row: usize) -> Result<()> {
        match self.row_indices.get(&*key) {
            Some(&index) => self.values.set(index, values, row),
            None => {
                self.values.push(values, row)?;
                let key = Bytes::from(key.into_owned());
                self.row_indices.insert(key.clone(), self.keys.len());
                self.keys.push(key);
                Ok(())
            }
        }
    }

    /// Removes the row of the key; does nothing if the table has no row of the key.
    fn remove(&mut self, key: &[u8]) {
        let Some(index) = self.row_indices.remove(key) else { return };
        self.keys.swap_remove(index);
        self.values.swap_remove(index);
        if let Some(moved) = self.keys.get(index) {
            self.row_indices.insert(moved.clone(), index);
        }
    }
}

impl Resource for Table {
    const KIND: &'static str = "LookupTable";
}

impl Table {
    /// Returns an empty table; a static table is not yet initialised.
    pub fn new(name: Arc<str>, kind: TableKind, layout: Layout) -> Result<Table> {
        let rows = RwLock::new(Rows::new(&layout, !matches!(kind, TableKind::Static))?);
        Ok(Table { name, kind, layout, rows })
    }

    /// Returns the dtypes and shapes of keys and values.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Checks that a node with these dtypes of keys and values may share the table.
    ///
    /// # Errors
    /// `InvalidArgument` if the dtypes differ.
    pub fn check_same(&self, key: DType, value: DType) -> Result<()> {
        if (self.layout.key, self.layout.value) != (key, value) {
            device::invalid!(
                "Conflicting key/value dtypes {key}->{value} with {}-{} for table {}",
                self.layout.key,
                self.layout.value,
                self.name
            );
        }
        Ok(())
    }

    /// Returns the number of keys in the table.
    pub fn len(&self) -> usize {
        self.rows.read().keys.len()
    }

    /// Returns whether the table has no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether values can be looked up: false only for a static table before its initialisation.
    pub fn is_initialized(&self) -> bool {
        self.rows.read().is_initialized
    }

    /// Returns the bytes of each key in a tensor, and the tensor's dimensions without those of a key.
    fn keys<'a>(&self, keys: &'a Tensor) -> Result<(Vec<Key<'a>>, Vec<usize>)> {
        let (dims, each) = (keys.shape().dims(), &self.layout.key_shape);
        let Some(outer) = dims.strip_suffix(each.dims()) else {
            device::invalid!("Input key shape {} must end with key shape {each}", keys.shape());
        };
        let width = each.num_elements();
        Ok((key_bytes(keys, width)?, outer.to_vec()))
    }

    /// Checks that no key is a reserved key of a dense table.
    fn check_keys(&self, keys: &[Key<'_>]) -> Result<()> {
        if let TableKind::Dense { empty, deleted } = &self.kind {
            for key in keys {
                if **key == **empty {
                    device::invalid!("Using the empty_key as a table key is not allowed");
                }
                if deleted.as_ref().is_some_and(|deleted| **key == **deleted) {
                    device::invalid!("Using the deleted_key as a table key is not allowed");
                }
            }
        }
        Ok(())
    }

    fn check_values(&self, values: &Tensor, outer: &[usize]) -> Result<()> {
        let expected = Shape::new(&[outer, self.layout.value_shape.dims()].concat())?;
        if *values.shape() != expected {
            device::invalid!("Expected shape {expected} for value, got {}", values.shape());
        }
        Ok(())
    }

    /// Returns the values of the keys. A key without a row gets its value from `default`, which holds one value or one
    /// value per key.
    pub fn find(&self, keys: &Tensor, default: &Tensor) -> Result<Tensor> {
        let (keys, outer) = self.keys(keys)?;
        self.check_keys(&keys)?;
        let one = &self.layout.value_shape;
        let shape = Shape::new(&[&outer, one.dims()].concat())?;
        let one_for_all = default.shape() == one;
        if !one_for_all && *default.shape() != shape {
            device::invalid!("Expected shape {one} or {shape} for default value, got {}", default.shape());
        }
        let rows = self.rows.read();
        if !rows.is_initialized {
            return Err(Error::new(Code::FailedPrecondition, "Table not initialized."));
        }
        let row_indices = keys.iter().map(|key| rows.row_indices.get(&**key).copied());
        rows.values.gather(row_indices, default, one_for_all, shape)
    }

    /// Inserts rows; existing rows with the same keys are replaced.
    pub fn insert(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.check_mutable("Insert")?;
        let (keys, outer) = self.keys(keys)?;
        self.check_keys(&keys)?;
        self.check_values(values, &outer)?;
        let mut rows = self.rows.write();
        keys.into_iter().enumerate().try_for_each(|(row, key)| rows.set(key, values, row))
    }

    /// Removes the rows with the given keys; unknown keys are ignored.
    pub fn remove(&self, keys: &Tensor) -> Result<()> {
        self.check_mutable("Remove")?;
        let (keys, _) = self.keys(keys)?;
        self.check_keys(&keys)?;
        let mut rows = self.rows.write();
        keys.iter().for_each(|key| rows.remove(key));
        Ok(())
    }

    fn check_mutable(&self, action: &str) -> Result<()> {
        match self.kind {
            TableKind::Static => Err(Error::unimplemented(format!(
                "{action} not supported by InitializableLookupTable implementations"
            ))),
            _ => Ok(()),
        }
    }

    /// Replaces all rows of the table.
    pub fn import(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if let TableKind::Static = self.kind {
            return self.initialize(keys, values);
        }
        // TensorFlow's dense tables export scalar keys as vectors of one element.
        let rows = values.shape().first().copied().unwrap_or(0);
        let shape = Shape::new(&[&[rows], self.layout.key_shape.dims()].concat())?;
        let keys = &match keys.num_elements() == shape.num_elements() {
            true => keys.reshaped(shape)?,
            false => keys.clone(),
        };
        let (keys, outer) = self.keys(keys)?;
        self.check_values(values, &outer)?;
        let mut new = Rows::new(&self.layout, true)?;
        for (row, key) in keys.into_iter().enumerate() {
            // The export of a dense table may contain its reserved keys, which have no row.
            if self.check_keys(std::slice::from_ref(&key)).is_ok() {
                new.set(key, values, row)?;
            }
        }
        *self.rows.write() = new;
        Ok(())
    }

    /// Returns all keys and all values.
    pub fn export(&self) -> Result<(Tensor, Tensor)> {
        let rows = self.rows.read();
        let count = rows.keys.len();
        let shape = |each: &Shape| Shape::new(&[&[count], each.dims()].concat());
        let keys = tensor_of_keys(&rows.keys, self.layout.key, shape(&self.layout.key_shape)?)?;
        Ok((keys, rows.values.all(shape(&self.layout.value_shape)?)?))
    }

    /// Initialises a static table; an initialised table stays unchanged.
    pub fn initialize(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if keys.shape().rank() != 1 {
            device::invalid!("Keys must be a vector, but received shape{}", keys.shape());
        }
        if keys.num_elements() != values.num_elements() {
            device::invalid!(
                "Keys and values must have the same size {} vs {}",
                keys.num_elements(),
                values.num_elements()
            );
        }
        if !matches!(self.kind, TableKind::Static) {
            device::invalid!("Table {} is not initializable", self.name);
        }
        let mut rows = self.rows.write();
        if rows.is_initialized {
            return Ok(());
        }
        let mut new = Rows::new(&self.layout, true)?;
        for (row, key) in key_bytes(keys, 1)?.into_iter().enumerate() {
            if let Some(&index) = new.row_indices.get(&*key)
                && !new.values.is_same(index, values, row)?
            {
                let message = format!(
                    "HashTable has different value for same key. Key {} has {} and trying to add value {}",
                    key_text(&key, self.layout.key),
                    new.values.text(index),
                    Column::text_of(values, row)
                );
                return Err(Error::new(Code::FailedPrecondition, message));
            }
            new.set(key, values, row)?;
        }
        *rows = new;
        Ok(())
    }
}

/// Returns the bytes of each key: the memory of its numeric elements, the bytes of its single string, or its several
/// strings, each with its length before it.
pub fn key_bytes(keys: &Tensor, width: usize) -> Result<Vec<Key<'_>>> {
    if width == 0 {
        device::invalid!("a key must have elements");
    }
    if keys.dtype() != DType::String {
        let size = keys.dtype().size().unwrap_or(1) * width;
        return Ok(keys.bytes()?.chunks_exact(size).map(Cow::Borrowed).collect());
    }
    let strings = keys.as_strings()?;
    if width == 1 {
        return Ok(strings.iter().map(|s| Cow::Borrowed(&s[..])).collect());
    }
    let joined = strings.chunks_exact(width).map(|key| {
        let parts =
            key.iter().flat_map(|s| (s.len() as u64).to_le_bytes().into_iter().chain(s.iter().copied()));
        Cow::Owned(parts.collect())
    });
    Ok(joined.collect())
}

/// Returns the keys as a tensor: the inverse of [`key_bytes`].
fn tensor_of_keys(keys: &[Bytes], dtype: DType, shape: Shape) -> Result<Tensor> {
    if dtype != DType::String {
        return Ok(Tensor::from_bytes(dtype, shape, &keys.concat())?);
    }
    if shape.rank() == 1 {
        return Ok(Tensor::strings(keys.to_vec(), shape)?);
    }
    let mut strings = Vec::with_capacity(shape.num_elements());
    for key in keys {
        let mut rest = key.clone();
        while let Some(length) = rest.first_chunk::<8>().copied() {
            let _ = rest.split_to(8);
            let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX).min(rest.len());
            strings.push(rest.split_to(length));
        }
    }
    Ok(Tensor::strings(strings, shape)?)
}

fn key_text(key: &[u8], dtype: DType) -> String {
    match (dtype, key.first_chunk::<8>(), key.first_chunk::<4>()) {
        (DType::Int64, Some(bytes), _) => i64::from_le_bytes(*bytes).to_string(),
        (DType::Int32, _, Some(bytes)) => i32::from_le_bytes(*bytes).to_string(),
        _ => String::from_utf8_lossy(key).into_owned(),
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table '{}' {}->{} ({} rows)", self.name, self.layout.key, self.layout.value, self.len())
    }
}
