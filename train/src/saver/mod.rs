//! Saves and restores variables, in TensorFlow's checkpoints: every task writes what it holds, side by side, and one
//! index is written last.
//!
//! A save has two halves. A *snapshot* sets aside what each variable holds, which takes no time: values stay where they
//! are, and an update keeps what it changes before it is written. *Writing* takes what was set aside to the files, while
//! steps go on, in time that nobody else wants. The paths are opened by the tasks that hold the variables: a cluster
//! needs a file system that all of them see.

mod graph;
mod keep;
mod state;

pub use keep::Keep;
pub use state::{CheckpointState, checkpoint_prefixes, latest_checkpoint, step_of};

use crate::error::Result;
use crate::variables::Variable;
use ::graph::{Scope, Tensor};
use checkpoint::store;
use client::Session;
use keep::Kept;
use parking_lot::Mutex;
use proto::pb;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Saves and restores some variables.
#[derive(Debug)]
pub struct Saver {
    nodes: graph::Nodes,
    keep: Keep,
    kept: Mutex<Kept>,
    deadline: Duration,
}

/// Nothing that is alive takes longer to write a checkpoint.
const DEADLINE: Duration = Duration::from_secs(3600);

impl Saver {
    /// Adds the nodes that save and restore these variables. The scope must leave devices open: each node goes to the
    /// task of its variables.
    pub fn new(scope: &Scope, variables: &[Variable], keep: Keep) -> Saver {
        Saver { nodes: graph::Nodes::new(scope, variables), keep, kept: Mutex::default(), deadline: DEADLINE }
    }

    /// How long the writing of a checkpoint may take; an hour if nothing is said. Other limits of a session's runs do not
    /// bind it.
    pub fn deadline(mut self, deadline: Duration) -> Saver {
        self.deadline = deadline;
        self
    }

    /// Saves as `<folder>/<name>-<step>`, notes it in the folder's `checkpoint` file, and removes what is not to be
    /// kept: all that are noted there count, whatever their names. Gives the checkpoint's prefix.
    ///
    /// # Errors
    /// Of a variable without a value, or of files; nothing is noted then. What cannot be removed is told, and tried again
    /// at the next save.
    pub fn save(&self, session: &Session, folder: &Path, name: &str, step: i64) -> Result<PathBuf> {
        self.snapshot(session)?;
        self.write(session, folder, name, step)
    }

    /// Sets aside what the variables hold now, in place of what an earlier snapshot has set aside.
    pub fn snapshot(&self, session: &Session) -> Result<()> {
        session.run(&[], &[], &self.nodes.snapshot)?;
        Ok(())
    }

    /// As [`Saver::save`], of what [`Saver::snapshot`] has set aside.
    pub fn write(&self, session: &Session, folder: &Path, name: &str, step: i64) -> Result<PathBuf> {
        self.write_shards(session, folder, name, step, false)
    }

    /// As [`Saver::write`], at a gentler pace: for steps that go on meanwhile, which go before what it does.
    pub fn write_behind_steps(
        &self,
        session: &Session,
        folder: &Path,
        name: &str,
        step: i64,
    ) -> Result<PathBuf> {
        self.write_shards(session, folder, name, step, true)
    }

    fn write_shards(
        &self,
        session: &Session,
        folder: &Path,
        name: &str,
        step: i64,
        behind_steps: bool,
    ) -> Result<PathBuf> {
        let folder = store::absolute(folder)?;
        store::of(&folder)?.create_folders(&folder)?;
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
        written.inspect_err(|_| self.kept.lock().was_cut_off())?;
        // The workers of a replica that does not lead any more refuse: another's checkpoints are not its to remove.
        let confirm = || session.run(&[], &[], &[self.nodes.confirm]).map(drop);
        self.kept.lock().note(&folder, &prefix, self.keep, confirm)?;
        Ok(prefix)
    }

    /// Gives every variable its value of a checkpoint, whatever parts it was cut into when it was saved.
    ///
    /// # Errors
    /// `NotFound` if the checkpoint or a variable in it is not there, `DataLoss` if a checksum is wrong.
    pub fn restore(&self, session: &Session, prefix: &Path) -> Result<()> {
        self.restore_shards(session, prefix, |_| true)
    }

    /// As [`Saver::restore`], for tasks that hold one of these variables only: all that they hold.
    pub fn restore_lost(&self, session: &Session, prefix: &Path, lost: &[String]) -> Result<()> {
        self.restore_shards(session, prefix, |names| names.iter().any(|name| lost.contains(name)))
    }

    fn restore_shards(
        &self,
        session: &Session,
        prefix: &Path,
        wanted: impl Fn(&[String]) -> bool,
    ) -> Result<()> {
        let shards = self.nodes.shards.iter().filter(|shard| wanted(&shard.variables));
        let nodes: Vec<_> = shards.map(|shard| shard.restore).collect();
        session.run(&[(self.nodes.source, path_tensor(prefix))], &[], &nodes)?;
        Ok(())
    }
}

fn path_tensor(path: &Path) -> Tensor {
    Tensor::string(path.display().to_string())
}
