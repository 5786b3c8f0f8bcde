//! What every place of elections does.

use super::Fallible;
use anabranch::train::LeaderStore;
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
/// A lease that a test can wait for, and which a machine with much to do keeps all the same.
pub const SHORT: Duration = Duration::from_secs(6);

/// Of two who stand, with a long lease.
pub fn one_leads_and_is_followed_under_a_higher_term(a: &dyn LeaderStore, b: &dyn LeaderStore) -> Fallible {
    let first = a.campaign()?.ok_or("nobody led, and nobody may")?;
    assert_eq!((b.campaign()?, a.keep(first)?, b.keep(first)?), (None, true, false));
    let second = a.campaign()?.ok_or("who leads may go on")?;
    assert!(second > first && !a.keep(first)? && a.keep(second)?);
    a.resign(second)?;
    let third = b.campaign()?.ok_or("who led has resigned")?;
    assert!(third > second);
    assert_eq!((a.keep(second)?, a.campaign()?), (false, None));
    Ok(())
}

/// Of two who stand, with a short lease.
pub fn who_is_silent_for_a_lease_is_replaced(a: &dyn LeaderStore, b: &dyn LeaderStore) -> Fallible {
    let first = a.campaign()?.ok_or("nobody led, and nobody may")?;
    let started = Instant::now();
    // Kept for longer than a lease.
    while started.elapsed() < a.lease() + a.lease() / 4 {
        assert!(a.keep(first)? && b.campaign()?.is_none());
        thread::park_timeout(Duration::from_millis(50));
    }
    let second = loop {
        match b.campaign()? {
            Some(term) => break term,
            None if started.elapsed() > LONG => return Err("nobody followed".into()),
            None => thread::park_timeout(Duration::from_millis(20)),
        }
    };
    assert!(second > first);
    assert_eq!((a.keep(first)?, a.campaign()?), (false, None));
    Ok(())
}
