//! The progress of a reader, and its serialised form.

use super::format::{Format, NextRecord, Record, RecordsFn};
use crate::objects::escape::escape;
use bytes::Bytes;
use checkpoint::proto::{Fields, Malformed, Writer};
use device::cancel::Cancellation;
use device::{Error, Result};

/// The progress of a reader: the current work unit, and counts since the reader was made or reset.
#[derive(Default)]
pub(super) struct Progress {
    /// Number of work units started since the reader was made or reset.
    started: i64,
    /// Number of work units completed since the reader was made or reset.
    finished: i64,
    /// Number of records read since the reader was made or reset.
    produced: i64,
    /// The current work unit, or the last one if none is in progress.
    work: Bytes,
    /// The open work unit; `None` if none has been opened since the reader was made or restored.
    records: Option<RecordsFn>,
}

impl Progress {
    /// Returns the number of work units completed since the reader was made or reset.
    pub(super) fn finished(&self) -> i64 {
        self.finished
    }

    /// Returns the number of records read since the reader was made or reset.
    pub(super) fn produced(&self) -> i64 {
        self.produced
    }

    /// Returns whether a work unit is in progress.
    pub(super) fn is_within_work(&self) -> bool {
        self.finished < self.started
    }

    /// Opens and starts a work unit. If it cannot be opened, the progress is unchanged.
    pub(super) fn begin(&mut self, format: &Format, work: Bytes) -> Result<()> {
        self.records = Some(format.open(&work)?);
        self.work = work;
        self.started = self.started.saturating_add(1);
        Ok(())
    }

    /// Reads up to `requested` records of the work unit; fewer, possibly none, at its end.
    pub(super) fn read(
        &mut self,
        format: &Format,
        requested: usize,
        step: &Cancellation,
    ) -> Result<Vec<Record>> {
        let mut read = Vec::new();
        while self.is_within_work() && read.len() < requested {
            step.check()?;
            let records = match &mut self.records {
                Some(records) => records,
                none => none.insert(format.open(&self.work)?),
            };
            let next = records()?;
            if matches!(next, NextRecord::Last(_) | NextRecord::End) {
                self.finished = self.started;
                self.records = None;
            }
            if let NextRecord::Record(record) | NextRecord::Last(record) = next {
                self.produced = self.produced.saturating_add(1);
                read.push(record);
            }
        }
        Ok(read)
    }

    /// Returns the progress as a serialised `ReaderBaseState`.
    pub(super) fn serialize(&self) -> Vec<u8> {
        let mut state = Writer::new();
        state.int(1, self.started).int(2, self.finished).int(3, self.produced).string(4, &self.work);
        state.finish()
    }

    /// Restores progress that [`Progress::serialize`] encoded; `name` is the reader's name in messages.
    pub(super) fn restore(state: &[u8], name: &str) -> Result<Progress> {
        let malformed =
            |Malformed| Error::invalid(format!("Could not parse state for {name}: {}", escape(state)));
        let progress = parse(state).map_err(malformed)?;
        let Progress { started, finished, produced, work, .. } = &progress;
        let text = || {
            let mut text = String::new();
            for (field, value) in
                [("work_started", started), ("work_finished", finished), ("num_records_produced", produced)]
            {
                if *value != 0 {
                    text += &format!("{field}: {value}\n");
                }
            }
            if !work.is_empty() {
                text += &format!("current_work: \"{}\"\n", escape(work));
            }
            text
        };
        if *started < 0 || *finished < 0 || *produced < 0 {
            device::invalid!("Unexpected negative value when restoring in {name}: {}", text());
        }
        if started > finished {
            device::invalid!("Inconsistent work started vs. finished when restoring in {name}: {}", text());
        }
        Ok(progress)
    }
}

fn parse(state: &[u8]) -> Result<Progress, Malformed> {
    let mut progress = Progress::default();
    for field in Fields::of(state) {
        match field? {
            (1, value) => progress.started = value.int()?,
            (2, value) => progress.finished = value.int()?,
            (3, value) => progress.produced = value.int()?,
            (4, value) => progress.work = Bytes::copy_from_slice(value.bytes()?),
            _ => {}
        }
    }
    Ok(progress)
}
