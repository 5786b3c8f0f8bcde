//! Elections in etcd: a key that its leader's lease keeps, and whose revision is the term.

use super::LeaderStore;
use crate::error::{Error, Result};
use etcd_client::{Client, Compare, CompareOp, ConnectOptions, PutOptions, Txn, TxnOp};
use graph::Code;
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// No call to etcd may take longer.
const LONGEST_CALL: Duration = Duration::from_secs(5);

/// A [`LeaderStore`] in etcd. A leader that is not heard of for a lease, dead or stopped, is replaced: etcd takes its
/// key away.
pub struct EtcdStore {
    client: Client,
    place: String,
    key: String,
    name: String,
    lease: Duration,
    own: Mutex<Option<Claim>>,
    runtime: Runtime,
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
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build();
        let runtime = runtime.map_err(|e| Error::file("etcd", &e))?;
        let place = format!("etcd at {}", endpoints.join(", "));
        let endpoints: Vec<String> = endpoints.iter().map(|&e| e.to_owned()).collect();
        let call = async move { Client::connect(endpoints, options).await };
        let client = wait(&runtime, &place, LONGEST_CALL, call)?;
        let key = format!("anabranch/leaders/{name}");
        Ok(EtcdStore { client, place, key, name: name.to_owned(), lease, own: Mutex::default(), runtime })
    }

    fn call<T: Send + 'static, F>(&self, call: impl FnOnce(Client, String) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let patience = (self.lease / 2).min(LONGEST_CALL);
        wait(&self.runtime, &self.place, patience, call(self.client.clone(), self.key.clone()))
    }

    /// The revision of the leader's key; 0 without one.
    fn revision(&self) -> Result<i64> {
        self.call(|mut client, key| async move {
            let found = client.get(key, None).await?;
            Ok(found.kvs().first().map_or(0, |kv| kv.mod_revision()))
        })
    }

    /// Writes the key, under this lease, if it is what it was; the new revision.
    fn write(&self, was: Compare, lease: i64) -> Result<Option<i64>> {
        let who = format!("process {}", std::process::id());
        self.call(move |mut client, key| async move {
            let put = TxnOp::put(key, who, Some(PutOptions::new().with_lease(lease)));
            let answer = client.txn(Txn::new().when([was]).and_then([put])).await?;
            let revision = answer.header().map_or(0, |header| header.revision());
            Ok(answer.succeeded().then_some(revision))
        })
    }

    fn revoke(&self, lease: i64) -> Result<()> {
        self.call(move |mut client, _| async move { client.lease_revoke(lease).await.map(drop) })
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
        if self.revision()? > 0 {
            return Ok(None);
        }
        let seconds = i64::try_from(self.lease.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let lease =
            self.call(move |mut client, _| async move { Ok(client.lease_grant(seconds, None).await?.id()) })?;
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
        let kept = self
            .call(move |mut client, _| async move { client.lease_keep_alive(claim.lease).await.map(drop) });
        if self.revision()? != term {
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

/// Runs a call to its end. The caller's thread may itself belong to another runtime.
fn wait<T: Send + 'static>(
    runtime: &Runtime,
    place: &str,
    patience: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
) -> Result<T> {
    let failed = |cause: String| {
        let text = format!("{place}: {cause}");
        Error::Client(client::Error::Status(proto::Status::new(Code::Unavailable, text)))
    };
    let (answer, answered) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        // The receiver is gone only if the waiting thread is.
        let _ = answer.send(timeout(patience, call).await);
    });
    match answered.recv() {
        Ok(Ok(result)) => result.map_err(|e| failed(e.to_string())),
        Ok(Err(_)) => Err(failed(format!("no answer within {patience:?}"))),
        Err(_) => Err(failed("the call ended without an answer".to_owned())),
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({}, {})", self.key, self.place)
    }
}
