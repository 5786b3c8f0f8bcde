//! Tests of a reader shared by steps. `tests/tensorflow/synchronisation/readers.py` compares the records with
//! TensorFlow's.

use super::*;
use crate::objects::queue::{QueueKind, QueueSpec};
use crate::testing::TempDir;
use graph::{PartialShape, Tensor};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

fn queue() -> Arc<Queue> {
    let (types, shapes) = (vec![DType::String], vec![PartialShape::scalar()]);
    let spec = QueueSpec { kind: QueueKind::Fifo, capacity: 10, types, shapes };
    Arc::new(Queue::new("q".into(), spec))
}

fn put(queue: &Queue, unit: impl Into<Bytes>) {
    let step = Arc::new(Cancellation::new());
    queue.enqueue(
        &step,
        smallvec::smallvec![Tensor::string(unit).into()],
        Box::new(|done| assert!(done.is_ok())),
    );
}

type KeysReceiver = Receiver<Result<Vec<String>>>;

/// Starts a read; the channel receives the keys of the records.
fn read(
    reader: &Arc<Reader>,
    queue: &Arc<Queue>,
    step: &Arc<Cancellation>,
    requested: usize,
) -> KeysReceiver {
    let (sender, receiver) = mpsc::channel();
    let key = |record: &Record| String::from_utf8_lossy(&record.key).into_owned();
    let done = move |records: Result<Vec<Record>>| {
        let _ = sender.send(records.map(|records| records.iter().map(key).collect()));
    };
    reader.read(step, queue, requested, Box::new(done));
    receiver
}

fn keys(answer: &KeysReceiver) -> Result<Vec<String>> {
    answer.recv_timeout(DEADLINE).map_err(|e| Error::internal(e.to_string()))?
}

#[test]
fn a_cancelled_read_passes_the_reader_to_the_next_waiting_read() -> Result<()> {
    let (reader, queue) = (Arc::new(Reader::new("node", Format::Identity)), queue());
    let steps = [0; 3].map(|_| Arc::new(Cancellation::new()));
    let answers = [0, 1, 2].map(|i| read(&reader, &queue, &steps[i], 1));
    for i in [1, 0] {
        steps[i].cancel(Error::new(Code::Cancelled, "over"));
        assert_eq!(keys(&answers[i]).map_err(|e| (e.code(), e.is_derived())), Err((Code::Cancelled, true)));
    }
    assert_eq!(answers[2].try_recv().ok(), None);
    put(&queue, "a");
    assert_eq!(keys(&answers[2])?, ["a"]);
    assert_eq!(answers[2].recv_timeout(DEADLINE).err(), Some(RecvTimeoutError::Disconnected));
    Ok(())
}

#[test]
fn a_read_can_be_cancelled_within_a_file() -> Result<()> {
    let dir = TempDir::new()?;
    dir.write("lines", b"1\n2\n")?;
    let reader = Arc::new(Reader::new("node", Format::TextLine { skipped: 0 }));
    let (queue, step) = (queue(), Arc::new(Cancellation::new()));
    put(&queue, dir.path().join("lines").display().to_string());
    assert_eq!(keys(&read(&reader, &queue, &step, 1))?.len(), 1);
    step.cancel(Error::new(Code::Cancelled, "over"));
    assert_eq!(keys(&read(&reader, &queue, &step, 9)).map_err(|e| e.code()), Err(Code::Cancelled));
    let next = Arc::new(Cancellation::new());
    assert!(keys(&read(&reader, &queue, &next, 9))?[0].ends_with("lines:2"));
    Ok(())
}

#[test]
fn many_files_without_records_are_skipped() -> Result<()> {
    let dir = TempDir::new()?;
    dir.write("empty", b"")?;
    dir.write("last", b"x")?;
    let reader = Arc::new(Reader::new("node", Format::TextLine { skipped: 0 }));
    let (queue, step) = (queue(), Arc::new(Cancellation::new()));
    let answer = read(&reader, &queue, &step, 1);
    for _ in 0..5000 {
        put(&queue, dir.path().join("empty").display().to_string());
    }
    put(&queue, dir.path().join("last").display().to_string());
    assert!(keys(&answer)?[0].ends_with("last:1"));
    Ok(())
}

#[test]
fn restored_counts_at_the_limit_of_i64_do_not_overflow() -> Result<()> {
    let largest = Progress::restore(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x18\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "r")?;
    assert_eq!((largest.finished(), largest.produced()), (i64::MAX, i64::MAX));
    let mut largest = largest;
    assert!(largest.begin(&Format::Identity, "a".into()).is_ok());
    assert!(largest.read(&Format::Identity, 1, &Cancellation::new()).is_ok());
    Ok(())
}
