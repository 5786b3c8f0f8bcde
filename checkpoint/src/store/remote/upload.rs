//! Writes an object: what is small in one request, what is large in parts, which the store joins when all are there.

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
    /// What has not been sent.
    rest: Vec<u8>,
    form: Form,
}

/// In what form the store gets it.
#[derive(Debug)]
enum Form {
    /// Not known before there is more than one part.
    Open,
    /// In parts; those that are on their way, oldest first.
    Parts(Box<dyn MultipartUpload>, VecDeque<Request<()>>),
    /// In one request: this store knows no parts.
    Whole,
}

impl Upload {
    /// # Errors
    /// `InvalidArgument` for a name that the store does not allow.
    pub(super) fn new(remote: &Remote, path: &Path) -> Result<Upload> {
        remote.key(path)?;
        let (remote, path) = (remote.clone(), path.to_owned());
        Ok(Upload { remote, path, written: 0, rest: Vec::new(), form: Form::Open })
    }

    /// Sends what has gathered as a part, if the store takes parts.
    fn send_part(&mut self) -> Result<()> {
        if matches!(self.form, Form::Open) {
            let begun =
                self.remote.ask(&self.path, |store, key| async move { store.put_multipart(&key).await });
            self.form = match begun {
                Ok(upload) => Form::Parts(upload, VecDeque::new()),
                Err(error) if error.code() == Code::Unimplemented => Form::Whole,
                Err(error) => return Err(error),
            };
        }
        if let Form::Parts(upload, sent) = &mut self.form {
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
        while !matches!(self.form, Form::Whole) && self.rest.len() + bytes.len() > PART {
            let (now, later) = bytes.split_at(PART - self.rest.len());
            self.rest.extend_from_slice(now);
            bytes = later;
            self.send_part()?;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// A small file goes to the store when it is committed: there is no other way to keep it from having its name.
    fn sync(&mut self) -> Result<()> {
        if !self.rest.is_empty() && matches!(self.form, Form::Parts(..)) {
            self.send_part()?;
        }
        if let Form::Parts(_, sent) = &mut self.form {
            while let Some(part) = sent.pop_front() {
                part.wait()?;
            }
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
        self.sync()?;
        if let Form::Parts(mut upload, _) = std::mem::replace(&mut self.form, Form::Open) {
            let complete = async move { upload.complete().await };
            return Request::start(&self.remote, &self.path, complete)?.wait().map(|_| ());
        }
        let rest = std::mem::take(&mut self.rest);
        self.remote
            .ask(&self.path, |store, key| async move { store.put(&key, rest.into()).await })
            .map(|_| ())
    }
}

impl Drop for Upload {
    /// Parts that belong to no file would be paid for without end. Nobody waits for it: what failed is reported.
    fn drop(&mut self) {
        if let Form::Parts(mut upload, sent) = std::mem::replace(&mut self.form, Form::Open)
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
