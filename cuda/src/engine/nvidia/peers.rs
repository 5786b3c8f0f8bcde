//! Peer access between GPUs.

use super::Nvidia;
use cudarc::driver::sys::{self, CUresult};
use device::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_int;

/// The results of enabling peer access, by the number of the other GPU: true if this GPU and the other GPU can
/// access each other's memory. Filled on first use.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<BTreeMap<u32, Result<bool>>>);

impl Peers {
    /// Enables peer access between two GPUs, and returns whether the machine supports it.
    pub(super) fn enable_peer_access(&self, own: &Nvidia, peer: &Nvidia) -> Result<bool> {
        // The lock is held during the call, so that concurrent callers wait for the result.
        let mut results = self.0.lock();
        results.entry(peer.number).or_insert_with(|| connect(own, peer)).clone()
    }
}

/// Enables peer access between two GPUs in both directions, because either GPU may run a copy between them, and
/// collectives use both directions. Returns whether the machine supports it.
fn connect(own: &Nvidia, peer: &Nvidia) -> Result<bool> {
    if own.number == peer.number {
        return Ok(true);
    }
    if !can_access(own, peer)? || !can_access(peer, own)? {
        return Ok(false);
    }
    grant(own, peer)?;
    grant(peer, own)?;
    Ok(true)
}

/// Returns whether `from` supports access to the memory of `to`.
fn can_access(from: &Nvidia, to: &Nvidia) -> Result<bool> {
    let _guard = from.enter()?;
    let mut can: c_int = 0;
    // SAFETY: both devices are the driver's; the call writes one number.
    let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from.device, to.device) };
    from.check("cuDeviceCanAccessPeer", asked.result())?;
    Ok(can != 0)
}

/// Gives `to` access to the memory of `of`: to its memory pool, which holds all tensors and has access rights
/// of its own, and to its context, which covers all other memory and allows direct copies.
fn grant(of: &Nvidia, to: &Nvidia) -> Result<()> {
    let _guard = of.enter()?;
    let access = to.access();
    // SAFETY: the pool belongs to the device and is not destroyed; the call reads one description.
    unsafe {
        let pool = of.pool()?;
        of.check("cuMemPoolSetAccess", sys::cuMemPoolSetAccess(pool, &raw const access, 1).result())?;
    }
    let _guard = to.enter()?;
    // SAFETY: the context lives as long as `of`; the flags must be 0.
    match unsafe { sys::cuCtxEnablePeerAccess(of.context.0, 0) } {
        // Access may already be enabled by other code of the process. CUDA's limit of peers per context does
        // not apply to memory pools, so exceeding the limit is not an error.
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED | CUresult::CUDA_ERROR_TOO_MANY_PEERS => Ok(()),
        enabled => to.check("cuCtxEnablePeerAccess", enabled.result()),
    }
}
