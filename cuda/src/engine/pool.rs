//! A GPU's memory within its limit: who holds how much, and what to say when there is no more.

use super::driver::{Address, Driver, StreamId};
use super::windows::{Windows, wait_before};
use device::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Memory of one GPU. The driver keeps what is freed for reuse, in the order of its streams.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) driver: Arc<dyn Driver>,
    /// The device's name, for messages.
    device: String,
    pub(super) limit: u64,
    state: Mutex<State>,
    pub(super) windows: Windows,
    /// All memory was taken at once, and is kept.
    pub(super) is_reserved: bool,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    holders: FxHashMap<Address, Holder>,
}

#[derive(Debug)]
struct Holder {
    bytes: u64,
    /// The node that asked.
    node: Arc<str>,
}

/// How many holders a message names.
const NAMED: usize = 5;

impl Pool {
    pub(super) fn new(driver: Arc<dyn Driver>, device: String, limit: u64) -> Pool {
        let (state, windows) = <(Mutex<State>, Windows)>::default();
        Pool { driver, device, limit, state, windows, is_reserved: false }
    }

    /// Takes the whole limit from the driver, and gives it back to be kept for reuse.
    pub(super) fn reserve(&mut self, stream: StreamId) -> Result<()> {
        let bytes = usize::try_from(self.limit).unwrap_or(usize::MAX);
        match self.driver.allocate(bytes, stream)? {
            Some(all) => {
                self.driver.free(all, stream);
                self.is_reserved = true;
                Ok(())
            }
            None => Err(self.exhausted(bytes, "the whole of what this process may take")),
        }
    }

    /// Memory for what the stream is given from now on; `what` is it for, in the message of a failure.
    ///
    /// # Errors
    /// `ResourceExhausted`, with who holds the memory.
    pub(super) fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        node: &Arc<str>,
        what: impl Fn() -> String,
    ) -> Result<Address> {
        let size = bytes as u64;
        let fits = self.admit(size) || self.close_idle() && self.admit(size);
        if !fits {
            return Err(self.exhausted(bytes, &what()));
        }
        let allocated = match self.driver.allocate(bytes, stream) {
            Ok(None) => self.allocate_of_kept(bytes, stream),
            other => other,
        };
        let failure = match allocated {
            Ok(Some(address)) => {
                self.hold(address, size, node);
                return Ok(address);
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        self.refuse(size);
        Err(failure.unwrap_or_else(|| self.exhausted(bytes, &what())))
    }

    /// Memory of what is kept for reuse: what other streams have freed may still be theirs, other sizes may be kept, and so
    /// may windows, which take their borrowers a moment to let go of.
    fn allocate_of_kept(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>> {
        self.close_idle();
        self.driver.synchronize()?;
        self.driver.trim()?;
        let until = self.windows.let_go_of();
        loop {
            let found = self.driver.allocate(bytes, stream)?;
            if found.is_some() || !until.is_some_and(wait_before) {
                return Ok(found);
            }
            self.close_idle();
        }
    }

    /// Takes memory back once the stream has passed what it was given so far.
    pub(super) fn free(&self, address: Address, stream: StreamId) {
        self.forget(address);
        self.driver.free(address, stream);
    }

    /// Counts bytes that are to be taken; whether the limit lets them.
    pub(super) fn admit(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let used = state.used.saturating_add(bytes);
        let fits = used <= self.limit;
        if fits {
            state.used = used;
        }
        fits
    }

    /// What was admitted was not there.
    pub(super) fn refuse(&self, bytes: u64) {
        self.state.lock().used -= bytes;
    }

    /// Notes who holds what was admitted.
    pub(super) fn hold(&self, address: Address, bytes: u64, node: &Arc<str>) {
        self.state.lock().holders.insert(address, Holder { bytes, node: node.clone() });
    }

    pub(super) fn forget(&self, address: Address) {
        let mut state = self.state.lock();
        if let Some(holder) = state.holders.remove(&address) {
            state.used -= holder.bytes;
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.state.lock().used
    }

    fn exhausted(&self, bytes: usize, what: &str) -> Error {
        let mut message = format!("OOM when allocating {what} on {}: {bytes} bytes", self.device);
        let state = self.state.lock();
        let mut by_node: FxHashMap<&str, u64> = FxHashMap::default();
        for holder in state.holders.values() {
            *by_node.entry(&holder.node).or_default() += holder.bytes;
        }
        let mut largest: Vec<(&str, u64)> = by_node.into_iter().collect();
        largest.sort_by_key(|&(node, bytes)| (std::cmp::Reverse(bytes), node));
        let _ = write!(message, ", with {} of {} in use", state.used, self.limit);
        for (i, (node, bytes)) in largest.iter().take(NAMED).enumerate() {
            let before = if i == 0 { "; most is held by what these nodes made: " } else { ", " };
            let _ = write!(message, "{before}{node} ({bytes})");
        }
        Error::new(Code::ResourceExhausted, message)
    }
}
