//! Checks that every election store (etcd, Kubernetes) must pass.

use super::Fallible;
use anabranch::train::LeaderStore;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a check waits for a leader to be replaced.
const LONG: Duration = Duration::from_secs(60);
/// A lease that is short enough for a test to wait for its end, and long enough to be renewed in time on a busy
/// machine.
pub const SHORT: Duration = Duration::from_secs(6);

/// Checks that one of two candidates with a long lease leads, and that each later leader has a higher term.
pub fn each_leader_has_a_higher_term(a: &dyn LeaderStore, b: &dyn LeaderStore) -> Fallible {
    let first = a.campaign()?.ok_or("a campaign without another leader was refused")?;
    assert_eq!((b.campaign()?, a.keep(first)?, b.keep(first)?), (None, true, false));
    let second = a.campaign()?.ok_or("the leader's new campaign was refused")?;
    assert!(second > first && !a.keep(first)? && a.keep(second)?);
    a.resign(second)?;
    let third = b.campaign()?.ok_or("a campaign after the leader had resigned was refused")?;
    assert!(third > second);
    assert_eq!((a.keep(second)?, a.campaign()?), (false, None));
    Ok(())
}

/// Checks that a leader that renews its short lease stays the leader, and that a leader that stops renewing is
/// replaced.
pub fn leader_that_stops_renewing_is_replaced(a: &dyn LeaderStore, b: &dyn LeaderStore) -> Fallible {
    let first = a.campaign()?.ok_or("a campaign without another leader was refused")?;
    let started = Instant::now();
    // The leader renews for longer than one lease.
    while started.elapsed() < a.lease() + a.lease() / 4 {
        assert!(a.keep(first)? && b.campaign()?.is_none());
        thread::park_timeout(Duration::from_millis(50));
    }
    let second = loop {
        match b.campaign()? {
            Some(term) => break term,
            None if started.elapsed() > LONG => {
                return Err("the other candidate does not become the leader".into());
            }
            None => thread::park_timeout(Duration::from_millis(20)),
        }
    };
    assert!(second > first);
    assert_eq!((a.keep(first)?, a.campaign()?), (false, None));
    Ok(())
}
