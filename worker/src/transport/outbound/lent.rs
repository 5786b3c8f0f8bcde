//! Pushes of large tensors by a fabric: the peer reads the registered memory.

use super::loans::BufferBorrow;
use super::{Outbound, PushReason, post_value};
use crate::transport::fabric::{Lender, Lending, Registration};
use crate::transport::frame::{Frame, TensorSpec, ValueId};
use crate::transport::outbound::Elements;
use bytes::Bytes;
use graph::Buffer;
use std::sync::Arc;

/// A tensor that the peer reads by a fabric. The registration ends before the memory.
#[derive(Debug)]
pub(super) struct LentTensor {
    _registration: Box<dyn Registration>,
    pub(super) buffer: Arc<Buffer>,
    value_id: ValueId,
    spec: TensorSpec,
}

impl Outbound {
    /// Records that the peer has been offered, in this link's hello, to read large tensors by a fabric.
    pub(in crate::transport) fn offer_fabric(&self, lender: Box<dyn Lender>) {
        *self.lending.lock() = Lending::Offered(lender.into());
    }

    /// Completes this end of the fabric with the text of the peer's answer; an empty text is a refusal.
    pub(super) fn complete_fabric(self: &Arc<Self>, answer: String) {
        let Some(lender) = self.lending.lock().take_offered() else { return };
        if answer.is_empty() {
            return;
        }
        let own = self.clone();
        self.runtime.spawn_blocking(move || match lender.complete(&answer) {
            Ok(()) => {
                tracing::info!("large tensors to {} go by {lender:?}", own.peer);
                *own.lending.lock() = Lending::Ready(lender);
            }
            Err(error) => tracing::warn!("large tensors to {} go by TCP: {error}", own.peer),
        });
    }

    /// Lends a tensor, if the link has a fabric and the tensor is large. Returns `None` if the tensor is to be written to the
    /// connection, and false if too many bytes are in flight.
    ///
    /// # Errors
    /// `Unavailable` if the link has broken.
    pub(super) fn push_lent(
        &self,
        value_id: &ValueId,
        spec: &TensorSpec,
        buffer: &Arc<Buffer>,
        reason: PushReason,
    ) -> device::Result<Option<bool>> {
        let lender = self.lending.lock().lender(buffer.len()).cloned();
        let Some(lender) = lender else { return Ok(None) };
        let registration = match lender.register(buffer) {
            Ok(registration) => registration,
            Err(error) => {
                self.end_lending(&format!("no memory can be registered: {error}"));
                return Ok(None);
            }
        };
        let from = registration.remote();
        let (value_id, spec) = (value_id.clone(), spec.clone());
        let tensor = LentTensor {
            _registration: registration,
            buffer: buffer.clone(),
            value_id: value_id.clone(),
            spec: spec.clone(),
        };
        let mut state = self.state.lock();
        if !reason.try_reserve(&mut state.budget, buffer.len()) {
            return Ok(Some(false));
        }
        let loan = state.shared.add_loan(BufferBorrow::Lent(Arc::new(tensor)));
        let posted = self.post(&Frame::Lent { value_id, spec, from, loan }, None);
        if posted.is_err() {
            drop(state.shared.end_loan(loan));
        }
        posted.map(|()| Some(true))
    }

    /// Sends a lent tensor over the connection, because the peer could not read it. The link lends no more tensors.
    pub(super) fn resend_lent(&self, loan: u64) {
        let returned = self.state.lock().shared.end_loan(loan);
        let Some(BufferBorrow::Lent(tensor)) = returned else { return };
        self.end_lending("the peer could not read a tensor");
        let LentTensor { buffer, value_id, spec, .. } = &*tensor;
        let payload = Bytes::from_owner(Elements(buffer.clone()));
        // An error means that the link has broken, which ends the step that waits for the tensor.
        if post_value(&self.connection, &Frame::Elements(value_id.clone(), spec.clone()), Some(payload))
            .is_ok()
        {
            self.flush();
        }
    }

    /// Stops lending tensors by the fabric, and logs the reason.
    fn end_lending(&self, why: &str) {
        let ended = std::mem::take(&mut *self.lending.lock());
        if let Lending::Ready(_) = &ended {
            tracing::warn!("large tensors to {} go by TCP from now on: {why}", self.peer);
        }
    }
}
