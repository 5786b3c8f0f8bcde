//! The rendezvous of a step within one process.

use super::{Receive, Rendezvous, RendezvousKey, Sent};
use crate::error::{Error, Result};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

const SHARDS: usize = 8;

/// A table that maps keys to sent values that have not been received, or to receivers whose value has not been sent.
/// Several values or receivers may wait under one key; they are paired in the order of arrival.
#[derive(Default)]
pub struct LocalRendezvous {
    shards: [Mutex<FxHashMap<Arc<str>, Pending>>; SHARDS],
    /// The reason of an abort. Set before the shards are emptied, so that operations that lock a shard later fail.
    aborted: RwLock<Option<Error>>,
}

/// The values or receivers that wait under one key; never empty.
enum Pending {
    Values(VecDeque<Sent>),
    Receivers(VecDeque<Receive>),
}

impl LocalRendezvous {
    /// Creates a rendezvous in which no value and no receiver waits.
    pub fn new() -> LocalRendezvous {
        LocalRendezvous::default()
    }

    fn shard(&self, key: &str) -> &Mutex<FxHashMap<Arc<str>, Pending>> {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        // The high bits choose the shard, because the low bits choose the bucket within the shard's own table.
        &self.shards[(hasher.finish() >> 60) as usize % SHARDS]
    }

    /// Passes a value to the first receiver of the key, or stores it until there is one. `key` is the text of the
    /// rendezvous key.
    ///
    /// # Errors
    /// The reason if the step was aborted.
    pub fn put(&self, key: &Arc<str>, sent: Sent) -> Result<()> {
        let receive = {
            let mut table = self.shard(key).lock();
            self.check()?;
            match table.entry(key.clone()) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Pending::Values(VecDeque::from([sent])));
                    return Ok(());
                }
                Entry::Occupied(mut occupied) => match occupied.get_mut() {
                    Pending::Values(values) => {
                        values.push_back(sent);
                        return Ok(());
                    }
                    Pending::Receivers(receivers) => {
                        let receive = receivers.pop_front();
                        if receivers.is_empty() {
                            occupied.remove();
                        }
                        receive
                    }
                },
            }
        };
        if let Some(receive) = receive {
            receive(Ok(sent));
        }
        Ok(())
    }

    /// Removes and returns the first value under `key` that has not been received; `None` if there is none.
    pub fn take(&self, key: &str) -> Option<Sent> {
        let mut table = self.shard(key).lock();
        let Some(Pending::Values(values)) = table.get_mut(key) else { return None };
        let sent = values.pop_front();
        if values.is_empty() {
            table.remove(key);
        }
        sent
    }

    /// Returns whether a receiver waits for a value under this key.
    pub fn is_awaited(&self, key: &str) -> bool {
        matches!(self.shard(key).lock().get(key), Some(Pending::Receivers(_)))
    }

    /// Returns the keys under which receivers wait, in no order.
    pub fn awaited(&self) -> Vec<Arc<str>> {
        let awaited = |shard: &Mutex<FxHashMap<Arc<str>, Pending>>| {
            let table = shard.lock();
            let keys = table.iter().filter(|(_, pending)| matches!(pending, Pending::Receivers(_)));
            keys.map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(awaited).collect()
    }

    /// Fails the receivers that wait under keys for which `is_lost` returns true.
    pub fn fail_receivers(&self, is_lost: impl Fn(&str) -> bool, reason: &Error) {
        for shard in &self.shards {
            let is_lost =
                |key: &Arc<str>, w: &mut Pending| matches!(w, Pending::Receivers(_)) && is_lost(key);
            let lost: Vec<_> = shard.lock().extract_if(is_lost).collect();
            for (_, pending) in lost {
                if let Pending::Receivers(receivers) = pending {
                    receivers.into_iter().for_each(|receive| receive(Err(reason.clone())));
                }
            }
        }
    }

    /// Checks that the step was not aborted.
    ///
    /// # Errors
    /// The reason, as a derived error.
    pub fn check(&self) -> Result<()> {
        match &*self.aborted.read() {
            Some(reason) => Err(reason.clone().derived()),
            None => Ok(()),
        }
    }
}

impl Rendezvous for LocalRendezvous {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> Result<()> {
        self.put(&key.text, sent)
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        let found = {
            let mut table = self.shard(&key.text).lock();
            match self.check() {
                Err(reason) => Err(reason),
                Ok(()) => match table.entry(key.text.clone()) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(Pending::Receivers(VecDeque::from([receive])));
                        return;
                    }
                    Entry::Occupied(mut occupied) => match occupied.get_mut() {
                        Pending::Receivers(receivers) => {
                            receivers.push_back(receive);
                            return;
                        }
                        Pending::Values(values) => {
                            let sent = values.pop_front();
                            if values.is_empty() {
                                occupied.remove();
                            }
                            sent.ok_or_else(|| Error::internal("an empty queue in the rendezvous"))
                        }
                    },
                },
            }
        };
        receive(found);
    }

    fn abort(&self, reason: Error) {
        let reason = self.aborted.write().get_or_insert(reason).clone().derived();
        for shard in &self.shards {
            let pending = std::mem::take(&mut *shard.lock());
            for receivers in pending.into_values() {
                if let Pending::Receivers(receivers) = receivers {
                    receivers.into_iter().for_each(|receive| receive(Err(reason.clone())));
                }
            }
        }
    }
}

