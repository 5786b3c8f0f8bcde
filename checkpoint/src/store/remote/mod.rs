//! Object stores. A file is an object, which appears only when it is complete and cannot be renamed. Folders
//! are only prefixes of names.

mod object;
mod open;
mod request;
mod upload;

use super::{Pending, Readable, Store, copy_through, root};
use crate::error::{Error, Result};
use ::object_store::path::Path as Key;
use ::object_store::{self, ObjectStore, ObjectStoreExt};
use graph::Code;
use object::Object;
use request::Request;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use upload::Upload;

pub(super) use open::of;

/// Maximum bytes of one request. A store accepts 10,000 parts per file, which are 160 GB.
const PART: usize = 16 << 20;

/// Maximum number of concurrent requests for one file.
const IN_FLIGHT: usize = 4;

/// Files larger than this are not copied within the store, because the copy may exceed a request's deadline
/// or be refused (by S3 beyond 5 GB).
const LARGEST_COPY: u64 = 1 << 30;

/// A connection to one bucket, container or host.
#[derive(Clone, Debug)]
struct Remote {
    /// The prefix that the names of all files of the store have: `s3://bucket`.
    root: String,
    inner: Arc<dyn ObjectStore>,
}

impl Remote {
    /// Returns the store's key of a file. Empty components of the path are dropped, like on disks.
    fn key(&self, path: &Path) -> Result<Key> {
        let name = path.to_str().and_then(|name| name.strip_prefix(&self.root)).unwrap_or_default();
        let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
        Key::parse(parts.join("/")).map_err(|e| self.wrong(path, Code::InvalidArgument, e))
    }

    /// Makes a request and waits for its response.
    fn call<T: Send + 'static, F>(
        &self,
        path: &Path,
        request: impl FnOnce(Arc<dyn ObjectStore>, Key) -> F,
    ) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        Request::start(self, path, request(self.inner.clone(), self.key(path)?))?.wait()
    }

    fn error(&self, path: &Path, error: &object_store::Error) -> Error {
        use object_store::Error::*;
        let code = match error {
            NotFound { .. } => Code::NotFound,
            InvalidPath { .. } => Code::InvalidArgument,
            NotSupported { .. } | NotImplemented { .. } => Code::Unimplemented,
            AlreadyExists { .. } => Code::AlreadyExists,
            Precondition { .. } | NotModified { .. } => Code::FailedPrecondition,
            PermissionDenied { .. } => Code::PermissionDenied,
            Unauthenticated { .. } => Code::Unauthenticated,
            UnknownConfigurationKey { .. } => Code::InvalidArgument,
            JoinError { .. } => Code::Internal,
            // The store did not respond, or reported that it is unavailable, on every attempt.
            _ => Code::Unavailable,
        };
        self.wrong(path, code, error)
    }

    fn wrong(&self, path: &Path, code: Code, reason: impl Display) -> Error {
        let reason = format!("store {}: {reason}", self.root);
        Error::File { code, path: path.display().to_string(), reason }
    }
}

impl Store for Remote {
    fn open(&self, path: &Path) -> Result<Box<dyn Readable>> {
        Ok(Box::new(Object::open(self, path)?))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn Pending>> {
        Ok(Box::new(Upload::new(self, path)?))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.call(path, |store, key| async move { store.head(&key).await }) {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn modified(&self, path: &Path) -> Result<SystemTime> {
        let meta = self.call(path, |store, key| async move { store.head(&key).await })?;
        Ok(meta.last_modified.into())
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>> {
        let list = |store: Arc<dyn ObjectStore>, key: Key| async move {
            let found = store.list_with_delimiter(Some(&key)).await?;
            let files = found.objects.iter().map(|object| &object.location);
            let names = files.chain(&found.common_prefixes).filter_map(Key::filename).map(OsString::from);
            Ok(names.collect())
        };
        match self.call(folder, list) {
            Err(error) if error.code() == Code::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    }

    fn relocate(&self, from: &Path, to: &Path) -> Result<()> {
        let size = self.call(from, |store, key| async move { store.head(&key).await })?.size;
        if size > LARGEST_COPY {
            return copy_through(from, to);
        }
        let key = self.key(to)?;
        self.call(from, |store, from| async move { store.copy(&from, &key).await })
    }

    fn delete(&self, path: &Path) -> Result<()> {
        match self.call(path, |store, key| async move { store.delete(&key).await }) {
            Err(error) if error.code() == Code::NotFound => Ok(()),
            deleted => deleted,
        }
    }
}
