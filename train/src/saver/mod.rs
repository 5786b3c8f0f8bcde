//! Saving and restoring of variables in TensorFlow's checkpoints. Each task writes a shard with its variables, and one
//! index is written last.
//!
//! A save has two halves. A *snapshot* takes almost no time: the values stay in place, and an update that changes a
//! value first copies it, unless the value is already in the files. *Writing* copies the snapshot to files with low
//! priority, while further steps run. The tasks that hold the variables write and read the files, so a cluster needs a
//! file system or object store that all tasks share.

mod nodes;
mod retention;
mod state;

pub use retention::Retention;
pub use state::{CheckpointState, checkpoint_prefixes, latest_checkpoint, step_of};

use crate::error::Result;
use crate::variables::Variable;
use checkpoint::store;
use client::Session;
use graph::{Scope, Tensor};
use nodes::SaverNodes;
use parking_lot::Mutex;
use proto::pb;
use retention::RetentionState;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A saver that writes a fixed set of variables to checkpoints and restores them.
#[derive(Debug)]
pub struct Saver {
    nodes: SaverNodes,
    keep: Retention,
    retention: Mutex<RetentionState>,
    deadline: Duration,
}

/// The default time limit of writing a checkpoint, longer than a write takes on storage that works.
const DEADLINE: Duration = Duration::from_secs(3600);

impl Saver {
    /// Adds the nodes that save and restore these variables. The scope must not set a device, because each node is
    /// placed on the task that holds its variables.
    pub fn new(scope: &Scope, variables: &[Variable], keep: Retention) -> Saver {
        Saver {
            nodes: SaverNodes::new(scope, variables),
            keep,
            retention: Mutex::default(),
            deadline: DEADLINE,
        }
    }

    /// Sets the time limit of writing a checkpoint, an hour by default. Other time limits of a session's runs
    /// do not apply to it.
    pub fn deadline(mut self, deadline: Duration) -> Saver {
        self.deadline = deadline;
        self
    }

    /// Saves a checkpoint as `<folder>/<name>-<step>`, records it in the folder's `checkpoint` file, and removes
    /// checkpoints beyond the saver's [`Retention`]; all checkpoints in the `checkpoint` file count, whatever their
    /// names. Returns the checkpoint's prefix.
    ///
    /// # Errors
    /// A variable without a value, or a failure of files; no checkpoint is recorded then. A failure to remove a
    /// checkpoint is logged, and the removal is tried again at the next save.
    pub fn save(&self, session: &Session, folder: &Path, name: &str, step: i64) -> Result<PathBuf> {
        self.snapshot(session)?;
        self.write(session, folder, name, step)
    }

    /// Takes a snapshot of the variables, which replaces this saver's earlier snapshot.
    pub fn snapshot(&self, session: &Session) -> Result<()> {
        session.run(&[], &[], &self.nodes.snapshot)?;
        Ok(())
    }

    /// Saves a checkpoint like [`Saver::save`], with the values of the last [`Saver::snapshot`].
    pub fn write(&self, session: &Session, folder: &Path, name: &str, step: i64) -> Result<PathBuf> {
        self.write_shards(session, folder, name, step, false)
    }

    /// Writes a checkpoint like [`Saver::write`], with a lower priority than the steps that run meanwhile.
    pub fn write_behind_steps(
        &self,
        session: &Session,
        folder: &Path,
        name: &str,
        step: i64,
    ) -> Result<PathBuf> {
        self.write_shards(session, folder, name, step, true)
    }

    /// Writes the last snapshot as a checkpoint. `behind_steps` gives running steps priority over writing.
    fn write_shards(
        &self,
        session: &Session,
        folder: &Path,
        name: &str,
        step: i64,
        behind_steps: bool,
    ) -> Result<PathBuf> {
        let folder = store::absolute(folder)?;
        store::store_of(&folder)?.create_folders(&folder)?;
        let prefix = folder.join(format!("{name}-{step}"));
        let shards = self.nodes.shards.len();
        let part = |i: usize| format!("{}_temp/part-{i:05}-of-{shards:05}", prefix.display());
        let timeout_in_ms = i64::try_from(self.deadline.as_millis().max(1)).unwrap_or(i64::MAX);
        let options = pb::RunOptions { timeout_in_ms, ..Default::default() };
        let mut write = session.step().target(self.nodes.write).options(options);
        for (i, shard) in self.nodes.shards.iter().enumerate() {
            write = write.feed(shard.prefix, Tensor::string(part(i)));
        }
        write = write.feed(self.nodes.destination, path_tensor(&prefix));
        let written = write.feed(self.nodes.behind_steps, behind_steps).run();
        written.inspect_err(|_| self.retention.lock().mark_interrupted())?;
        // Workers refuse this step from a replica that has been deposed as the chief, so that a deposed replica does
        // not remove the new chief's checkpoints.
        let confirm = || session.run(&[], &[], &[self.nodes.confirm]).map(drop);
        self.retention.lock().register(&folder, &prefix, self.keep, confirm)?;
        Ok(prefix)
    }

    /// Restores every variable from a checkpoint, even if the variable was partitioned differently when it was saved.
    ///
    /// # Errors
    /// `NotFound` if the checkpoint does not exist or lacks a variable, `DataLoss` if a checksum is wrong.
    pub fn restore(&self, session: &Session, prefix: &Path) -> Result<()> {
        self.restore_shards(session, prefix, |_| true)
    }

    /// Restores variables like [`Saver::restore`], but only those of the tasks that hold a variable named in `lost`.
    pub fn restore_lost(&self, session: &Session, prefix: &Path, lost: &[String]) -> Result<()> {
        self.restore_shards(session, prefix, |names| names.iter().any(|name| lost.contains(name)))
    }

    /// Restores the variables of each shard for which `is_selected` returns true; its argument is the names of the
    /// shard's variables.
    fn restore_shards(
        &self,
        session: &Session,
        prefix: &Path,
        is_selected: impl Fn(&[String]) -> bool,
    ) -> Result<()> {
        let shards = self.nodes.shards.iter().filter(|shard| is_selected(&shard.variables));
        let nodes: Vec<_> = shards.map(|shard| shard.restore).collect();
        session.run(&[(self.nodes.source, path_tensor(prefix))], &[], &nodes)?;
        Ok(())
    }
}

fn path_tensor(path: &Path) -> Tensor {
    Tensor::string(path.display().to_string())
}
