//! Which GPUs use each other's memory.

use super::Nvidia;
use cudarc::driver::sys::{self, CUresult};
use device::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_int;

/// What one GPU knows of the others, by their numbers: each is asked once.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<BTreeMap<u32, Result<bool>>>);

impl Peers {
    /// Lets two GPUs use each other's memory; whether the machine lets them.
    pub(super) fn reach(&self, own: &Nvidia, peer: &Nvidia) -> Result<bool> {
        // Who asks while another thread opens the way waits for it.
        let mut known = self.0.lock();
        known.entry(peer.number).or_insert_with(|| connect(own, peer)).clone()
    }
}

/// Both ways, for whoever copies may read or write, and sums over GPUs do both.
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

fn can_access(from: &Nvidia, to: &Nvidia) -> Result<bool> {
    let _entered = from.enter()?;
    let mut can: c_int = 0;
    // SAFETY: both devices are the driver's; the call writes one number.
    let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from.device, to.device) };
    from.check("cuDeviceCanAccessPeer", asked.result())?;
    Ok(can != 0)
}

/// Lets `to` use the memory of `of`. What comes from a pool, which is all that tensors lie in, has an access of its own;
/// that of contexts is for everything else, and for the way that copies take.
fn grant(of: &Nvidia, to: &Nvidia) -> Result<()> {
    let _entered = of.enter()?;
    let access = to.access();
    // SAFETY: the pool is the device's own, which it keeps; the call reads one description.
    unsafe {
        let pool = of.pool()?;
        of.check("cuMemPoolSetAccess", sys::cuMemPoolSetAccess(pool, &raw const access, 1).result())?;
    }
    let _entered = to.enter()?;
    // SAFETY: the context lives as long as `of`; the flags must be 0.
    match unsafe { sys::cuCtxEnablePeerAccess(of.context.0, 0) } {
        // Another part of the process may have been first. There may be no more room for peers among contexts, which
        // pools do not need.
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED | CUresult::CUDA_ERROR_TOO_MANY_PEERS => Ok(()),
        enabled => to.check("cuCtxEnablePeerAccess", enabled.result()),
    }
}
