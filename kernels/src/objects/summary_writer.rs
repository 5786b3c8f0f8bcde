//! The objects behind handles of summary writers.

use super::event_file::EventFile;
use super::summary_database::{SummaryDatabase, TaggedTensor};
use device::Result;
use device::resource::Resource;

/// A writer of summaries: to an event file, or to a database.
#[derive(Debug)]
pub(crate) enum SummaryWriter {
    EventFile(EventFile),
    Database(SummaryDatabase),
}

impl Resource for SummaryWriter {
    const KIND: &'static str = "SummaryWriter";
}

impl SummaryWriter {
    /// Opens the file or the database; does nothing if it is open.
    pub(crate) fn open(&self) -> Result<()> {
        match self {
            SummaryWriter::EventFile(file) => file.open(),
            SummaryWriter::Database(database) => database.open(),
        }
    }

    /// Writes what is buffered; a database has no buffer.
    pub(crate) fn flush(&self) -> Result<()> {
        match self {
            SummaryWriter::EventFile(file) => file.flush(),
            SummaryWriter::Database(_) => Ok(()),
        }
    }

    /// Writes an encoded `Event`.
    pub(crate) fn write(&self, event: Vec<u8>) -> Result<()> {
        match self {
            SummaryWriter::EventFile(file) => file.write(event),
            SummaryWriter::Database(database) => database.write_event(&event),
        }
    }

    /// Writes a tensor of a tag: to a database as it is, to a file as the event that `event` returns.
    pub(crate) fn write_tensor(
        &self,
        step: i64,
        tensor: impl FnOnce() -> Result<TaggedTensor>,
        event: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<()> {
        match self {
            SummaryWriter::EventFile(file) => file.write(event()?),
            SummaryWriter::Database(database) => database.write(step, &tensor()?),
        }
    }
}
