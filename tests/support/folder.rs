//! Folders that go with what uses them.

use super::Fallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where files of tests go: below `target/`, or, where the tests were not built, where the system has such.
pub fn temporary() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if built.is_dir() { built.to_owned() } else { std::env::temp_dir() }
}

/// A folder of its own, whoever else has one of this name.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Fallible<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = temporary().join(own);
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
