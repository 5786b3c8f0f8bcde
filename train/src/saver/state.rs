//! The file `checkpoint` of a folder: which checkpoints are there, the newest last. Its text is TensorFlow's.

use crate::error::Result;
use checkpoint::{bundle, store};
use graph::Code;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What the file says. Paths within the folder are written relative to it, so that a folder may be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointState {
    /// The newest.
    pub model_checkpoint_path: Option<PathBuf>,
    /// All that are kept, oldest first.
    pub all_model_checkpoint_paths: Vec<PathBuf>,
}

const FILE: &str = "checkpoint";

impl CheckpointState {
    /// What the folder's file says; nothing if it is not there.
    ///
    /// # Errors
    /// `DataLoss` of a file that is no checkpoint state.
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
                // Times, which nothing here needs.
                _ => {}
            }
        }
        Ok(state)
    }

    /// Replaces the folder's file at once: it is the old one or the new one, never a part.
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

/// The newest whole checkpoint of a folder: of those in its `checkpoint` file, then of any that are there. One whose
/// index or data is not all there is passed over.
///
/// # Errors
/// Of a store that does not answer: what it holds may be newer than what else is found.
pub fn latest_checkpoint(folder: &Path) -> Result<Option<PathBuf>> {
    let state = CheckpointState::read(folder)?;
    let noted =
        state.model_checkpoint_path.into_iter().chain(state.all_model_checkpoint_paths.into_iter().rev());
    for prefix in noted {
        if is_whole(&prefix)? {
            return Ok(Some(prefix));
        }
    }
    for prefix in by_age(folder)? {
        if is_whole(&prefix)? {
            return Ok(Some(prefix));
        }
    }
    Ok(None)
}

/// Whether a checkpoint's index can be read and all that it leads to is there. Checksums of data are checked when it
/// is read.
fn is_whole(prefix: &Path) -> Result<bool> {
    match bundle::Reader::open(prefix).and_then(|mut reader| reader.check_extents()) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// Prefixes of all indexes in a folder, newest first. Those of the same moment, as far as the store tells, go by their
/// steps.
fn by_age(folder: &Path) -> Result<Vec<PathBuf>> {
    let store = store::of(folder)?;
    let mut found: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for prefix in checkpoint_prefixes(folder)? {
        match store.modified(&bundle::index_file(&prefix)) {
            Ok(modified) => found.push((modified, step_of(&prefix), prefix)),
            // Deleted meanwhile.
            Err(error) if error.code() == Code::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort();
    Ok(found.into_iter().rev().map(|(.., prefix)| prefix).collect())
}

/// Prefixes of all indexes in a folder, in no order.
pub fn checkpoint_prefixes(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = store::of(folder)?.list(folder)?.into_iter().map(PathBuf::from);
    let indexes = files.filter(|file| file.extension().is_some_and(|e| e == "index"));
    Ok(indexes.map(|index| folder.join(index.with_extension(""))).collect())
}

/// The step at the end of a checkpoint's name; 0 if there is none.
pub fn step_of(prefix: &Path) -> u64 {
    let name = prefix.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    name.rsplit_once('-').and_then(|(_, step)| step.parse().ok()).unwrap_or(0)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

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
    fn of_the_same_moment_the_later_step_is_newer() -> std::result::Result<(), Box<dyn std::error::Error>> {
        let folder = std::env::temp_dir().join(format!("anabranch-same-moment-{}", std::process::id()));
        let moment = SystemTime::now();
        fs::create_dir_all(&folder)?;
        for step in [10, 9, 100] {
            fs::File::create(folder.join(format!("m-{step}.index")))?.set_modified(moment)?;
        }
        let steps: Vec<u64> = by_age(&folder)?.iter().map(|prefix| step_of(prefix)).collect();
        fs::remove_dir_all(&folder)?;
        assert_eq!(steps, [100, 10, 9]);
        Ok(())
    }

    #[test]
    fn what_is_written_is_read() -> Result<()> {
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
