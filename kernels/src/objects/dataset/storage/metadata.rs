//! The metadata of a stored dataset, a `SnapshotMetadataRecord` message.

use super::METADATA;
use bytes::Bytes;
use checkpoint::proto::{Field, Fields, Malformed, Writer};
use checkpoint::store;
use device::{Error, Result};
use graph::{Code, DType};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the format with files of records.
pub(super) const RECORDS: i64 = 2;

/// The version of the format with files of blocks.
pub(super) const BLOCKS: i64 = 1;

/// The metadata of a stored dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metadata {
    /// The fingerprint of a snapshot's dataset, as text; empty for a saved dataset.
    pub(crate) graph_hash: String,
    /// The name of the folder with the files of the last run.
    pub(crate) run: String,
    /// The time at which the run began, in microseconds since 1970.
    pub(crate) created: i64,
    pub(crate) version: i64,
    pub(crate) dtypes: Vec<DType>,
    /// Number of elements; TensorFlow does not count those of snapshots.
    pub(crate) elements: i64,
    /// True once all elements are written.
    pub(crate) is_final: bool,
}

impl Metadata {
    /// Returns the metadata of a run that begins now.
    pub(super) fn new(graph_hash: String, run: String, version: i64, dtypes: Vec<DType>) -> Metadata {
        Metadata { graph_hash, run, created: now(), version, dtypes, elements: 0, is_final: false }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.string(1, self.graph_hash.as_bytes())
            .string(2, self.run.as_bytes())
            .int(3, self.created)
            .int(4, self.version);
        out.packed_ints(5, self.dtypes.iter().map(|dtype| dtype.number().into()));
        out.int(6, self.elements).int(1000, self.is_final.into());
        out.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Metadata, Malformed> {
        let mut metadata = Metadata::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => metadata.graph_hash = text(value)?,
                (2, value) => metadata.run = text(value)?,
                (3, value) => metadata.created = value.int()?,
                (4, value) => metadata.version = value.int()?,
                (5, value) => {
                    let mut numbers = Vec::new();
                    match value {
                        Field::Varint(number) => numbers.push(number as i64),
                        packed => packed.ints(|number| numbers.push(number))?,
                    }
                    for number in numbers {
                        let dtype = i32::try_from(number).ok().and_then(DType::from_number);
                        metadata.dtypes.push(dtype.ok_or(Malformed)?);
                    }
                }
                (6, value) => metadata.elements = value.int()?,
                (1000, value) => metadata.is_final = value.int()? != 0,
                _ => {}
            }
        }
        Ok(metadata)
    }

    /// Reads the metadata of a folder with files of records.
    ///
    /// # Errors
    /// `NotFound` if the folder has no stored dataset; `Unimplemented` for another version of the format; the errors of
    /// [`Metadata::find`].
    pub(crate) fn read(folder: &Path) -> Result<Metadata> {
        let Some(metadata) = Metadata::find(folder)? else {
            let message = format!("Could not find metadata file [{}]", folder.display());
            return Err(Error::new(Code::NotFound, message));
        };
        metadata.check_version(RECORDS, folder)?;
        Ok(metadata)
    }

    /// Reads the metadata in a folder; returns `None` if it has no stored dataset.
    ///
    /// # Errors
    /// `DataLoss` if the file is damaged.
    pub(super) fn find(folder: &Path) -> Result<Option<Metadata>> {
        let path = folder.join(METADATA);
        let bytes: Bytes = match store::read(&path) {
            Ok(bytes) => bytes.into(),
            Err(error) if error.code() == Code::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = Metadata::decode(&bytes)
            .map_err(|_| Error::from(checkpoint::Error::corrupt(&path, "malformed metadata")))?;
        if !is_run_name(&metadata.run) {
            return Err(checkpoint::Error::corrupt(&path, "malformed name of a run").into());
        }
        Ok(Some(metadata))
    }

    /// Checks the version of the format.
    ///
    /// # Errors
    /// `Unimplemented` for another version than `expected`.
    pub(super) fn check_version(&self, expected: i64, folder: &Path) -> Result<()> {
        if self.version != expected {
            return Err(Error::unimplemented(format!(
                "{} has a dataset in version {} of the format; version {expected} is supported here",
                folder.display(),
                self.version
            )));
        }
        Ok(())
    }

    /// Writes the metadata to a folder.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        Ok(store::write(folder.join(METADATA), &self.encode())?)
    }
}

/// Returns whether a name is that of a folder in the folder to which it is joined.
pub(super) fn is_run_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && !name.starts_with('.')
}

/// Returns the microseconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

fn text(value: Field<'_>) -> Result<String, Malformed> {
    String::from_utf8(value.bytes()?.to_vec()).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that TensorFlow 2.21 wrote.
    #[test]
    fn the_message_is_that_of_tensorflow() -> Result<(), Malformed> {
        let bytes = b"\x12\x1412248632786905160870\x18\x99\x82\x93\x8e\x91\xb0\x98\x03 \x02*\x03\t\x07\x010\x05\xc0>\x01";
        let metadata = Metadata::decode(bytes)?;
        assert_eq!(
            (&*metadata.graph_hash, &*metadata.run, metadata.elements, metadata.is_final),
            ("", "12248632786905160870", 5, true)
        );
        assert_eq!(metadata.dtypes, [DType::Int64, DType::String, DType::Float]);
        assert_eq!(metadata.encode(), bytes);
        assert_eq!(Metadata::decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        Ok(())
    }
}
