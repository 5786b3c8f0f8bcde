//! The state of each worker, on the device of the global step: one entry for each worker in three vectors of `int64`.

use super::replica::{FINISHED, UNSET};
use crate::error::Result;
use client::Session;
use graph::{DType, NodeId, Output, PartialShape, Scope, Tensor};

/// The entry in `sync_rep_left` of a worker that has left before the last step.
pub(super) const EARLY: i64 = -2;

/// The three vectors of worker states, and the node that writes rows of all three.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    /// The last step that each worker has pushed gradients of, [`UNSET`] or [`FINISHED`].
    pub(super) pushed: Output,
    /// The last pushed step for which each worker got a token.
    pub(super) answered: Output,
    /// For each worker the last step of the job, recorded when the worker left, [`EARLY`], or [`UNSET`] for a worker
    /// that has not left.
    pub(super) left: Output,
    /// The indices of the rows to write, a vector of `int64` to be fed.
    indices: Output,
    /// The new rows of the three vectors, vectors of `int64` to be fed.
    new_rows: [Output; 3],
    write: NodeId,
}

/// The row of one worker in the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkerRow {
    pub(super) pushed: i64,
    pub(super) answered: i64,
    pub(super) left: i64,
}

impl WorkerRow {
    /// The row of a worker that has not pushed yet.
    pub(super) const NEW: WorkerRow = WorkerRow { pushed: UNSET, answered: UNSET, left: UNSET };

    /// The row of a worker that has left before the last step; it counts as finished.
    const GONE: WorkerRow = WorkerRow { pushed: FINISHED, answered: UNSET, left: EARLY };
}

impl Roster {
    /// Adds the nodes that read and write `vectors`, the handles and values of `pushed`, `answered` and
    /// `left`.
    pub(super) fn new(at: &Scope, vectors: [(Output, Output); 3]) -> Roster {
        let fed = |name: &str| {
            let name = format!("sync_rep_roster/{name}");
            at.placeholder(&name, DType::Int64, PartialShape::from([None]))
        };
        let indices = fed("which");
        let new_rows = [fed("pushed"), fed("answered"), fed("left")];
        // The vectors are written in this order, so that a reader between two writes never takes an old push for an
        // unanswered one.
        let write = |before: Option<NodeId>, ((handle, _), rows): (&(Output, Output), Output)| {
            Some(at.control(before.as_slice()).resource_scatter_update(*handle, indices, rows))
        };
        let write = vectors.iter().zip(new_rows).fold(None, write);
        let [pushed, answered, left] = vectors.map(|(_, value)| value);
        Roster { pushed, answered, left, indices, new_rows, write: at.group(write.as_slice()) }
    }

    /// Reads the three vectors, and returns the row of each worker.
    pub(super) fn read(&self, session: &Session) -> Result<Vec<WorkerRow>> {
        let fetched = session.run(&[], &[self.pushed, self.answered, self.left], &[])?;
        let vectors = fetched.iter().map(Tensor::to_i64s).collect::<Result<Vec<_>, _>>()?;
        let [pushed, answered, left] = vectors.as_slice() else { return Ok(Vec::new()) };
        let rows = pushed.iter().zip(answered).zip(left);
        Ok(rows.map(|((&pushed, &answered), &left)| WorkerRow { pushed, answered, left }).collect())
    }

    /// Resets the rows of `workers`, which will push gradients again.
    pub(super) fn reset(&self, session: &Session, workers: &[usize]) -> Result<()> {
        self.set(session, workers, WorkerRow::NEW)
    }

    /// Marks `workers` as having left early, so that no update waits for them.
    pub(super) fn mark_gone(&self, session: &Session, workers: &[usize]) -> Result<()> {
        self.set(session, workers, WorkerRow::GONE)
    }

    /// Writes `row` to the rows of `workers`.
    fn set(&self, session: &Session, workers: &[usize], row: WorkerRow) -> Result<()> {
        if workers.is_empty() {
            return Ok(());
        }
        let indices: Vec<i64> = workers.iter().map(|&worker| worker as i64).collect();
        let mut feeds = vec![(self.indices, Tensor::vector(&indices)?)];
        for (new_row, value) in self.new_rows.iter().zip([row.pushed, row.answered, row.left]) {
            feeds.push((*new_row, Tensor::vector(&vec![value; workers.len()])?));
        }
        session.run(&feeds, &[], &[self.write])?;
        Ok(())
    }
}
