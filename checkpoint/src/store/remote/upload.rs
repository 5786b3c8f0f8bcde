//! A writer of objects. A small object is uploaded in one request, and a large one in parts that the store
//! joins at the end.

use super::request::{Request, deadline, runtime};
use super::{IN_FLIGHT, PART, Remote};
use crate::error::Result;
use crate::store::Pending;
use graph::Code;
use object_store::{MultipartUpload, ObjectStoreExt};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Upload {
    remote: Remote,
    path: PathBuf,
    written: u64,
    /// Bytes that have not been sent to the store yet.
    rest: Vec<u8>,
    mode: UploadMode,
}

/// The requests by which an object is sent to the store.
#[derive(Debug)]
enum UploadMode {
    /// Not decided yet, because all bytes so far fit in one part.
    Undecided,
    /// A multipart upload, with the requests in progress, oldest first.
    Multipart(Box<dyn MultipartUpload>, VecDeque<Request<()>>),
    /// One request for the whole object, because the store does not support parts.
    Single,
}

impl Upload {
    /// Starts an upload.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that the store does not allow.
    pub(super) fn new(remote: &Remote, path: &Path) -> Result<Upload> {
        remote.key(path)?;
        let (remote, path) = (remote.clone(), path.to_owned());
        Ok(Upload { remote, path, written: 0, rest: Vec::new(), mode: UploadMode::Undecided })
    }

    /// Sends the collected bytes as a part, if the store supports parts.
    fn send_part(&mut self) -> Result<()> {
        if matches!(self.mode, UploadMode::Undecided) {
            let begun =
                self.remote.call(&self.path, |store, key| async move { store.put_multipart(&key).await });
            self.mode = match begun {
                Ok(upload) => UploadMode::Multipart(upload, VecDeque::new()),
                Err(error) if error.code() == Code::Unimplemented => UploadMode::Single,
                Err(error) => return Err(error),
            };
        }
        if let UploadMode::Multipart(upload, sent) = &mut self.mode {
            if sent.len() >= IN_FLIGHT
                && let Some(oldest) = sent.pop_front()
            {
                oldest.wait()?;
            }
            let part = upload.put_part(std::mem::take(&mut self.rest).into());
            sent.push_back(Request::start(&self.remote, &self.path, part)?);
        }
        Ok(())
    }
}

impl Pending for Upload {
    fn written(&self) -> u64 {
        self.written
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        while !matches!(self.mode, UploadMode::Single) && self.rest.len() + bytes.len() > PART {
            let (now, later) = bytes.split_at(PART - self.rest.len());
            self.rest.extend_from_slice(now);
            bytes = later;
            self.send_part()?;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// Sends the remaining bytes of a multipart upload. A small object is sent by `commit` only, because the
    /// one request that sends it also makes it visible under its name.
    fn sync(&mut self) -> Result<()> {
        if !self.rest.is_empty() && matches!(self.mode, UploadMode::Multipart(..)) {
            self.send_part()?;
        }
        if let UploadMode::Multipart(_, sent) = &mut self.mode {
            while let Some(part) = sent.pop_front() {
                part.wait()?;
            }
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        self.sync()?;
        if let UploadMode::Multipart(mut upload, _) = std::mem::replace(&mut self.mode, UploadMode::Undecided)
        {
            let complete = async move { upload.complete().await };
            return Request::start(&self.remote, &self.path, complete)?.wait().map(|_| ());
        }
        let rest = std::mem::take(&mut self.rest);
        self.remote
            .call(&self.path, |store, key| async move { store.put(&key, rest.into()).await })
            .map(|_| ())
    }
}

impl Drop for Upload {
    /// Aborts the multipart upload, because its parts would be billed indefinitely. The abort runs in the
    /// background; the write error itself is already reported.
    fn drop(&mut self) {
        if let UploadMode::Multipart(mut upload, sent) =
            std::mem::replace(&mut self.mode, UploadMode::Undecided)
            && let Ok(runtime) = runtime()
        {
            let sent: Vec<_> = sent.into_iter().map(Request::cancel).collect();
            runtime.spawn(async move {
                for part in sent {
                    let _ = part.await;
                }
                let _ = tokio::time::timeout(deadline(), upload.abort()).await;
            });
        }
    }
}
