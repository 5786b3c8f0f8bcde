//! Files that a thread of idle priority writes in the background, so that the steps running at the same time are hardly
//! slowed down.

use checkpoint::store::{Chunk, Pending};
use checkpoint::{Error, Result};
use device::priority::set_idle_priority;
use graph::Code;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of chunks in the queue of chunks to write.
const MAX_QUEUED: usize = 2;

/// After each write, the thread sleeps this many times as long as the write took, but at most [`LONGEST_REST`], to
/// leave memory bandwidth, disk and processors to the steps.
const REST_FACTOR: u32 = 5;
const LONGEST_REST: Duration = Duration::from_millis(20);

/// Minimum rate in bytes per second, after [`GRACE_PERIOD`]. If the thread falls behind the rate, because the machine
/// is never idle, the caller writes chunks too.
const MIN_RATE: u64 = 64 << 20;
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Returns a file whose bytes a thread of idle priority writes to `file`.
pub fn write_behind(file: Box<dyn Pending>) -> Result<Box<dyn Pending>> {
    let state = WriteQueue { file: Some(file), ..WriteQueue::default() };
    let shared = Arc::new(WriteShared { state: Mutex::new(state), changed: Condvar::new() });
    let own = shared.clone();
    let thread = std::thread::Builder::new().name("file-behind".into()).spawn(move || own.run());
    thread.map_err(|e| Error::Invalid {
        code: Code::ResourceExhausted,
        message: format!("no thread for a file that is written behind the steps: {e}"),
    })?;
    Ok(Box::new(WriteBehind::new(shared)))
}

/// The handle of the caller that writes a file in the background.
#[derive(Debug)]
struct WriteBehind {
    shared: Arc<WriteShared>,
    start: Instant,
    /// The chunk that the caller fills; a full chunk moves to the queue.
    chunk: Chunk,
    written: u64,
}

