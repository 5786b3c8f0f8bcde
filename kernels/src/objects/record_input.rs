//! A source of shuffled records of files, which starts again when all files have been read.

use crate::numeric::philox::{Philox, PhiloxWords};
use crate::objects::io::{Compression, RecordReader};
use bytes::Bytes;
use device::{Error, Result};
use graph::Code;
use std::collections::VecDeque;

/// The settings of a [`RecordInput`].
#[derive(Clone, Debug)]
pub(crate) struct RecordInputSettings {
    /// A pattern of file names.
    pub(crate) pattern: String,
    pub(crate) seed: i64,
    /// The fraction of the files by which the order of files is rotated in each epoch.
    pub(crate) shift_ratio: f32,
    /// The number of records from which each record is drawn.
    pub(crate) buffer_size: usize,
    pub(crate) compression: Compression,
}

/// Records of the files that match a pattern, in a random order. All records of an epoch come before those of the next.
pub(crate) struct RecordInput {
    settings: RecordInputSettings,
    random: PhiloxWords,
    epoch: usize,
    files: VecDeque<String>,
    reader: Option<RecordReader>,
    buffer: Vec<Bytes>,
    /// True if the current epoch has given a record.
    has_records: bool,
}

impl std::fmt::Debug for RecordInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordInput").field("settings", &self.settings).field("epoch", &self.epoch).finish()
    }
}

impl RecordInput {
    pub(crate) fn new(settings: RecordInputSettings) -> RecordInput {
        let random = PhiloxWords::new(Philox::new(settings.seed as u64, 0));
        RecordInput {
            settings,
            random,
            epoch: 0,
            files: VecDeque::new(),
            reader: None,
            buffer: Vec::new(),
            has_records: true,
        }
    }

    /// Returns the next record.
    ///
    /// # Errors
    /// `NotFound` if no file matches the pattern, `OutOfRange` if the files hold no record, and the errors of reading.
    pub(crate) fn next(&mut self) -> Result<Bytes> {
        loop {
            while self.buffer.len() < self.settings.buffer_size {
                match self.read()? {
                    Some(record) => self.buffer.push(record),
                    None => break,
                }
            }
            if !self.buffer.is_empty() {
                self.has_records = true;
                let at = self.below(self.buffer.len());
                return Ok(self.buffer.swap_remove(at));
            }
            self.start_epoch()?;
        }
    }

    /// Returns the next record of the epoch's files in turn; `None` after the last.
    fn read(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(reader) = &mut self.reader {
                if let Some(record) = reader.next_record()? {
                    return Ok(Some(record));
                }
                self.reader = None;
            }
            let Some(file) = self.files.pop_front() else { return Ok(None) };
            self.reader = Some(RecordReader::open(file, self.settings.compression)?);
        }
    }

    fn start_epoch(&mut self) -> Result<()> {
        let pattern = &self.settings.pattern;
        if !std::mem::take(&mut self.has_records) {
            return Err(Error::new(Code::OutOfRange, format!("the files {pattern} hold no records")));
        }
        let mut files = checkpoint::pattern::matching(pattern)?;
        if files.is_empty() {
            return Err(Error::new(Code::NotFound, format!("Found no files at {pattern}")));
        }
        files.sort_unstable();
        for i in (1..files.len()).rev() {
            let other = self.below(i + 1);
            files.swap(i, other);
        }
        let shift = (self.settings.shift_ratio.clamp(0.0, 1.0) * files.len() as f32) as usize * self.epoch;
        let shift = shift % files.len();
        files.rotate_left(shift);
        self.files = files.into();
        self.epoch += 1;
        Ok(())
    }

    /// Returns a random number below `count`.
    fn below(&mut self, count: usize) -> usize {
        let word = u64::from(self.random.next()) << 32 | u64::from(self.random.next());
        (word % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::io::RecordWriter;

    fn settings(pattern: String) -> RecordInputSettings {
        RecordInputSettings {
            pattern,
            seed: 3,
            shift_ratio: 0.5,
            buffer_size: 4,
            compression: Compression::None,
        }
    }

    #[test]
    fn each_epoch_has_every_record_once() -> Result<()> {
        let folder = crate::testing::TempDir::new()?;
        for file in 0..3u8 {
            let path = folder.path().join(format!("part-{file}"));
            let mut writer = RecordWriter::create(path, Compression::None)?;
            for record in 0..5u8 {
                writer.write(&[file, record])?;
            }
            writer.finish()?;
        }
        let mut input = RecordInput::new(settings(format!("{}/part-*", folder.path().display())));
        let mut orders = Vec::new();
        for _ in 0..3 {
            let records = (0..15).map(|_| input.next()).collect::<Result<Vec<_>>>()?;
            let mut sorted = records.clone();
            sorted.sort();
            let all: Vec<Bytes> =
                (0..3u8).flat_map(|f| (0..5u8).map(move |r| Bytes::copy_from_slice(&[f, r]))).collect();
            assert_eq!(sorted, all);
            orders.push(records);
        }
        assert_ne!(orders[0], orders[1]);
        Ok(())
    }

    #[test]
    fn files_without_records_are_an_error() -> Result<()> {
        let folder = crate::testing::TempDir::new()?;
        let pattern = format!("{}/part-*", folder.path().display());
        let none = RecordInput::new(settings(pattern.clone())).next();
        assert_eq!(none.map_err(|e| e.code()), Err(Code::NotFound));
        RecordWriter::create(folder.path().join("part-0"), Compression::None)?.finish()?;
        let empty = RecordInput::new(settings(pattern)).next();
        assert_eq!(empty.map_err(|e| e.code()), Err(Code::OutOfRange));
        Ok(())
    }
}
