//! Which checkpoints are kept.

use super::state::{CheckpointState, step_of};
use crate::error::Result;
use checkpoint::{bundle, store};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many checkpoints are kept. The defaults are TensorFlow's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many; 0 keeps all.
    pub max_to_keep: usize,
    /// Besides, for good, the first one after each such time.
    pub every: Option<Duration>,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { max_to_keep: 5, every: None }
    }
}

/// What is remembered between saves.
#[derive(Debug, Default)]
pub(super) struct Kept {
    preserved: Option<Instant>,
    /// Checkpoints that could not be removed.
    superfluous: Vec<PathBuf>,
    /// No save of ours was cut off since what others had left was removed.
    is_tidy: bool,
}

impl Kept {
    /// Adds a checkpoint that is whole, and removes those that are not to be kept, if that is confirmed.
    pub(super) fn note(
        &mut self,
        folder: &Path,
        prefix: &Path,
        keep: Keep,
        confirm: impl FnOnce() -> client::Result<()>,
    ) -> Result<()> {
        // Oldest first. What another process has saved here counts too.
        let mut paths = CheckpointState::read(folder)?.all_model_checkpoint_paths;
        paths.retain(|known| known != prefix);
        paths.push(prefix.to_owned());
        let started = *self.preserved.get_or_insert_with(Instant::now);
        let mut superfluous = std::mem::take(&mut self.superfluous);
        while keep.max_to_keep > 0 && paths.len() > keep.max_to_keep {
            let oldest = paths.remove(0);
            if keep.every.is_some_and(|every| started.elapsed() >= every) {
                self.preserved = Some(Instant::now());
            } else {
                superfluous.push(oldest);
            }
        }
        let state = CheckpointState {
            model_checkpoint_path: Some(prefix.to_owned()),
            all_model_checkpoint_paths: paths,
        };
        confirm()?;
        state.write(folder)?;
        for old in superfluous {
            if let Err(error) = remove(&old) {
                tracing::warn!("the checkpoint {} could not be removed: {error}", old.display());
                self.superfluous.push(old);
            }
        }
        if !self.is_tidy {
            self.tidy(folder, prefix);
        }
        Ok(())
    }

    /// A save was cut off: the next one removes what it has left.
    pub(super) fn was_cut_off(&mut self) {
        self.is_tidy = false;
    }

    fn tidy(&mut self, folder: &Path, prefix: &Path) {
        let tidied = remove_fragments(folder, prefix);
        self.is_tidy = tidied.is_ok();
        if let Err(error) = tidied {
            let folder = folder.display();
            tracing::warn!("what earlier saves have left in {folder} could not be removed: {error}");
        }
    }
}

/// Removes what saves under this name left that were cut off at earlier steps.
fn remove_fragments(folder: &Path, prefix: &Path) -> Result<()> {
    let store = store::of(folder)?;
    let series = series_of(prefix);
    for name in store.list(folder)? {
        let fragment = folder.join(name);
        let Some(of) = fragment.to_str().and_then(|text| text.strip_suffix("_temp")).map(Path::new) else {
            continue;
        };
        if series_of(of) == series && step_of(of) < step_of(prefix) {
            for part in store.list(&fragment)? {
                store.delete(&fragment.join(part))?;
            }
            store.remove_folder(&fragment)?;
        }
    }
    Ok(())
}

/// A checkpoint's name without its step, if it has both.
fn series_of(prefix: &Path) -> Option<&str> {
    let (series, step) = prefix.file_name()?.to_str()?.rsplit_once('-')?;
    step.parse::<u64>().is_ok().then_some(series)
}

/// Removes a checkpoint, its index first: what remains if this is cut off is none.
fn remove(prefix: &Path) -> Result<()> {
    let store = store::of(prefix)?;
    store.delete(&bundle::index_file(prefix))?;
    let (Some(folder), Some(name)) = (prefix.parent(), prefix.file_name().and_then(|n| n.to_str())) else {
        return Ok(());
    };
    let of_data = format!("{name}.data-");
    for file in store.list(folder)? {
        if file.to_str().is_some_and(|file| file.starts_with(&of_data)) {
            store.delete(&folder.join(file))?;
        }
    }
    Ok(())
}
