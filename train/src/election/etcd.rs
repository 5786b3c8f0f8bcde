//! Elections in etcd: the leader's lease keeps a key alive, and the revision of the key is the term.

use super::LeaderStore;
use super::calls::{CALL_TIMEOUT, StoreCalls};
use crate::error::Result;
use etcd_client::{Client, Compare, CompareOp, ConnectOptions, PutOptions, Txn, TxnOp};
use graph::Code;
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

/// A [`LeaderStore`] in etcd. A leader that does not renew its lease, because it is dead or stopped, is
/// replaced: etcd then deletes its key.
pub struct EtcdStore {
    client: Client,
    calls: StoreCalls,
    key: String,
    name: String,
    lease: Duration,
    own: Mutex<Option<Leadership>>,
}

/// The leadership of this store: its term, and the etcd lease that keeps the leader's key alive.
#[derive(Clone, Copy, Debug)]
struct Leadership {
    term: i64,
    /// The id of the lease in etcd.
    lease: i64,
}

impl EtcdStore {
    /// Opens the election `name` in the etcd at these endpoints (`host:port`, or `https://…` with TLS options). etcd
    /// counts leases in whole seconds.
    ///
    /// # Errors
    /// `Unavailable` with the endpoints, if none of them answers.
    pub fn new(
        endpoints: &[&str],
        options: Option<ConnectOptions>,
        name: &str,
        lease: Duration,
    ) -> Result<EtcdStore> {
        let calls = StoreCalls::new(format!("etcd at {}", endpoints.join(", ")), lease)?;
        let endpoints: Vec<String> = endpoints.iter().map(|&e| e.to_owned()).collect();
        let connected = calls.wait(CALL_TIMEOUT, async move { Client::connect(endpoints, options).await })?;
        let client = connected.map_err(|e| calls.call_error(Code::Unavailable, e))?;
        let key = format!("anabranch/leaders/{name}");
        let store = EtcdStore { client, calls, key, name: name.to_owned(), lease, own: Mutex::default() };
        // The etcd client connects only at its first call.
        store.revision(CALL_TIMEOUT)?;
        Ok(store)
    }

    /// Runs a call that receives the etcd client and the leader's key, for at most `time_limit`.
    fn call<T: Send + 'static, F>(
        &self,
        time_limit: Duration,
        call: impl FnOnce(Client, String) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let answer = self.calls.wait(time_limit, call(self.client.clone(), self.key.clone()))?;
        answer.map_err(|e| self.calls.call_error(Code::Unavailable, e))
    }

    /// Returns the revision of the leader's key; 0 if there is none.
    fn revision(&self, time_limit: Duration) -> Result<i64> {
        self.call(time_limit, |mut client, key| async move {
            let found = client.get(key, None).await?;
            Ok(found.kvs().first().map_or(0, |kv| kv.mod_revision()))
        })
    }

    /// Writes the leader's key with the etcd lease `lease`, if the condition `was` holds. Returns the new revision, or
    /// `None` if the condition does not hold.
    fn write(&self, was: Compare, lease: i64) -> Result<Option<i64>> {
        let process = format!("process {}", std::process::id());
        self.call(CALL_TIMEOUT, move |mut client, key| async move {
            let put = TxnOp::put(key, process, Some(PutOptions::new().with_lease(lease)));
            let answer = client.txn(Txn::new().when([was]).and_then([put])).await?;
            let revision = answer.header().map_or(0, |header| header.revision());
            Ok(answer.succeeded().then_some(revision))
        })
    }

    /// Revokes an etcd lease; etcd then deletes the key that the lease keeps alive.
    fn revoke(&self, lease: i64) -> Result<()> {
        self.call(
            CALL_TIMEOUT,
            move |mut client, _| async move { client.lease_revoke(lease).await.map(drop) },
        )
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
        if let Some(leadership) = *own {
            let unchanged = Compare::mod_revision(self.key.clone(), CompareOp::Equal, leadership.term);
            if let Some(term) = self.write(unchanged, leadership.lease)? {
                *own = Some(Leadership { term, ..leadership });
                return Ok(Some(term));
            }
            *own = None;
        }
        if self.revision(CALL_TIMEOUT)? > 0 {
            return Ok(None);
        }
        let seconds = i64::try_from(self.lease.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let lease = self.call(CALL_TIMEOUT, move |mut client, _| async move {
            Ok(client.lease_grant(seconds, None).await?.id())
        })?;
        let absent = Compare::create_revision(self.key.clone(), CompareOp::Equal, 0);
        match self.write(absent, lease)? {
            Some(term) => {
                *own = Some(Leadership { term, lease });
                Ok(Some(term))
            }
            None => self.revoke(lease).map(|()| None),
        }
    }

    fn keep(&self, term: i64) -> Result<bool> {
        let mut own = self.own.lock();
        let Some(leadership) = own.filter(|leadership| leadership.term == term) else { return Ok(false) };
        let end = Instant::now() + self.calls.renewal_timeout();
        let renewed = self.call(self.calls.renewal_timeout() / 2, move |mut client, _| async move {
            client.lease_keep_alive(leadership.lease).await.map(drop)
        });
        if self.revision(end.saturating_duration_since(Instant::now()))? != term {
            *own = None;
            return Ok(false);
        }
        renewed.map(|()| true)
    }

    fn resign(&self, term: i64) -> Result<()> {
        // The revocation of the lease deletes the key.
        let leadership = self.own.lock().take_if(|leadership| leadership.term == term);
        leadership.map_or(Ok(()), |leadership| self.revoke(leadership.lease))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({}, {})", self.key, self.calls.description())
    }
}
