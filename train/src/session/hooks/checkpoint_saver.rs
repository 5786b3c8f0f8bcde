//! A hook that saves checkpoints, optionally while further steps run.

use crate::error::{Error, Result};
use crate::saver::{Saver, latest_checkpoint};
use crate::session::hook::Timer;
use crate::session::{Hook, HookContext, Period, RunValues};
use graph::{Output, Tensor};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Saves a checkpoint at the start, periodically, and at the end, as `<folder>/model.ckpt-<step>`. In a synchronous job
/// all variables of a checkpoint have the values of one global step. In an all-reduce job only the chief saves.
#[derive(Debug)]
pub struct CheckpointSaver {
    saver: Arc<Saver>,
    folder: PathBuf,
    global_step: Output,
    timer: Timer,
    /// True if further steps run while files are written.
    is_asynchronous: bool,
    /// The thread that is writing a checkpoint while further steps run, if there is one.
    writing: Option<JoinHandle<Result<PathBuf>>>,
}

const NAME: &str = "model.ckpt";

impl CheckpointSaver {
    /// Returns a hook that saves at the given period. `global_step` is the
    /// [`global_step`](crate::Training::global_step) of the model's [`Training`](crate::Training).
    pub fn new(
        saver: Arc<Saver>,
        folder: impl Into<PathBuf>,
        global_step: Output,
        every: Period,
    ) -> CheckpointSaver {
        CheckpointSaver {
            saver,
            folder: folder.into(),
            global_step,
            timer: Timer::new(every),
            is_asynchronous: false,
            writing: None,
        }
    }

    /// Makes the hook write files while further steps run: a step waits only for the snapshot. One checkpoint is
    /// written at a time; a checkpoint that is due meanwhile is saved once the first has been written.
    pub fn asynchronous(mut self) -> CheckpointSaver {
        self.is_asynchronous = true;
        self
    }

    /// Takes a snapshot and writes it; if `behind_steps`, on a separate thread, with priority for the steps that run
    /// meanwhile.
    fn save(&mut self, context: &HookContext<'_>, behind_steps: bool) -> Result<()> {
        // No update may come between the read of the global step and the snapshot, so that the snapshot has the values
        // of that step.
        let step = context.between_updates(|| {
            let step = context.session.run(&[], &[self.global_step], &[])?;
            self.saver.snapshot(context.session)?;
            Ok::<_, Error>(step.first().map(Tensor::item::<i64>).transpose()?.unwrap_or_default())
        })?;
        self.timer.record(step);
        if !behind_steps {
            self.saver.write(context.session, &self.folder, NAME, step)?;
            return Ok(());
        }
        let (saver, session, folder) = (self.saver.clone(), context.session.clone(), self.folder.clone());
        let write = move || saver.write_behind_steps(&session, &folder, NAME, step);
        let thread = thread::Builder::new().name("checkpoint-saver".to_owned()).spawn(write);
        self.writing = Some(thread.map_err(|e| Error::file(&self.folder, &e))?);
        Ok(())
    }

    /// Saves a last checkpoint, unless the current step has been saved.
    fn save_last(&mut self, context: &HookContext<'_>) -> Result<()> {
        if !context.saves_variables() {
            return Ok(());
        }
        self.collect_written(true)?;
        let step = context.session.run(&[], &[self.global_step], &[])?;
        if step.first().map(Tensor::item::<i64>).transpose()? == self.timer.last_step() {
            return Ok(());
        }
        self.save(context, false)
    }

    /// Returns whether no thread is writing a checkpoint any more, after waiting for the thread if `waits`. Returns the
    /// error of the write if it has failed.
    fn collect_written(&mut self, waits: bool) -> Result<bool> {
        match self.writing.take() {
            Some(thread) if !waits && !thread.is_finished() => {
                self.writing = Some(thread);
                Ok(false)
            }
            Some(thread) => match thread.join() {
                Ok(written) => written.map(|_| true),
                Err(_) => Err(Error::Panicked { thread: "checkpoint-saver".into() }),
            },
            None => Ok(true),
        }
    }
}

impl Hook for CheckpointSaver {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        if !context.saves_variables() {
            return Ok(());
        }
        let step = context.session.run(&[], &[self.global_step], &[])?;
        let step = step.first().map(Tensor::item::<i64>).transpose()?.unwrap_or_default();
        // The checkpoint from which the variables were just restored need not be saved again.
        let newest = latest_checkpoint(&self.folder)?;
        if newest.is_some_and(|prefix| prefix.ends_with(format!("{NAME}-{step}"))) {
            self.timer.record(step);
            return Ok(());
        }
        self.save(context, self.is_asynchronous)
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        let is_due = context.saves_variables() && run.global_step.is_some_and(|step| self.timer.is_due(step));
        if self.collect_written(false)? && is_due { self.save(context, self.is_asynchronous) } else { Ok(()) }
    }

    fn before_recovery(&mut self, _: &HookContext<'_>) {
        // The result is ignored: an interrupted save leaves no checkpoint, and the next save is tried regardless.
        let _ = self.collect_written(true);
    }

    fn after_last_step(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.save_last(context)
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.save_last(context)
    }
}
