//! Elections in a folder, for replicas on one machine or on a shared file system with locks.
//!
//! A term is claimed by a file `<name>.<term>`. The file appears atomically, locked by the claiming process, and only
//! if the term has no file yet. The owner of the newest file is the leader while it holds the lock, which ends with its
//! process, and keeps updating the file's modification time: a stopped leader is replaced after the lease. Each process
//! compares the modification time only with its earlier reads of it, so the machines' clocks need not agree.

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
    /// The leadership of this store, if it leads.
    own: Mutex<Option<Leadership>>,
    /// The last observed modification of the leader's file.
    observed: Mutex<Option<ObservedChange>>,
}

/// The leadership of this store: its term, and the locked file that claims the term.
#[derive(Debug)]
struct Leadership {
    term: i64,
    /// The term's file, locked while it is open.
    file: File,
}

/// An observed modification of a leader's file.
#[derive(Clone, Copy, Debug)]
struct ObservedChange {
    term: i64,
    changed: SystemTime,
    /// The time when this store first observed the modification.
    since: Instant,
}

impl FileStore {
    /// Opens the election `name` in a folder, which is created if it does not exist. A leader whose process has died is
    /// replaced at once; a leader that does not renew is replaced after `lease`.
    ///
    /// # Errors
    /// `InvalidArgument` if `name` cannot be part of a file name, and errors of the folder, with its path.
    pub fn new(folder: impl Into<PathBuf>, name: &str, lease: Duration) -> Result<FileStore> {
        let folder = folder.into();
        if name.is_empty() || name.contains(['/', '\0']) {
            return Err(graph::Error::invalid(format!("'{name}' is no name of an election")).into());
        }
        fs::create_dir_all(&folder).map_err(|e| Error::file(&folder, &e))?;
        Ok(FileStore {
            folder,
            name: name.to_owned(),
            lease,
            own: Mutex::default(),
            observed: Mutex::default(),
        })
    }

    /// Returns the path of the file that claims a term.
    fn file(&self, term: i64) -> PathBuf {
        self.folder.join(format!("{}.{term}", self.name))
    }

    /// Returns the terms that have files.
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

    /// Returns the highest term that has a file; 0 if no term has one.
    fn newest(&self) -> Result<i64> {
        Ok(self.terms()?.into_iter().max().unwrap_or_default())
    }

    /// Returns whether another store leads in this term.
    fn is_led(&self, term: i64) -> Result<bool> {
        let path = self.file(term);
        let file = match File::open(&path) {
            Ok(file) => file,
            // The leader of a newer term has removed the file of this term.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(Error::file(&path, &error)),
        };
        match file.try_lock_shared() {
            Ok(()) => return Ok(false),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(Error::file(&path, &error)),
        }
        let changed = file.metadata().and_then(|m| m.modified()).map_err(|e| Error::file(&path, &e))?;
        let mut observed = self.observed.lock();
        let unchanged = observed.filter(|change| change.term == term && change.changed == changed);
        let change = unchanged.unwrap_or(ObservedChange { term, changed, since: Instant::now() });
        *observed = Some(change);
        Ok(change.since.elapsed() < self.lease)
    }

    /// Claims a term. Returns `None` if another store has claimed it.
    fn claim(&self, term: i64) -> Result<Option<Leadership>> {
        let path = self.file(term);
        let temporary =
            TemporaryFile(self.folder.join(format!(".{}.{:016x}", self.name, rand::random::<u64>())));
        let create = || {
            let mut file = File::create_new(&temporary.0)?;
            file.lock()?;
            writeln!(file, "process {}", std::process::id())?;
            file.sync_all()?;
            Ok(file)
        };
        let file = create().map_err(|e| Error::file(&temporary.0, &e))?;
        match fs::hard_link(&temporary.0, &path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(Error::file(&path, &error)),
        }
        // The file's name must survive a crash of the machine, because a later term must never be lower.
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| Error::file(&self.folder, &e))?;
        if self.newest()? > term {
            // A newer term exists: the file of this term had been removed before this one was created.
            fs::remove_file(&path).map_err(|e| Error::file(&path, &e))?;
            return Ok(None);
        }
        Ok(Some(Leadership { term, file }))
    }

    /// Removes the files that claim terms before `term`.
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
        // The term must rise even if the files of earlier terms have been removed.
        let newest = own.as_ref().map_or(newest, |claim| claim.term.max(newest));
        let term = newest.checked_add(1).ok_or_else(|| {
            graph::Error::invalid(format!("{} has the highest possible term", self.file(newest).display()))
        })?;
        // The assignment unlocks the old term's file only after the new file exists.
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
        // The file stays, unlocked, so that the next term is higher.
        self.own.lock().take_if(|claim| claim.term == term);
        Ok(())
    }
}

/// A temporary file with a unique name, which is removed on drop.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // An error is ignored: the file has its final name already, or the term was not claimed and the file is not
        // needed.
        let _ = fs::remove_file(&self.0);
    }
}
