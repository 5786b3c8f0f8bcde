//! The file `checkpoint` of a folder, which lists its checkpoints, the newest last. Its text format is
//! TensorFlow's.

use crate::error::Result;
use checkpoint::{bundle, store};
use graph::Code;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The content of the file `checkpoint`. Paths within the folder are written relative to the folder, so that the folder
/// can be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointState {
    /// The newest checkpoint.
    pub model_checkpoint_path: Option<PathBuf>,
    /// All kept checkpoints, oldest first.
    pub all_model_checkpoint_paths: Vec<PathBuf>,
}

const FILE: &str = "checkpoint";

impl CheckpointState {
    /// Reads the folder's file. Returns an empty state if there is none.
    ///
    /// # Errors
    /// `DataLoss` if the file is not a checkpoint state.
    pub fn read(folder: &Path) -> Result<CheckpointState> {
        let file = folder.join(FILE);
        let text = match store::read(&file) {
            Ok(text) => text,
            Err(error) if error.code() == Code::NotFound => return Ok(CheckpointState::default()),
            Err(error) => return Err(error.into()),
        };
        let text = String::from_utf8(text)
            .map_err(|_| checkpoint::Error::corrupt(&file, "is no checkpoint state"))?;
        let mut state = CheckpointState::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let damaged = || checkpoint::Error::corrupt(&file, format!("is no checkpoint state: {line}"));
            let (field, value) = line.split_once(':').ok_or_else(damaged)?;
            let path = |value: &str| {
                let text = unquoted(value.trim()).ok_or_else(damaged)?;
                Ok::<_, checkpoint::Error>(store::within(folder, &text))
            };
            match field.trim() {
                "model_checkpoint_path" => state.model_checkpoint_path = Some(path(value)?),
                "all_model_checkpoint_paths" => state.all_model_checkpoint_paths.push(path(value)?),
                // Other fields are timestamps, which are not used.
                _ => {}
            }
        }
        Ok(state)
    }

    /// Replaces the folder's file atomically: readers see the old or the new content.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let shown = |path: &Path| quoted(&path.strip_prefix(folder).unwrap_or(path).display().to_string());
        let mut text = String::new();
        if let Some(newest) = &self.model_checkpoint_path {
            text += &format!("model_checkpoint_path: {}\n", shown(newest));
        }
        for path in &self.all_model_checkpoint_paths {
            text += &format!("all_model_checkpoint_paths: {}\n", shown(path));
        }
        Ok(store::write(folder.join(FILE), text.as_bytes())?)
    }
}

/// Returns the newest complete checkpoint listed in a folder's `checkpoint` file or, if none listed is complete, the
/// newest complete one of all in the folder. Checkpoints with incomplete index or data are skipped.
///
/// # Errors
/// A store that does not answer, because it may hold a newer checkpoint than those found.
pub fn latest_checkpoint(folder: &Path) -> Result<Option<PathBuf>> {
    let state = CheckpointState::read(folder)?;
    let recorded =
        state.model_checkpoint_path.into_iter().chain(state.all_model_checkpoint_paths.into_iter().rev());
    for prefix in recorded {
        if is_complete(&prefix)? {
            return Ok(Some(prefix));
        }
    }
    for prefix in newest_first(folder)? {
        if is_complete(&prefix)? {
            return Ok(Some(prefix));
        }
    }
    Ok(None)
}

/// Returns whether a checkpoint is complete: its index can be read and all data that it refers to exists. Checksums of
/// the data are not checked, because each is checked when the data is read.
fn is_complete(prefix: &Path) -> Result<bool> {
    match bundle::Reader::open(prefix).and_then(|mut reader| reader.check_extents()) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// Returns the prefixes of all checkpoints in a folder that have an index file, newest first. Checkpoints with the same
/// time of modification are sorted by step.
fn newest_first(folder: &Path) -> Result<Vec<PathBuf>> {
    let store = store::store_of(folder)?;
    let mut found: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for prefix in checkpoint_prefixes(folder)? {
        match store.modified(&bundle::index_file(&prefix)) {
            Ok(modified) => found.push((modified, step_of(&prefix), prefix)),
            // The index has been deleted since the folder was listed.
            Err(error) if error.code() == Code::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found.into_iter().rev().map(|(.., prefix)| prefix).collect())
}

/// Returns the prefixes of all checkpoints in a folder that have an index file, in no particular order.
pub fn checkpoint_prefixes(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = store::store_of(folder)?.list(folder)?.into_iter().map(PathBuf::from);
    let indexes = files.filter(|file| file.extension().is_some_and(|e| e == "index"));
    Ok(indexes.map(|index| folder.join(index.with_extension(""))).collect())
}

/// Returns the step at the end of a checkpoint's name; 0 if it has none.
pub fn step_of(prefix: &Path) -> u64 {
    let name = prefix.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    name.rsplit_once('-').and_then(|(_, step)| step.parse().ok()).unwrap_or(0)
}

/// Quotes a string as in protobuf's text format.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the content of a string quoted as in protobuf's text format, or `None` if it is malformed.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next()? } else { c });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::fs;

    #[test]
    fn checkpoints_of_the_same_time_are_sorted_by_step() -> std::result::Result<(), Box<dyn std::error::Error>>
    {
        let folder = std::env::temp_dir().join(format!("anabranch-same-moment-{}", std::process::id()));
        let moment = SystemTime::now();
        fs::create_dir_all(&folder)?;
        for step in [10, 9, 100] {
            fs::File::create(folder.join(format!("m-{step}.index")))?.set_modified(moment)?;
        }
        let steps: Vec<u64> = newest_first(&folder)?.iter().map(|prefix| step_of(prefix)).collect();
        fs::remove_dir_all(&folder)?;
        assert_eq!(steps, [100, 10, 9]);
        Ok(())
    }

    #[test]
    fn a_written_state_is_read_back() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("anabranch-state-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|e| Error::file(&folder, &e))?;
        assert_eq!(CheckpointState::read(&folder)?, CheckpointState::default());
        let state = CheckpointState {
            model_checkpoint_path: Some(folder.join("model \"b\"-2")),
            all_model_checkpoint_paths: vec![folder.join("model-1"), PathBuf::from("/else/where-2")],
        };
        state.write(&folder)?;
        assert_eq!(CheckpointState::read(&folder)?, state);
        let text = fs::read_to_string(folder.join(FILE)).map_err(|e| Error::file(&folder, &e))?;
        assert!(text.starts_with("model_checkpoint_path: \"model \\\"b\\\"-2\"\n"), "{text}");
        fs::write(folder.join(FILE), "rubbish").map_err(|e| Error::file(&folder, &e))?;
        assert!(CheckpointState::read(&folder).is_err());
        fs::remove_dir_all(&folder).map_err(|e| Error::file(&folder, &e))
    }
}
