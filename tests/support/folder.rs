//! Temporary folders of tests.

use super::Fallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the folder for files of tests: below `target/`, or the system's temporary folder if the tests were built on
/// another machine.
pub fn temporary() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if built.is_dir() { built.to_owned() } else { std::env::temp_dir() }
}

/// A temporary folder, deleted when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder whose name begins with `name` and is unique among all tests and processes.
    pub fn new(name: &str) -> Fallible<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = temporary().join(own);
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the file `name` in the folder.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be deleted harms no test.
        let _ = fs::remove_dir_all(&self.0);
    }
}
