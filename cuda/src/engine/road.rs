//! Which way a tensor goes from one GPU of the process to another.

use device::Result;

/// A way between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Road {
    /// They are one: the tensor stays where it is.
    Stay,
    /// The other GPU writes into this one's memory.
    Peer,
    /// Through pinned memory of the host.
    Host,
}

impl Road {
    /// `reach` says whether the GPUs may use each other's memory; one that cannot even be asked may not.
    pub(super) fn choose(is_same: bool, reach: impl FnOnce() -> Result<bool>) -> Road {
        match is_same {
            true => Road::Stay,
            false if reach().unwrap_or(false) => Road::Peer,
            false => Road::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Error;

    #[test]
    fn a_tensor_takes_the_shortest_way_that_there_is() {
        assert_eq!(Road::choose(true, || Ok(false)), Road::Stay);
        assert_eq!(Road::choose(false, || Ok(true)), Road::Peer);
        assert_eq!(Road::choose(false, || Ok(false)), Road::Host);
        assert_eq!(Road::choose(false, || Err(Error::internal("no answer"))), Road::Host);
    }
}