impl fmt::Debug for LocalRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending: usize = self.shards.iter().map(|s| s.lock().len()).sum();
        write!(f, "LocalRendezvous({pending} keys wait, aborted: {:?})", self.aborted.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;
    use graph::{Code, Tensor};

    type Log = Arc<Mutex<Vec<Result<i64>>>>;

    fn key(edge: &str) -> Arc<RendezvousKey> {
        let device = "/job:a/replica:0/task:0/device:CPU:0";
        Arc::new(RendezvousKey::new(device, 1, device, edge))
    }

    fn sent(value: i64) -> Sent {
        Sent { value: Value::Host(Tensor::scalar(value)), is_dead: false }
    }

    fn receiver(log: &Log) -> Receive {
        let log = log.clone();
        Box::new(move |result| {
            let value = result.and_then(|sent| match sent.value {
                Value::Host(tensor) => Ok(tensor.item::<i64>()?),
                other => Err(Error::internal(format!("{other:?}"))),
            });
            log.lock().push(value);
        })
    }

    #[test]
    fn sends_and_receives_of_a_key_are_paired_in_order() -> Result<()> {
        let (rendezvous, log) = (LocalRendezvous::new(), Log::default());
        rendezvous.send(&key("x"), sent(1))?;
        rendezvous.send(&key("x"), sent(2))?;
        rendezvous.send(&key("y"), sent(10))?;
        for _ in 0..4 {
            rendezvous.recv(&key("x"), receiver(&log));
        }
        rendezvous.send(&key("x"), sent(3))?;
        rendezvous.send(&key("x"), sent(4))?;
        assert_eq!(*log.lock(), [Ok(1), Ok(2), Ok(3), Ok(4)]);
        rendezvous.recv(&key("y"), receiver(&log));
        assert_eq!(log.lock().pop(), Some(Ok(10)));
        assert!(rendezvous.shards.iter().all(|s| s.lock().is_empty()));
        Ok(())
    }

    #[test]
    fn abort_fails_waiting_and_later_operations_with_the_first_reason() -> Result<()> {
        let (rendezvous, log) = (LocalRendezvous::new(), Log::default());
        rendezvous.recv(&key("x"), receiver(&log));
        rendezvous.send(&key("y"), sent(1))?;
        rendezvous.abort(Error::new(Code::Aborted, "first"));
        rendezvous.abort(Error::new(Code::Internal, "second"));
        rendezvous.recv(&key("y"), receiver(&log));
        let derived = Error::new(Code::Aborted, "first").derived();
        assert_eq!(*log.lock(), [Err(derived.clone()), Err(derived.clone())]);
        assert_eq!(rendezvous.send(&key("z"), sent(1)), Err(derived));
        Ok(())
    }

    #[test]
    fn values_are_removed_and_receivers_failed_by_key() -> Result<()> {
        let (rendezvous, log) = (LocalRendezvous::new(), Log::default());
        assert!(rendezvous.take("x").is_none());
        rendezvous.send(&key("x"), sent(1))?;
        assert!(rendezvous.take(&key("x").text).is_some() && rendezvous.take(&key("x").text).is_none());
        rendezvous.recv(&key("x"), receiver(&log));
        rendezvous.recv(&key("y"), receiver(&log));
        rendezvous.send(&key("z"), sent(3))?;
        assert!(rendezvous.is_awaited(&key("x").text) && !rendezvous.is_awaited(&key("z").text));
        let lost = Error::new(Code::Unavailable, "gone");
        rendezvous.fail_receivers(|k| *k == *key("x").text || *k == *key("z").text, &lost);
        assert_eq!(*log.lock(), [Err(lost)]);
        assert!(rendezvous.is_awaited(&key("y").text) && rendezvous.take(&key("z").text).is_some());
        Ok(())
    }

    #[test]
    fn concurrent_sends_are_each_received_once() -> Result<()> {
        let (rendezvous, log) = (LocalRendezvous::new(), Log::default());
        let keys: Vec<_> = (0..32).map(|i| key(&format!("e{i}"))).collect();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| -> Result<()> {
                for round in 0..100 {
                    for k in &keys {
                        rendezvous.send(k, sent(round))?;
                    }
                }
                Ok(())
            });
            for _ in 0..100 {
                keys.iter().for_each(|k| rendezvous.recv(k, receiver(&log)));
            }
            sender.join().unwrap_or_else(|_| Err(Error::internal("the sender panicked")))
        })?;
        let mut values: Vec<i64> = log.lock().drain(..).collect::<Result<_>>()?;
        values.sort_unstable();
        let expected: Vec<i64> = (0..100).flat_map(|round| [round; 32]).collect();
        assert_eq!(values, expected);
        Ok(())
    }
}
