//! Saves checkpoints, behind the steps if that is wanted.

use crate::error::{Error, Result};
use crate::saver::{Saver, latest_checkpoint};
use crate::session::hook::Timer;
use crate::session::{Every, Hook, HookContext, RunValues};
use graph::{Output, Tensor};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Saves at the start, now and then, and at the end, as `<folder>/model.ckpt-<step>`. Of a synchronous job all
/// variables in a checkpoint are of one step.
#[derive(Debug)]
pub struct CheckpointSaver {
    saver: Arc<Saver>,
    folder: PathBuf,
    global_step: Output,
    timer: Timer,
    /// Whether steps go on while files are written.
    is_asynchronous: bool,
    writing: Option<JoinHandle<Result<PathBuf>>>,
}

const NAME: &str = "model.ckpt";

impl CheckpointSaver {
    /// `global_step` is a training's [`global_step`](crate::Training::global_step).
    pub fn new(
        saver: Arc<Saver>,
        folder: impl Into<PathBuf>,
        global_step: Output,
        every: Every,
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

    /// Files are written while steps go on: a step waits only until the values are set aside. One checkpoint is
    /// written at a time; what is due meanwhile is saved after it.
    pub fn asynchronous(mut self) -> CheckpointSaver {
        self.is_asynchronous = true;
        self
    }

    fn save(&mut self, context: &HookContext<'_>, behind_steps: bool) -> Result<()> {
        // The step is read with the values, so that the name is theirs.
        let step = context.between_updates(|| {
            let step = context.session.run(&[], &[self.global_step], &[])?;
            self.saver.snapshot(context.session)?;
            Ok::<_, Error>(step.first().map(Tensor::item::<i64>).transpose()?.unwrap_or_default())
        })?;
        self.timer.done(step);
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

    /// Saves what there is at the end.
    fn save_last(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.written(true)?;
        let step = context.session.run(&[], &[self.global_step], &[])?;
        if step.first().map(Tensor::item::<i64>).transpose()? == self.timer.last_step() {
            return Ok(());
        }
        self.save(context, false)
    }

    /// What came of a checkpoint that is written behind the steps, if it is done or `waits`.
    fn written(&mut self, waits: bool) -> Result<bool> {
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
        let step = context.session.run(&[], &[self.global_step], &[])?;
        let step = step.first().map(Tensor::item::<i64>).transpose()?.unwrap_or_default();
        // What was restored is there already.
        let newest = latest_checkpoint(&self.folder)?;
        if newest.is_some_and(|prefix| prefix.ends_with(format!("{NAME}-{step}"))) {
            self.timer.done(step);
            return Ok(());
        }
        self.save(context, self.is_asynchronous)
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        let is_due = run.global_step.is_some_and(|step| self.timer.is_due(step));
        if self.written(false)? && is_due { self.save(context, self.is_asynchronous) } else { Ok(()) }
    }

    fn before_recovery(&mut self, _: &HookContext<'_>) {
        // A checkpoint that was cut off is none; the next one tries again.
        let _ = self.written(true);
    }

    fn settle(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.save_last(context)
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.save_last(context)
    }
}
