//! Elections in etcd: a key that its leader's lease keeps, and whose revision is the term.

use super::LeaderStore;
use super::calls::{Calls, LONGEST};
use crate::error::Result;
use etcd_client::{Client, Compare, CompareOp, ConnectOptions, PutOptions, Txn, TxnOp};
use graph::Code;
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

/// A [`LeaderStore`] in etcd. A leader that is not heard of for a lease, dead or stopped, is replaced: etcd takes its
/// key away.
pub struct EtcdStore {
    client: Client,
    calls: Calls,
    key: String,
    name: String,
    lease: Duration,
    own: Mutex<Option<Claim>>,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    term: i64,
    /// etcd's number of it.
    lease: i64,
}

impl EtcdStore {
    /// Elections of `name` in the etcd at these endpoints (`host:port`, or `https://…` with options that say how). etcd
    /// counts leases in whole seconds.
    ///
    /// # Errors
    /// `Unavailable` by the endpoints if none of them answers.
    pub fn new(
        endpoints: &[&str],
        options: Option<ConnectOptions>,
        name: &str,
        lease: Duration,
    ) -> Result<EtcdStore> {
        let calls = Calls::new(format!("etcd at {}", endpoints.join(", ")), lease)?;
        let endpoints: Vec<String> = endpoints.iter().map(|&e| e.to_owned()).collect();
        let connected = calls.wait(LONGEST, async move { Client::connect(endpoints, options).await })?;
        let client = connected.map_err(|e| calls.failed(Code::Unavailable, e))?;
        let key = format!("anabranch/leaders/{name}");
        let store = EtcdStore { client, calls, key, name: name.to_owned(), lease, own: Mutex::default() };
        // A client connects when it is used.
        store.revision(LONGEST)?;
        Ok(store)
    }

    fn call<T: Send + 'static, F>(
        &self,
        patience: Duration,
        call: impl FnOnce(Client, String) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let answer = self.calls.wait(patience, call(self.client.clone(), self.key.clone()))?;
        answer.map_err(|e| self.calls.failed(Code::Unavailable, e))
    }

    /// The revision of the leader's key; 0 without one.
    fn revision(&self, patience: Duration) -> Result<i64> {
        self.call(patience, |mut client, key| async move {
            let found = client.get(key, None).await?;
            Ok(found.kvs().first().map_or(0, |kv| kv.mod_revision()))
        })
    }

    /// Writes the key, under this lease, if it is what it was; the new revision.
    fn write(&self, was: Compare, lease: i64) -> Result<Option<i64>> {
        let who = format!("process {}", std::process::id());
        self.call(LONGEST, move |mut client, key| async move {
            let put = TxnOp::put(key, who, Some(PutOptions::new().with_lease(lease)));
            let answer = client.txn(Txn::new().when([was]).and_then([put])).await?;
            let revision = answer.header().map_or(0, |header| header.revision());
            Ok(answer.succeeded().then_some(revision))
        })
    }

    fn revoke(&self, lease: i64) -> Result<()> {
        self.call(LONGEST, move |mut client, _| async move { client.lease_revoke(lease).await.map(drop) })
    }
}

impl LeaderStore for EtcdStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    fn campaign(&self) -> Result<Option<i64>> {
        let mut own = self.own.lock();
        if let Some(claim) = *own {
            let unchanged = Compare::mod_revision(self.key.clone(), CompareOp::Equal, claim.term);
            if let Some(term) = self.write(unchanged, claim.lease)? {
                *own = Some(Claim { term, ..claim });
                return Ok(Some(term));
            }
            *own = None;
        }
        if self.revision(LONGEST)? > 0 {
            return Ok(None);
        }
        let seconds = i64::try_from(self.lease.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let lease = self.call(LONGEST, move |mut client, _| async move {
            Ok(client.lease_grant(seconds, None).await?.id())
        })?;
        let absent = Compare::create_revision(self.key.clone(), CompareOp::Equal, 0);
        match self.write(absent, lease)? {
            Some(term) => {
                *own = Some(Claim { term, lease });
                Ok(Some(term))
            }
            None => self.revoke(lease).map(|()| None),
        }
    }

    fn keep(&self, term: i64) -> Result<bool> {
        let mut own = self.own.lock();
        let Some(claim) = own.filter(|claim| claim.term == term) else { return Ok(false) };
        let end = Instant::now() + self.calls.in_turn();
        let kept = self.call(self.calls.in_turn() / 2, move |mut client, _| async move {
            client.lease_keep_alive(claim.lease).await.map(drop)
        });
        if self.revision(end.saturating_duration_since(Instant::now()))? != term {
            *own = None;
            return Ok(false);
        }
        kept.map(|()| true)
    }

    fn resign(&self, term: i64) -> Result<()> {
        // The key goes with its lease.
        let claim = self.own.lock().take_if(|claim| claim.term == term);
        claim.map_or(Ok(()), |claim| self.revoke(claim.lease))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({}, {})", self.key, self.calls.place())
    }
}
