//! Event files: written by summary writers and read by TensorBoard. Each record is an `Event` message.

use crate::objects::io::{Compression, RecordWriter};
use checkpoint::proto::Writer;
use device::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The location of an event file, and the limits on buffered events.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder in which the file is created.
    pub folder: PathBuf,
    /// The end of the file name, after the part that makes the name unique.
    pub suffix: String,
    /// Maximum number of buffered events; if one more is added, the buffer is written to the file.
    pub max_queue: usize,
    /// Maximum time between flushes; `None` is unlimited.
    pub flush_after: Option<Duration>,
}

/// An event file to which steps write; dropping it writes the buffered events.
pub struct EventFile {
    settings: Settings,
    /// The open file; `None` before [`EventFile::open`].
    open: Mutex<Option<OpenFile>>,
}

/// An open event file: its writer and the events not yet written.
struct OpenFile {
    file: RecordWriter,
    /// Encoded events that have not been written to the file.
    buffered: Vec<Vec<u8>>,
    /// Time of the last flush.
    flushed: Instant,
}

/// Content of the first event: the file version and the name of the writer.
const VERSION: &[u8] = b"brain.Event:2";
const WRITER: &[u8] = b"tensorflow.core.util.events_writer";

impl EventFile {
    /// Returns an event file that is not yet open.
    pub fn new(settings: Settings) -> EventFile {
        EventFile { settings, open: Mutex::default() }
    }

    /// Creates the folder and the file; does nothing if the file is open.
    pub fn open(&self) -> Result<()> {
        let mut open = self.open.lock();
        if open.is_some() {
            return Ok(());
        }
        let folder = &self.settings.folder;
        fs::create_dir_all(folder).map_err(|e| checkpoint::Error::file(folder, &e))?;
        let mut file = RecordWriter::create(folder.join(self.file_name()), Compression::None)?;
        let first = event(|event| {
            event.bytes(3, VERSION).message(10, |source| _ = source.bytes(1, WRITER));
        });
        file.write(&first)?;
        file.flush()?;
        *open = Some(OpenFile { file, buffered: Vec::new(), flushed: Instant::now() });
        Ok(())
    }

    /// Returns a file name that is unique across writers, processes and machines.
    fn file_name(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let host = fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.as_deref().map_or("localhost", str::trim);
        let seconds = now().as_secs();
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        format!("events.out.tfevents.{seconds:010}.{host}.{process}.{number}{}", self.settings.suffix)
    }

    /// Adds an event to the buffer, and writes the buffer to the file if a limit is reached.
    pub fn write(&self, event: Vec<u8>) -> Result<()> {
        self.with_open(|open| {
            open.buffered.push(event);
            let is_late = self.settings.flush_after.is_some_and(|after| open.flushed.elapsed() > after);
            if is_late || open.buffered.len() > self.settings.max_queue { open.flush() } else { Ok(()) }
        })
    }

    /// Writes the buffered events to the file.
    pub fn flush(&self) -> Result<()> {
        self.with_open(OpenFile::flush)
    }

    fn with_open(&self, act: impl FnOnce(&mut OpenFile) -> Result<()>) -> Result<()> {
        match &mut *self.open.lock() {
            Some(open) => act(open),
            None => Err(Error::new(Code::FailedPrecondition, "Class was not properly initialized.")),
        }
    }
}

impl OpenFile {
    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        for event in self.buffered.drain(..) {
            self.file.write(&event)?;
        }
        self.file.flush()
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        // A failure cannot be reported here; callers that must detect failures call `flush` before they drop the file.
        if let Some(open) = self.open.get_mut() {
            let _ = open.flush();
        }
    }
}

impl fmt::Debug for EventFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventFile({})", self.settings.folder.display())
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns an `Event` message with the current time; `write` adds the other fields.
pub fn event(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut event = Writer::new();
    event.double(1, now().as_secs_f64());
    write(&mut event);
    event.finish()
}
