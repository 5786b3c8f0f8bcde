//! What is known of each worker, beside the global step: a row a worker in three vectors of `int64`.

use super::replica::{FINISHED, NOTHING};
use crate::error::Result;
use client::Session;
use graph::{DType, NodeId, Output, PartialShape, Scope, Tensor};

/// What stands in `sync_rep_left` for a worker that has left before the last step.
pub(super) const EARLY: i64 = -2;

/// The vectors, and what writes rows of all three.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    /// The last step that each worker has pushed gradients of, [`NOTHING`] or [`FINISHED`].
    pub(super) pushed: Output,
    /// The last such step that each worker got a token for.
    pub(super) answered: Output,
    /// The last step as each worker that has left knows it, [`EARLY`], or [`NOTHING`] for one that is there.
    pub(super) left: Output,
    /// Which rows are to be written, and what they are to be, vectors of `int64` to be fed.
    which: Output,
    to_be: [Output; 3],
    write: NodeId,
}

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pushed: i64,
    pub(super) answered: i64,
    pub(super) left: i64,
}

impl Entry {
    /// Of a worker that is to push.
    pub(super) const NEW: Entry = Entry { pushed: NOTHING, answered: NOTHING, left: NOTHING };

    /// Of one that will not.
    const GONE: Entry = Entry { pushed: FINISHED, answered: NOTHING, left: EARLY };
}

impl Roster {
    /// Of the variables that have these handles and values, there.
    pub(super) fn new(at: &Scope, vectors: [(Output, Output); 3]) -> Roster {
        let fed = |name: &str| {
            let name = format!("sync_rep_roster/{name}");
            at.placeholder(&name, DType::Int64, PartialShape::from([None]))
        };
        let which = fed("which");
        let to_be = [fed("pushed"), fed("answered"), fed("left")];
        // One after the other: who looks meanwhile does not take an old push for one that was not answered.
        let write = |before: Option<NodeId>, ((handle, _), rows): (&(Output, Output), Output)| {
            Some(at.control(before.as_slice()).resource_scatter_update(*handle, which, rows))
        };
        let write = vectors.iter().zip(to_be).fold(None, write);
        let [pushed, answered, left] = vectors.map(|(_, value)| value);
        Roster { pushed, answered, left, which, to_be, write: at.group(write.as_slice()) }
    }

    pub(super) fn read(&self, session: &Session) -> Result<Vec<Entry>> {
        let fetched = session.run(&[], &[self.pushed, self.answered, self.left], &[])?;
        let vectors = fetched.iter().map(Tensor::to_i64s).collect::<Result<Vec<_>, _>>()?;
        let [pushed, answered, left] = vectors.as_slice() else { return Ok(Vec::new()) };
        let rows = pushed.iter().zip(answered).zip(left);
        Ok(rows.map(|((&pushed, &answered), &left)| Entry { pushed, answered, left }).collect())
    }

    /// These workers are to push, whatever was known of them.
    pub(super) fn renew(&self, session: &Session, workers: &[usize]) -> Result<()> {
        self.set(session, workers, Entry::NEW)
    }

    /// These workers are waited for no more.
    pub(super) fn dismiss(&self, session: &Session, workers: &[usize]) -> Result<()> {
        self.set(session, workers, Entry::GONE)
    }

    fn set(&self, session: &Session, workers: &[usize], entry: Entry) -> Result<()> {
        if workers.is_empty() {
            return Ok(());
        }
        let which: Vec<i64> = workers.iter().map(|&worker| worker as i64).collect();
        let mut feeds = vec![(self.which, Tensor::vector(&which)?)];
        for (to_be, value) in self.to_be.iter().zip([entry.pushed, entry.answered, entry.left]) {
            feeds.push((*to_be, Tensor::vector(&vec![value; workers.len()])?));
        }
        session.run(&feeds, &[], &[self.write])?;
        Ok(())
    }
}
