//! The removal of old checkpoints, and of files that interrupted saves left behind.

use super::state::{CheckpointState, step_of};
use crate::error::Result;
use checkpoint::{bundle, store};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The rule that decides which checkpoints are kept. The defaults are TensorFlow's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The number of newest checkpoints to keep; 0 keeps all.
    pub max_to_keep: usize,
    /// The period of permanent checkpoints: once per period, a checkpoint beyond `max_to_keep` is kept for good.
    pub every: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { max_to_keep: 5, every: None }
    }
}

/// The state that is needed from one save to the next, to decide which checkpoints and files to remove.
#[derive(Debug, Default)]
pub(super) struct RetentionState {
    /// The time of the first save, or of the last decision to keep a checkpoint permanently.
    preserved: Option<Instant>,
    /// The checkpoints whose removal has failed and is tried again at the next save.
    superfluous: Vec<PathBuf>,
    /// True if the files of interrupted saves have been removed and no save has been interrupted since.
    is_tidy: bool,
}

impl RetentionState {
    /// Records a complete checkpoint, and removes the checkpoints beyond `keep`, if `confirm` succeeds.
    pub(super) fn register(
        &mut self,
        folder: &Path,
        prefix: &Path,
        keep: Retention,
        confirm: impl FnOnce() -> client::Result<()>,
    ) -> Result<()> {
        // The paths are sorted by age, the oldest first. Checkpoints of other processes in this folder count too.
        let mut paths = CheckpointState::read(folder)?.all_model_checkpoint_paths;
        paths.retain(|known| known != prefix);
        paths.push(prefix.to_owned());
        let started = *self.preserved.get_or_insert_with(Instant::now);
        let mut preserved = started;
        let mut superfluous = Vec::new();
        while keep.max_to_keep > 0 && paths.len() > keep.max_to_keep {
            let oldest = paths.remove(0);
            if keep.every.is_some_and(|every| started.elapsed() >= every) {
                preserved = Instant::now();
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
        self.preserved = Some(preserved);
        superfluous.append(&mut self.superfluous);
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

    /// Records that a save was interrupted, so that the next save removes its files.
    pub(super) fn mark_interrupted(&mut self) {
        self.is_tidy = false;
    }

    /// Removes the files of interrupted saves, and logs a failure to remove them.
    fn tidy(&mut self, folder: &Path, prefix: &Path) {
        let tidied = remove_fragments(folder, prefix);
        self.is_tidy = tidied.is_ok();
        if let Err(error) = tidied {
            let folder = folder.display();
            tracing::warn!("the files of interrupted saves in {folder} could not be removed: {error}");
        }
    }
}

/// Removes the files left by interrupted saves of earlier steps with the checkpoint name of `prefix`.
fn remove_fragments(folder: &Path, prefix: &Path) -> Result<()> {
    let store = store::store_of(folder)?;
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

/// Returns a checkpoint's name without its step, or `None` if it has no step.
fn series_of(prefix: &Path) -> Option<&str> {
    let (series, step) = prefix.file_name()?.to_str()?.rsplit_once('-')?;
    step.parse::<u64>().is_ok().then_some(series)
}

/// Removes a checkpoint, its index first: if the removal is interrupted, data files without an index are not taken for
/// a checkpoint.
fn remove(prefix: &Path) -> Result<()> {
    let store = store::store_of(prefix)?;
    store.delete(&bundle::index_file(prefix))?;
    let (Some(folder), Some(name)) = (prefix.parent(), prefix.file_name().and_then(|n| n.to_str())) else {
        return Ok(());
    };
    let data_prefix = format!("{name}.data-");
    for file in store.list(folder)? {
        if file.to_str().is_some_and(|file| file.starts_with(&data_prefix)) {
            store.delete(&folder.join(file))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_that_fails_keeps_the_removals_that_are_to_be_retried()
    -> std::result::Result<(), Box<dyn std::error::Error>> {
        let folder = std::env::temp_dir().join(format!("anabranch-retention-{}", std::process::id()));
        let keep = Retention::default();
        let old = folder.join("model-1");
        let mut state =
            RetentionState { superfluous: vec![old.clone()], is_tidy: true, ..Default::default() };
        let fails = state.register(&folder, &folder.join("model-2"), keep, || Err(client::Error::Closed));
        assert!(fails.is_err());
        assert_eq!(state.superfluous, [old]);
        std::fs::create_dir_all(&folder)?;
        state.register(&folder, &folder.join("model-2"), keep, || Ok(()))?;
        assert_eq!(state.superfluous, [] as [PathBuf; 0]);
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
