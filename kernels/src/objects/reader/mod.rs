//! Readers take work units, usually file names, from a queue, and return the records of the work units one after the
//! other to the steps that request them.

mod format;
mod progress;

pub use format::{Format, Record};

use crate::objects::fair_lock::{FairLock, FairLockGuard};
use crate::objects::io;
use crate::objects::queue::{Element, Queue};
use bytes::Bytes;
use device::attempt::Finish;
use device::cancel::Cancellation;
use device::resource::Resource;
use device::{Error, Result};
use graph::{Code, DType};
use progress::Progress;
use std::fmt;
use std::sync::Arc;

/// A resource that reads the records of work units. A fair lock serves one step at a time: a read that waits for a work
/// unit blocks later operations until it completes or is cancelled.
pub struct Reader {
    /// The reader's kind and the name of its node, for error messages.
    name: String,
    format: Format,
    progress: FairLock<Progress>,
}

impl Resource for Reader {
    const KIND: &'static str = "Reader";
}

impl Reader {
    /// Returns a reader for the node named `node`, whose work units have the format `format`.
    pub fn new(node: &str, format: Format) -> Reader {
        let name = format!("{} '{node}'", format.name());
        Reader { name, format, progress: FairLock::new(Progress::default()) }
    }

    /// Reads up to `requested` records of one work unit, at least one if `requested` is not 0. If the current work
    /// unit has no more records, the read waits for the next work unit from the queue.
    pub fn read(
        self: &Arc<Self>,
        step: &Arc<Cancellation>,
        queue: &Arc<Queue>,
        requested: usize,
        done: Finish<Vec<Record>>,
    ) {
        if requested == 0 {
            return done(Ok(Vec::new()));
        }
        let (reader, queue, cancellation) = (self.clone(), queue.clone(), step.clone());
        self.progress.lock(step, move |locked| match locked {
            Ok(progress) => {
                ReadOperation { reader, queue, step: cancellation, requested, progress, done }.proceed()
            }
            Err(error) => done(Err(error)),
        });
    }

    /// Returns the number of records read since the reader was made or reset.
    pub fn records_produced(&self, step: &Arc<Cancellation>, done: Finish<i64>) {
        self.progress.with(step, |progress| Ok(progress.produced()), done);
    }

    /// Returns the number of work units completed since the reader was made or reset.
    pub fn work_units_completed(&self, step: &Arc<Cancellation>, done: Finish<i64>) {
        self.progress.with(step, |progress| Ok(progress.finished()), done);
    }

    /// Passes the serialised state of the reader, from which [`Reader::restore`] restores the reader, to `done`.
    pub fn serialize(&self, step: &Arc<Cancellation>, done: Finish<Bytes>) {
        if let Err(error) = self.check_can_restore("SerializeState") {
            return done(Err(error));
        }
        self.progress.with(step, |progress| Ok(progress.serialize().into()), done);
    }

    /// Restores a serialised state. Like in TensorFlow, a reader that cannot restore the state is reset.
    pub fn restore(&self, step: &Arc<Cancellation>, state: &Bytes, done: Finish<()>) {
        let restored = self.check_can_restore("RestoreState");
        let (new, outcome) = match restored.and_then(|()| Progress::restore(state, &self.name)) {
            Ok(restored) => (restored, Ok(())),
            Err(error) => (Progress::default(), Err(error)),
        };
        self.replace(step, new, Box::new(move |put| done(put.and(outcome))));
    }

    /// Resets the reader to its initial state.
    pub fn reset(&self, step: &Arc<Cancellation>, done: Finish<()>) {
        self.replace(step, Progress::default(), done);
    }

    fn replace(&self, step: &Arc<Cancellation>, mut new: Progress, done: Finish<()>) {
        let put = move |progress: &mut Progress| {
            *progress = std::mem::take(&mut new);
            Ok(())
        };
        self.progress.with(step, put, done);
    }

    fn check_can_restore(&self, operation: &str) -> Result<()> {
        match self.format.can_restore() {
            true => Ok(()),
            false => Err(Error::new(Code::Unimplemented, format!("Reader {operation}"))),
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A read operation, which runs on a file thread or waits for a work unit from the queue.
struct ReadOperation {
    reader: Arc<Reader>,
    queue: Arc<Queue>,
    step: Arc<Cancellation>,
    requested: usize,
    progress: FairLockGuard<Progress>,
    done: Finish<Vec<Record>>,
}

impl ReadOperation {
    fn proceed(self) {
        if self.progress.is_within_work() {
            return self.run_on_file_thread(ReadOperation::read);
        }
        let (queue, step) = (self.queue.clone(), self.step.clone());
        let begin = move |taken: Result<Vec<Element>>| match taken.and_then(|taken| work_unit(&taken)) {
            Ok(work) => self.run_on_file_thread(|read| read.begin(work)),
            Err(error) => self.finish(Err(error)),
        };
        queue.dequeue(&step, Box::new(begin));
    }

    /// Runs `work` on a file thread. If there is no thread or `work` panics, the operation is dropped, which unlocks
    /// the reader and fails the node.
    fn run_on_file_thread(self, work: impl FnOnce(ReadOperation) + Send + 'static) {
        let _ = io::spawn(move || work(self));
    }

    fn begin(mut self, work: Bytes) {
        match self.progress.begin(&self.reader.format, work) {
            Ok(()) => self.read(),
            Err(error) => self.finish(Err(error)),
        }
    }

    fn read(mut self) {
        match self.progress.read(&self.reader.format, self.requested, &self.step) {
            Ok(records) if records.is_empty() => self.proceed(),
            result => self.finish(result),
        }
    }

    fn finish(self, result: Result<Vec<Record>>) {
        // The guard is dropped, which unlocks the reader, before `done` runs, because the step may use the reader
        // again.
        drop(self.progress);
        (self.done)(result);
    }
}

/// Returns the work unit, a string scalar, in a queue element.
fn work_unit(taken: &[Element]) -> Result<Bytes> {
    let [component] = taken.first().map(|element| &element[..]).unwrap_or_default() else {
        device::invalid!("Expected single component queue");
    };
    let component = component.tensor()?;
    if component.dtype() != DType::String {
        device::invalid!("Expected queue with single string component");
    }
    match component.as_strings()? {
        [work] => Ok(work.clone()),
        _ => Err(Error::invalid("Expected to dequeue a one-element string tensor")),
    }
}

#[cfg(test)]
mod tests;
