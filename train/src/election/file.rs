//! Elections in a folder, for replicas on one machine or on a file system that all share and that keeps locks.
//!
//! A term is claimed by a file `<name>.<term>`, which appears at once with its leader's lock on it, and only if there is
//! none of that number yet. The newest file is the leader's for as long as it is locked, which ends with the leader's
//! process, and its time of change moves, which the leader sees to: one that is stopped is replaced after the lease.
//! The time is compared with itself only, so that clocks need not agree.

use super::LeaderStore;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// A [`LeaderStore`] in a folder.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    name: String,
    lease: Duration,
    /// What this store leads by.
    own: Mutex<Option<Claim>>,
    /// The leader's last sign of life.
    seen: Mutex<Option<Sign>>,
}

#[derive(Debug)]
struct Claim {
    term: i64,
    /// Locked for as long as it is open.
    file: File,
}

#[derive(Clone, Copy, Debug)]
struct Sign {
    term: i64,
    changed: SystemTime,
    /// When it was new to this store.
    since: Instant,
}

impl FileStore {
    /// Elections of `name` in a folder, which is made if it is not there. A leader whose process has died is replaced
    /// at once, one that is stopped after `lease`.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no file's; of the folder, by its path.
    pub fn new(folder: impl Into<PathBuf>, name: &str, lease: Duration) -> Result<FileStore> {
        let folder = folder.into();
        if name.is_empty() || name.contains(['/', '\0']) {
            return Err(graph::Error::invalid(format!("'{name}' is no name of an election")).into());
        }
        fs::create_dir_all(&folder).map_err(|e| Error::file(&folder, &e))?;
        Ok(FileStore { folder, name: name.to_owned(), lease, own: Mutex::default(), seen: Mutex::default() })
    }

    fn file(&self, term: i64) -> PathBuf {
        self.folder.join(format!("{}.{term}", self.name))
    }

    /// The terms that have files.
    fn terms(&self) -> Result<Vec<i64>> {
        let in_folder = |e: std::io::Error| Error::file(&self.folder, &e);
        let mut terms = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(in_folder)? {
            let file = entry.map_err(in_folder)?.file_name();
            let term = file
                .to_str()
                .and_then(|f| f.strip_prefix(&self.name)?.strip_prefix('.')?.parse::<i64>().ok());
            terms.extend(term);
        }
        Ok(terms)
    }

    fn newest(&self) -> Result<i64> {
        Ok(self.terms()?.into_iter().max().unwrap_or_default())
    }

    /// Whether another leads under this term.
    fn is_led(&self, term: i64) -> Result<bool> {
        let path = self.file(term);
        let file = match File::open(&path) {
            Ok(file) => file,
            // There is a newer one by now.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(Error::file(&path, &error)),
        };
        match file.try_lock_shared() {
            Ok(()) => return Ok(false),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(Error::file(&path, &error)),
        }
        let changed = file.metadata().and_then(|m| m.modified()).map_err(|e| Error::file(&path, &e))?;
        let mut seen = self.seen.lock();
        let known = seen.filter(|sign| sign.term == term && sign.changed == changed);
        let sign = known.unwrap_or(Sign { term, changed, since: Instant::now() });
        *seen = Some(sign);
        Ok(sign.since.elapsed() < self.lease)
    }

    /// Takes a term; nothing if another has it.
    fn claim(&self, term: i64) -> Result<Option<Claim>> {
        let path = self.file(term);
        let fresh = Fresh(self.folder.join(format!(".{}.{:016x}", self.name, rand::random::<u64>())));
        let made = || {
            let mut file = File::create_new(&fresh.0)?;
            file.lock()?;
            writeln!(file, "process {}", std::process::id())?;
            file.sync_all()?;
            Ok(file)
        };
        let file = made().map_err(|e| Error::file(&fresh.0, &e))?;
        match fs::hard_link(&fresh.0, &path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(Error::file(&path, &error)),
        }
        // The name is to outlive a crash of the machine, since terms never fall.
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| Error::file(&self.folder, &e))?;
        if self.newest()? > term {
            // The term was over, and its file removed, before this one was made.
            fs::remove_file(&path).map_err(|e| Error::file(&path, &e))?;
            return Ok(None);
        }
        Ok(Some(Claim { term, file }))
    }

    fn remove_before(&self, term: i64) -> Result<()> {
        for old in self.terms()?.into_iter().filter(|old| *old < term) {
            let path = self.file(old);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file(&path, &error)),
            }
        }
        Ok(())
    }
}

impl LeaderStore for FileStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn campaign(&self) -> Result<Option<i64>> {
        let mut own = self.own.lock();
        let newest = self.newest()?;
        let leads = own.as_ref().is_some_and(|claim| claim.term == newest);
        if newest > 0 && !leads && self.is_led(newest)? {
            *own = None;
            return Ok(None);
        }
        // Terms never fall, even where somebody has removed their files.
        let newest = own.as_ref().map_or(newest, |claim| claim.term.max(newest));
        let term = newest.checked_add(1).ok_or_else(|| {
            graph::Error::invalid(format!("{} has the last of all terms", self.file(newest).display()))
        })?;
        // What was held until now is let go after the new term is there.
        *own = self.claim(term)?;
        if own.is_none() {
            return Ok(None);
        }
        self.remove_before(term)?;
        Ok(Some(term))
    }

    fn keep(&self, term: i64) -> Result<bool> {
        let mut own = self.own.lock();
        let newest = self.newest()?;
        own.take_if(|claim| claim.term < newest);
        let Some(claim) = own.as_ref().filter(|claim| claim.term == term) else { return Ok(false) };
        let path = self.file(term);
        if newest < term {
            return Err(Error::file(&path, &ErrorKind::NotFound.into()));
        }
        claim.file.set_modified(SystemTime::now()).map_err(|e| Error::file(&path, &e))?;
        Ok(true)
    }

    fn resign(&self, term: i64) -> Result<()> {
        // Its file stays, unlocked: the next term is a higher one.
        self.own.lock().take_if(|claim| claim.term == term);
        Ok(())
    }
}

/// The name of a file that nobody else makes, which is gone when this is.
struct Fresh(PathBuf);

impl Drop for Fresh {
    fn drop(&mut self) {
        // It has another name by now, or is of no use.
        let _ = fs::remove_file(&self.0);
    }
}
