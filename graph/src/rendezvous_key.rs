//! Rendezvous keys: the names of tensors in transfer between devices.

use crate::error::{Error, Result};
use std::sync::Arc;

/// The key under which Send and Recv exchange one tensor of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RendezvousKey {
    /// The five parts of the key joined by semicolons: the text on the wire, which must be equal at sender and
    /// receiver.
    pub text: Arc<str>,
    pub src_device: Arc<str>,
    pub src_incarnation: u64,
    pub dst_device: Arc<str>,
    pub edge: Arc<str>,
}

impl RendezvousKey {
    /// Returns the key of an edge outside loops.
    pub fn new(
        src_device: impl Into<Arc<str>>,
        src_incarnation: u64,
        dst_device: impl Into<Arc<str>>,
        edge: impl Into<Arc<str>>,
    ) -> RendezvousKey {
        let (src_device, dst_device, edge) = (src_device.into(), dst_device.into(), edge.into());
        let incarnation = format!("{src_incarnation:016x}");
        let text = [&*src_device, &incarnation, &dst_device, &edge, "0:0"].join(";");
        RendezvousKey { text: text.into(), src_device, src_incarnation, dst_device, edge }
    }

    /// Returns the key of the same edge in one iteration of a loop frame.
    pub fn in_frame(&self, frame: u64, iteration: u64) -> RendezvousKey {
        let edge = self.text.rsplit_once(';').map_or(&*self.text, |(edge, _)| edge);
        RendezvousKey { text: format!("{edge};{frame}:{iteration}").into(), ..self.clone() }
    }

    /// Parses a key.
    ///
    /// # Errors
    /// `InvalidArgument` unless there are five non-empty parts and the second is a hexadecimal number of 16 digits.
    pub fn parse(text: &str) -> Result<RendezvousKey> {
        let malformed = || Error::invalid(format!("Invalid  rendezvous key: {text}"));
        let parts: Vec<&str> = text.split(';').collect();
        let [src, incarnation, dst, edge, frame] = parts[..] else { return Err(malformed()) };
        if [src, dst, edge, frame].iter().any(|p| p.is_empty()) || incarnation.len() != 16 {
            return Err(malformed());
        }
        let src_incarnation = u64::from_str_radix(incarnation, 16).map_err(|_| malformed())?;
        Ok(RendezvousKey {
            text: text.into(),
            src_device: src.into(),
            src_incarnation,
            dst_device: dst.into(),
            edge: edge.into(),
        })
    }
}
