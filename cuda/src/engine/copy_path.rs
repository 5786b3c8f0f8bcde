//! The path by which a tensor is copied from one GPU of the process to another.

use device::Result;

/// A copy path between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyPath {
    /// No copy, because source and target are the same GPU.
    SameGpu,
    /// A direct copy from one GPU's memory to the other's.
    Peer,
    /// A copy through pinned host memory.
    Host,
}

impl CopyPath {
    /// Chooses the copy path between two GPUs. `has_peer_access` returns whether the GPUs have peer access; an
    /// error counts as no.
    pub(super) fn choose(is_same: bool, has_peer_access: impl FnOnce() -> Result<bool>) -> CopyPath {
        match is_same {
            true => CopyPath::SameGpu,
            false if has_peer_access().unwrap_or(false) => CopyPath::Peer,
            false => CopyPath::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Error;

    #[test]
    fn shortest_possible_copy_path_is_chosen() {
        assert_eq!(CopyPath::choose(true, || Ok(false)), CopyPath::SameGpu);
        assert_eq!(CopyPath::choose(false, || Ok(true)), CopyPath::Peer);
        assert_eq!(CopyPath::choose(false, || Ok(false)), CopyPath::Host);
        assert_eq!(CopyPath::choose(false, || Err(Error::internal("no answer"))), CopyPath::Host);
    }
}