/// The state that the caller shares with the background thread.
#[derive(Debug)]
struct WriteShared {
    state: Mutex<WriteQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WriteQueue {
    /// The file; `None` while a chunk is being written to it.
    file: Option<Box<dyn Pending>>,
    queue: VecDeque<Chunk>,
    /// Empty chunks, whose memory is reused.
    spare: Vec<Chunk>,
    failed: Option<Error>,
    is_writing: bool,
    /// Set when the caller has dropped the file, upon which the thread ends.
    is_dropped: bool,
    /// Set when the thread has ended. If it has panicked, `file` may be `None` for ever.
    has_ended: bool,
}

impl WriteShared {
    /// The loop of the background thread: writes chunks until the file is dropped.
    fn run(&self) {
        let _end = EndOnDrop(self);
        // On a system without idle priority the thread writes at normal priority.
        let _ = set_idle_priority();
        let mut state = self.state.lock();
        while !state.is_dropped {
            let start = Instant::now();
            if self.try_write_next(&mut state) {
                self.rest(&mut state, start.elapsed() * REST_FACTOR);
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    fn rest(&self, state: &mut MutexGuard<'_, WriteQueue>, time: Duration) {
        let end = Instant::now() + time.min(LONGEST_REST);
        while !state.is_dropped && !self.changed.wait_until(state, end).timed_out() {}
    }

    /// Writes the first chunk of the queue. Returns whether a chunk was written: false if the queue is empty or a chunk
    /// is being written to the file.
    fn try_write_next(&self, state: &mut MutexGuard<'_, WriteQueue>) -> bool {
        if state.queue.is_empty() {
            return false;
        }
        let Some(mut file) = state.file.take() else { return false };
        let Some(mut chunk) = state.queue.pop_front() else { return false };
        state.is_writing = true;
        let result = MutexGuard::unlocked(state, || file.write(chunk.filled()));
        state.is_writing = false;
        state.file = Some(file);
        chunk.clear();
        state.spare.push(chunk);
        if let Err(error) = result {
            state.queue.clear();
            state.failed.get_or_insert(error);
        }
        self.changed.notify_all();
        true
    }
}

/// A guard that marks the thread as ended when the thread returns or panics.
struct EndOnDrop<'a>(&'a WriteShared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl WriteBehind {
    fn new(shared: Arc<WriteShared>) -> WriteBehind {
        WriteBehind { shared, start: Instant::now(), chunk: Chunk::default(), written: 0 }
    }

    /// Moves the current chunk to the queue, after waiting until the queue has room.
    fn push(&mut self) -> Result<()> {
        let mut state = self.shared.state.lock();
        while state.queue.len() >= MAX_QUEUED {
            self.proceed(&mut state)?;
        }
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let spare = state.spare.pop().unwrap_or_default();
        state.queue.push_back(std::mem::replace(&mut self.chunk, spare));
        self.shared.changed.notify_all();
        Ok(())
    }

    fn push_if_full(&mut self) -> Result<()> {
        if self.chunk.is_full() { self.push() } else { Ok(()) }
    }

    /// Waits until the thread has written a chunk; if the thread is behind the minimum rate, writes a chunk on the
    /// calling thread.
    fn proceed(&self, state: &mut MutexGuard<'_, WriteQueue>) -> Result<()> {
        let due = self.start + GRACE_PERIOD + Duration::from_secs(self.written / MIN_RATE);
        let is_late = state.has_ended || Instant::now() >= due;
        if !(is_late && self.shared.try_write_next(state)) {
            if state.has_ended {
                let message = "the thread that wrote a file behind the steps has panicked".to_owned();
                return Err(Error::Invalid { code: Code::Internal, message });
            }
            if is_late {
                self.shared.changed.wait(state);
            } else {
                self.shared.changed.wait_until(state, due);
            }
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until all bytes are written, and returns the locked state.
    fn flush(&mut self) -> Result<MutexGuard<'_, WriteQueue>> {
        if !self.chunk.filled().is_empty() {
            self.push()?;
        }
        let mut state = self.shared.state.lock();
        while state.file.is_none() || !state.queue.is_empty() {
            self.proceed(&mut state)?;
        }
        state.failed.clone().map_or(Ok(state), Err)
    }
}

impl Pending for WriteBehind {
    fn written(&self) -> u64 {
        self.written
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let count = self.chunk.add(bytes);
            self.written += count as u64;
            bytes = &bytes[count..];
            self.push_if_full()?;
        }
        Ok(())
    }

    fn write_from(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
        loop {
            let count = read(self.chunk.space())?;
            if count == 0 {
                return Ok(());
            }
            self.chunk.advance(count);
            self.written += count as u64;
            self.push_if_full()?;
        }
    }

    fn sync(&mut self) -> Result<()> {
        let mut state = self.flush()?;
        state.file.as_mut().map_or(Ok(()), |file| file.sync())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        let file = self.flush()?.file.take();
        file.map_or(Ok(()), |file| file.commit())
    }
}

impl Drop for WriteBehind {
    /// Drops the file and ends the thread after the write in progress: an uncommitted file leaves nothing on disk.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_dropped = true;
        state.queue.clear();
        self.shared.changed.notify_all();
        while state.is_writing && !state.has_ended {
            self.shared.changed.wait(&mut state);
        }
        drop(state.file.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in memory whose writes fail beyond `max` bytes.
    #[derive(Debug)]
    struct File {
        max: usize,
        content: Arc<Mutex<FileContent>>,
    }

    #[derive(Debug, Default, PartialEq, Eq)]
    struct FileContent {
        bytes: Vec<u8>,
        calls: Vec<&'static str>,
    }

    impl Pending for File {
        fn written(&self) -> u64 {
            self.content.lock().bytes.len() as u64
        }

        fn write(&mut self, bytes: &[u8]) -> Result<()> {
            let mut content = self.content.lock();
            content.bytes.extend_from_slice(bytes);
            if content.bytes.len() > self.max {
                return Err(Error::invalid("the disk is full"));
            }
            Ok(())
        }

        fn sync(&mut self) -> Result<()> {
            self.content.lock().calls.push("sync");
            Ok(())
        }

        fn commit(self: Box<Self>) -> Result<()> {
            self.content.lock().calls.push("commit");
            Ok(())
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            self.content.lock().calls.push("drop");
        }
    }

    fn file(max: usize) -> (Arc<Mutex<FileContent>>, Box<dyn Pending>) {
        let content = Arc::new(Mutex::new(FileContent::default()));
        (content.clone(), Box::new(File { max, content }))
    }

    /// Writes more bytes than the queue can hold, in pieces of many sizes, and checks the content of the file.
    fn fill(mut written: Box<dyn Pending>, content: &Mutex<FileContent>) -> Result<()> {
        let pieces: Vec<Vec<u8>> =
            (0..10 * MAX_QUEUED).map(|i| vec![i as u8; i * Chunk::SIZE / 20]).collect();
        for (i, piece) in pieces.iter().enumerate() {
            if i % 2 == 0 {
                written.write(piece)?;
                continue;
            }
            let mut rest = &piece[..];
            written.write_from(&mut |space| {
                let (now, later) = rest.split_at(rest.len().min(space.len()));
                space[..now.len()].copy_from_slice(now);
                rest = later;
                Ok(now.len())
            })?;
        }
        written.sync()?;
        assert!(content.lock().bytes == pieces.concat());
        assert_eq!(written.written(), pieces.concat().len() as u64);
        written.commit()
    }

    #[test]
    fn all_bytes_are_written_in_order() -> Result<()> {
        let (content, file) = file(usize::MAX);
        fill(write_behind(file)?, &content)?;
        assert_eq!(content.lock().calls, ["sync", "commit", "drop"]);
        Ok(())
    }

    #[test]
    fn the_caller_writes_if_the_thread_is_behind() -> Result<()> {
        let (content, file) = file(usize::MAX);
        let state = WriteQueue { file: Some(file), has_ended: true, ..WriteQueue::default() };
        let shared = Arc::new(WriteShared { state: Mutex::new(state), changed: Condvar::new() });
        fill(Box::new(WriteBehind::new(shared)), &content)?;
        assert_eq!(content.lock().calls, ["sync", "commit", "drop"]);
        Ok(())
    }

    #[test]
    fn a_write_error_is_returned_and_the_file_is_dropped() -> Result<()> {
        let (content, file) = file(100);
        let mut written = write_behind(file)?;
        let result =
            (0..10 * MAX_QUEUED).try_for_each(|_| written.write(&[0; 99_999])).and_then(|()| written.sync());
        assert_eq!(result, Err(Error::invalid("the disk is full")));
        drop(written);
        assert_eq!(content.lock().calls, ["drop"]);
        Ok(())
    }
}
