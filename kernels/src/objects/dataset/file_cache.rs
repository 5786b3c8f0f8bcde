//! Caching in files: the first complete iteration writes the elements to a bundle of tensors in TensorFlow's format, and
//! later iterations read them from it. The key of a tensor is the number of its element and of its component.

use super::state::{ExchangedState, StateExchange, mismatch};
use super::transform::{batch_preserving, from_state};
use super::{Dataset, DatasetIterator, Element, IteratorContext, Pull};
use checkpoint::bundle::{MergeOptions, Reader, Writer, index_file, merge};
use checkpoint::store;
use device::{Error, Result};
use graph::Code;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of elements of a cache, whose numbers have seven digits in the keys.
const MOST_ELEMENTS: u64 = 10_000_000;

/// Returns the dataset of the input's elements, which are kept in the files with the prefix `prefix` after the first
/// complete iteration. Files that exist already are read instead of the input.
///
/// # Errors
/// `Unimplemented` if the prefix is in a remote store.
pub(crate) fn file_cache(input: Arc<Dataset>, prefix: PathBuf) -> Result<Arc<Dataset>> {
    if !store::is_local(&prefix) {
        return Err(Error::unimplemented(format!(
            "a cache of a dataset in the remote store of {}; a local file name is supported",
            prefix.display()
        )));
    }
    let inner = input.clone();
    batch_preserving("FileCache", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let components = inner.spec.dtypes.len();
        let files = CacheFiles { prefix: prefix.clone(), components };
        let state = FileCacheState { files, input: inner.clone(), ctx: ctx.clone(), pass: None };
        from_state("FileCache", state, |state, pull| {
            let pass = match &mut state.pass {
                Some(pass) => pass,
                None => state.pass.insert(if index_file(&state.files.prefix).exists() {
                    FilePass::Reads(state.files.open()?, 0)
                } else {
                    FilePass::Fills(CacheWriter::new(&state.files, state.input.iterator(&state.ctx)?))
                }),
            };
            match pass {
                FilePass::Reads(reader, next) => {
                    let element = state.files.read(reader, *next)?;
                    *next += u64::from(element.is_some());
                    Ok(element)
                }
                FilePass::Fills(writer) => writer.next(pull),
            }
        })
    })
}

/// The names of the files of a cache and of the tensors in them.
#[derive(Clone)]
struct CacheFiles {
    prefix: PathBuf,
    /// Number of components of an element.
    components: usize,
}

impl CacheFiles {
    /// Returns the key of a component of an element.
    fn key(&self, element: u64, component: usize) -> Vec<u8> {
        let width = self.components.saturating_sub(1).to_string().len();
        format!("{element:7}_{component:width$}").into_bytes()
    }

    /// Returns the prefix of part `part` of a cache that is not complete.
    fn part(&self, part: usize) -> PathBuf {
        self.with_suffix(&format!("_{part}"))
    }

    /// Returns the file that exists while an iterator writes part `part`.
    fn lock(&self, part: usize) -> PathBuf {
        self.with_suffix(&format!("_{part}.lockfile"))
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    fn open(&self) -> Result<Reader> {
        Ok(Reader::open(&self.prefix)?)
    }

    /// Returns an element of the cache; `None` after the last.
    fn read(&self, reader: &mut Reader, element: u64) -> Result<Option<Element>> {
        match reader.lookup(&self.key(element, 0)) {
            Err(error) if error.code() == Code::NotFound => Ok(None),
            _ => (0..self.components)
                .map(|component| Ok(reader.read(&self.key(element, component))?))
                .collect::<Result<Element>>()
                .map(Some),
        }
    }
}

/// The state of an iterator over a dataset that is cached in files.
struct FileCacheState {
    files: CacheFiles,
    input: Arc<Dataset>,
    ctx: IteratorContext,
    /// `None` before the first pull.
    pass: Option<FilePass>,
}

/// An iteration over a dataset that is cached in files.
enum FilePass {
    /// Reads the cache; the number is that of the next element.
    Reads(Reader, u64),
    /// Reads the input and writes the cache.
    Fills(CacheWriter),
}

impl ExchangedState for FileCacheState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let mut read = match &self.pass {
            Some(FilePass::Reads(_, next)) => Some(*next),
            _ => None,
        };
        exchange.value(&mut read)?;
        let mut is_filling = matches!(self.pass, Some(FilePass::Fills(..)));
        exchange.value(&mut is_filling)?;
        if exchange.is_restoring() {
            self.pass = match (read, is_filling) {
                (Some(next), _) => Some(FilePass::Reads(self.files.open()?, next)),
                (None, true) => {
                    Some(FilePass::Fills(CacheWriter::new(&self.files, self.input.iterator(&self.ctx)?)))
                }
                (None, false) => None,
            };
        }
        if let Some(FilePass::Fills(writer)) = &mut self.pass {
            writer.exchange(exchange)?;
            // Another iterator may have completed the cache since the state was saved.
            if exchange.is_restoring() && index_file(&self.files.prefix).exists() {
                self.pass = Some(FilePass::Reads(self.files.open()?, writer.next));
            } else if exchange.is_restoring() {
                writer.check_parts()?;
            }
        }
        Ok(())
    }
}

/// The writer of a cache. It starts another part each time the iterator is saved, because a restored iterator continues
/// after the last complete part; at the end of the input, the parts are merged.
struct CacheWriter {
    files: CacheFiles,
    /// The input; `None` once it has ended and the cache is complete.
    input: Option<Box<dyn DatasetIterator>>,
    /// The number of the part that is open or that follows the last complete one.
    part: usize,
    /// The number of the next element.
    next: u64,
    /// The open part.
    open: Option<Writer>,
    /// The parts whose lock files this writer made.
    locked: Vec<usize>,
    /// True once a state has been saved that refers to the complete parts.
    is_saved: bool,
}

impl CacheWriter {
    fn new(files: &CacheFiles, input: Box<dyn DatasetIterator>) -> CacheWriter {
        let files = files.clone();
        let locked = Vec::new();
        CacheWriter { files, input: Some(input), part: 0, next: 0, open: None, locked, is_saved: false }
    }

    /// Returns the next element of the input and adds it to the cache.
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        if self.input.is_none() {
            return Ok(None);
        }
        if self.open.is_none() {
            self.start_part()?;
        }
        let Some(input) = &mut self.input else { return Ok(None) };
        let Some(element) = input.next(pull)? else {
            self.complete()?;
            return Ok(None);
        };
        if self.next >= MOST_ELEMENTS {
            device::invalid!(
                "a cache in files holds at most {MOST_ELEMENTS} elements, and the dataset has more"
            );
        }
        if element.len() != self.files.components {
            device::invalid!(
                "an element to be cached has {} components, not {}",
                element.len(),
                self.files.components
            );
        }
        if let Some(writer) = &mut self.open {
            for (component, tensor) in element.iter().enumerate() {
                writer.add(&self.files.key(self.next, component), tensor)?;
            }
        }
        self.next += 1;
        Ok(Some(element))
    }

    /// Makes the lock file of the next part and opens it.
    ///
    /// # Errors
    /// `AlreadyExists` if the lock file exists, because another iterator writes the same part.
    fn start_part(&mut self) -> Result<()> {
        let path = self.files.lock(self.part);
        create_lock(&path)?;
        self.locked.push(self.part);
        self.open = Some(Writer::create(self.files.part(self.part))?);
        Ok(())
    }

    /// Merges the parts into the cache.
    fn complete(&mut self) -> Result<()> {
        self.close_part()?;
        let parts: Vec<PathBuf> = (0..self.part).map(|part| self.files.part(part)).collect();
        let options = MergeOptions { delete_old_dirs: false, allow_missing_files: false };
        merge(&parts, &self.files.prefix, options)?;
        self.input = None;
        self.unlock();
        Ok(())
    }

    fn close_part(&mut self) -> Result<()> {
        if let Some(writer) = self.open.take() {
            writer.finish()?;
            self.part += 1;
        }
        Ok(())
    }

    /// Checks that the complete parts exist.
    ///
    /// # Errors
    /// `NotFound` naming the file that is missing.
    fn check_parts(&self) -> Result<()> {
        let files = (0..self.part).map(|part| index_file(self.files.part(part)));
        match files.into_iter().find(|file| !file.exists()) {
            Some(missing) if self.input.is_some() => {
                let reason = "does not exist: the saved iterator had written a part of its cache to it";
                Err(Error::new(Code::NotFound, format!("{} {reason}", missing.display())))
            }
            _ => Ok(()),
        }
    }

    fn unlock(&mut self) {
        for part in self.locked.drain(..) {
            remove(&self.files.lock(part));
        }
    }
}

impl ExchangedState for CacheWriter {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        if !exchange.is_restoring() {
            self.close_part()?;
        }
        // The state refers to the parts, so their files stay, also if restoring fails.
        self.is_saved = true;
        exchange.value(&mut self.part)?;
        exchange.value(&mut self.next)?;
        exchange.input(&mut self.input)?;
        if self.input.is_some() || self.part > 0 { Ok(()) } else { Err(mismatch()) }
    }
}

impl Drop for CacheWriter {
    /// Removes the files of a cache that is not complete, unless a saved state refers to them.
    fn drop(&mut self) {
        self.open = None;
        if self.input.is_some() && !self.is_saved {
            for part in 0..self.part {
                remove(&index_file(self.files.part(part)));
                remove(&checkpoint::bundle::data_file(self.files.part(part), 0, 1));
            }
        }
        self.unlock();
    }
}

/// Creates a lock file.
fn create_lock(path: &Path) -> Result<()> {
    let failed = |e: &std::io::Error| Error::from(checkpoint::Error::file(path, e));
    match std::fs::File::create_new(path) {
        Ok(mut file) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            file.write_all(format!("Created at: {now}").as_bytes()).map_err(|e| failed(&e))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let contents = std::fs::read(path).unwrap_or_default();
            let message = format!(
                "There appears to be a concurrent caching iterator running - cache lockfile already exists ('{}'). If \
                 you are sure no other running TF computations are using this cache prefix, delete the lockfile and \
                 re-initialize the iterator. Lockfile contents: {}",
                path.display(),
                String::from_utf8_lossy(&contents)
            );
            Err(Error::new(Code::AlreadyExists, message))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// Removes a file; a failure is logged, because no step depends on it.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{} was not removed: {error}", path.display());
    }
}
